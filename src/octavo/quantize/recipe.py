"""Recipe: the user's wishes. What the hardware can do is the target description's to say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from ..errors import QuantizationError
from ..target import TargetDescription
from .ranges import RangeEstimator, range_estimator

ActivationDtype = Literal["uint8", "int8", "int16"]
WeightDtype = Literal["int8"]
WeightGranularity = Literal["per_axis", "per_tensor"]
_MADE_OF = {"uint8": "asymmetric", "int8": "any", "int16": "symmetric"}
"""The scheme that integers of a dtype need."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How to quantize.

    Parameters
    ----------
    activation_dtype
        "uint8", "int8" or "int16", per tensor; int16 is symmetric, the others asymmetric where the target takes it. None: the one
        that the target's ops with weights list first, and others where an op takes no such.
    weight_dtype
        "int8"; weights are symmetric, in [-127; 127] unless the target takes the full range.
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

    def preferred_dtype(self, target: TargetDescription) -> str:
        """Return the dtype of activations that a target does not restrict: this recipe's, or the first that the target lists."""
        if self.activation_dtype is not None:
            return self.activation_dtype
        entries = sorted(target.ops, key=lambda each: not each.weights)
        listed = [(dtype, entry.activation_schemes) for entry in entries for dtype in entry.activations]
        return next((dtype for dtype, schemes in listed if _MADE_OF.get(dtype, "") in (*schemes, "any")), "uint8")

    @property
    def estimator(self) -> RangeEstimator:
        """The range estimator that `range_estimator` names."""
        return range_estimator(self.range_estimator, {"percentile": self.percentile})


def _check(field: str, value: object, supported: tuple[str, ...]) -> None:
    if value not in supported:
        raise QuantizationError(f"recipe: {field} must be one of {', '.join(supported)}, got {value!r}")
