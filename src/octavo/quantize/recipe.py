"""Recipe: the user's wishes. What the hardware can do is the target description's to say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args

from ..errors import QuantizationError
from ..target import TargetDescription
from .ranges import RangeEstimator, range_estimator

ActivationDtype = Literal["uint8", "int8"]
WeightDtype = Literal["int8"]
WeightGranularity = Literal["per_axis", "per_tensor"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How to quantize.

    Parameters
    ----------
    activation_dtype
        "uint8" or "int8"; activations are asymmetric, per tensor. None: the one that the target's ops with weights list first.
    weight_dtype
        "int8"; weights are symmetric, in [-127; 127].
    weight_granularity
        "per_axis" (a scale for each output channel) or "per_tensor".
    range_estimator
        Name of a registered estimator (`octavo.quantize.ranges`), with its argument behind a colon if it takes one:
        "min_max", the observed range, or "percentile:99.9", which cuts its tails.
    percentile
        The argument of "percentile" where `range_estimator` gives none: percent of the values kept, in [50; 100].
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

    activation_dtype: ActivationDtype | None = None
    weight_dtype: WeightDtype = "int8"
    weight_granularity: WeightGranularity = "per_axis"
    range_estimator: str = "min_max"
    percentile: float = 99.99
    exclude: tuple[str, ...] = ()
    float_ops: tuple[str, ...] = ("nn.softmax",)

    def __post_init__(self) -> None:
        """Check each field against its supported values."""
        _check("activation_dtype", self.activation_dtype or "uint8", get_args(ActivationDtype))
        _check("weight_dtype", self.weight_dtype, get_args(WeightDtype))
        _check("weight_granularity", self.weight_granularity, get_args(WeightGranularity))
        try:
            range_estimator("percentile", {"percentile": self.percentile})
            _ = self.estimator
        except ValueError as error:
            raise QuantizationError(f"recipe: {error}") from error
        for field in ("exclude", "float_ops"):
            names: Any = getattr(self, field)
            if not isinstance(names, (tuple, list, set, frozenset)) or not all(isinstance(name, str) for name in names):
                raise QuantizationError(f"recipe: {field} must be a tuple of names, got {names!r}")
            object.__setattr__(self, field, tuple(cast("tuple[str, ...]", names)))

    def for_target(self, target: TargetDescription) -> Recipe:
        """Return the recipe with the activations' dtype that it leaves to a target."""
        if self.activation_dtype is not None:
            return self
        listed = [dtype for support in sorted(target.ops, key=lambda each: not each.weights) for dtype in support.activations]
        allowed: tuple[ActivationDtype, ...] = get_args(ActivationDtype)
        found = next((dtype for name in listed for dtype in allowed if dtype == name), allowed[0])
        return replace(self, activation_dtype=found)

    @property
    def estimator(self) -> RangeEstimator:
        """The range estimator that `range_estimator` names."""
        return range_estimator(self.range_estimator, {"percentile": self.percentile})


def _check(field: str, value: object, supported: tuple[str, ...]) -> None:
    if value not in supported:
        raise QuantizationError(f"recipe: {field} must be one of {', '.join(supported)}, got {value!r}")
