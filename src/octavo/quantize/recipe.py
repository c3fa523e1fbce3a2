"""Recipe: the user's wishes. What the hardware can do is the target description's to say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from ..errors import QuantizationError

ActivationDtype = Literal["uint8", "int8"]
WeightDtype = Literal["int8"]
WeightGranularity = Literal["per_axis", "per_tensor"]
RangeEstimator = Literal["min_max", "percentile"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How to quantize.

    Parameters
    ----------
    activation_dtype
        "uint8" or "int8"; activations are asymmetric, per tensor.
    weight_dtype
        "int8"; weights are symmetric, in [-127; 127].
    weight_granularity
        "per_axis" (a scale for each output channel) or "per_tensor".
    range_estimator
        "min_max" takes the observed range, "percentile" cuts its tails.
    percentile
        Percent of the values that the "percentile" estimator keeps, in [50; 100]; half of the rest is cut on each side.
    exclude
        TensorIds, source names of tensors, or op names (source "Conv" or Relax "nn.conv2d") that stay float. One
        that fits nothing in the model is an error.
    float_ops
        Relax op names that stay float even where the target has an integer kernel. By default softmax: 8 bits tie the classes of
        like probability and make the small ones 0, and its cost is small. "batch_matmul" stands for products of two activations.

    Raises
    ------
    QuantizationError
        If a field holds none of its supported values.
    """

    activation_dtype: ActivationDtype = "uint8"
    weight_dtype: WeightDtype = "int8"
    weight_granularity: WeightGranularity = "per_axis"
    range_estimator: RangeEstimator = "min_max"
    percentile: float = 99.99
    exclude: tuple[str, ...] = ()
    float_ops: tuple[str, ...] = ("nn.softmax",)

    def __post_init__(self) -> None:
        """Check each field against its supported values."""
        _check("activation_dtype", self.activation_dtype, get_args(ActivationDtype))
        _check("weight_dtype", self.weight_dtype, get_args(WeightDtype))
        _check("weight_granularity", self.weight_granularity, get_args(WeightGranularity))
        _check("range_estimator", self.range_estimator, get_args(RangeEstimator))
        percentile: Any = self.percentile  # callers may not check types
        if not isinstance(percentile, (int, float)) or not 50 <= percentile <= 100:
            raise QuantizationError(f"recipe: percentile must lie in [50; 100], got {percentile!r}")
        for field in ("exclude", "float_ops"):
            names: Any = getattr(self, field)
            if not isinstance(names, (tuple, list, set, frozenset)) or not all(isinstance(name, str) for name in names):
                raise QuantizationError(f"recipe: {field} must be a tuple of names, got {names!r}")
            object.__setattr__(self, field, tuple(cast("tuple[str, ...]", names)))


def _check(field: str, value: object, supported: tuple[str, ...]) -> None:
    if value not in supported:
        raise QuantizationError(f"recipe: {field} must be one of {', '.join(supported)}, got {value!r}")
