"""Recipe: the user's wishes. What the hardware can do is the target description's to say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Literal, cast, get_args

from ..errors import QuantizationError
from ..numerics import QuantParams
from ..target import TargetDescription
from ..target.tensor_support import TensorSupport
from .ranges import RangeEstimator, range_estimator

ActivationDtype = Literal["uint8", "int8", "int16"]
WeightDtype = Literal["int8"]
WeightGranularity = Literal["per_axis", "per_tensor"]
WeightRounding = Literal["nearest", "gram"]
WeightRange = Literal["max", "mse"]
WEIGHT_BITS = 8
"""Width of weights that use their whole dtype."""
ANY = "*"
"""Stands for all layers that no other name names."""
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
        "min_max", the observed range, "percentile:99.9", which cuts its tails, "mse", "entropy", "mean", "global_scale:8".
    percentile
        The argument of "percentile" where `range_estimator` gives none: percent of the values kept, in [50; 100].
    weight_bits
        2 to 8. With fewer than 8 integers lie in [-(2^(bits - 1) - 1); 2^(bits - 1) - 1], stored as int8. Or a mapping of names,
        of the kinds that `exclude` takes: the first that names a layer counts, "*" stands for all others (8 where it is missing).
    weight_range
        What the scale of a weight covers: "max", its largest magnitude, or "mse", as much of it as changes the weights least, by
        squares.
    weight_rounding
        "nearest", or "gram": so that the layer's sums change least on the samples that the profile keeps.
    bias_correction
        Whether what a layer's outputs are off on average, on the samples that the profile keeps, goes into its bias.
    exclude
        TensorIds, source names of tensors, or op names (source "Conv" or Relax "nn.conv2d") that stay float. One
        that fits nothing in the model is an error.
    float_ops
        Relax op names that stay float even where the target has an integer kernel. By default softmax: 8 bits tie the classes of
        like probability and make the small ones 0, and its cost is small. "batch_matmul" stands for products of two activations.
    tensors
        What single activations and weights must be, by TensorId or source name: a TensorSupport (a fixed scale and zero point,
        dtypes, schemes), or QuantParams, which are then exactly these. What the ops of the target ask besides still counts; where
        both can't be, the op stays float with the reason. A bias has the scales of its input and its weight, multiplied.

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
    weight_bits: int | Mapping[str, int] = field(default=WEIGHT_BITS, hash=False)
    weight_range: WeightRange = "max"
    weight_rounding: WeightRounding = "gram"
    bias_correction: bool = True
    exclude: tuple[str, ...] = ()
    float_ops: tuple[str, ...] = ("nn.softmax",)
    tensors: Mapping[str, TensorSupport | QuantParams] = field(
        default_factory=dict[str, "TensorSupport | QuantParams"], hash=False
    )

    def __post_init__(self) -> None:
        """Check each field against its supported values."""
        _check("activation_dtype", self.activation_dtype or "uint8", get_args(ActivationDtype))
        _check("weight_dtype", self.weight_dtype, get_args(WeightDtype))
        _check_bits(self.weight_bits)
        if isinstance(self.weight_bits, Mapping):
            object.__setattr__(self, "weight_bits", dict(self.weight_bits))
        _check("weight_range", self.weight_range, get_args(WeightRange))
        _check("weight_rounding", self.weight_rounding, get_args(WeightRounding))
        _check("weight_granularity", self.weight_granularity, get_args(WeightGranularity))
        try:
            range_estimator("percentile", {"percentile": self.percentile})
            _ = self.estimator
        except ValueError as error:
            raise QuantizationError(f"recipe: {error}") from error
        if not isinstance(cast("Any", self.bias_correction), bool):
            raise QuantizationError(f"recipe: bias_correction must be True or False, got {self.bias_correction!r}")
        for name in ("exclude", "float_ops"):
            names: Any = getattr(self, name)
            if not isinstance(names, (tuple, list, set, frozenset)) or not all(isinstance(entry, str) for entry in names):
                raise QuantizationError(f"recipe: {name} must be a tuple of names, got {names!r}")
            object.__setattr__(self, name, tuple(cast("tuple[str, ...]", names)))
        tensors: Any = self.tensors
        if not isinstance(tensors, Mapping) or not all(
            isinstance(entry, TensorSupport | QuantParams) for entry in tensors.values()
        ):
            raise QuantizationError("recipe: tensors must be a mapping of names to TensorSupport or QuantParams")

    @property
    def corrects(self) -> bool:
        """Whether anything is to be corrected by running the model."""
        return self.bias_correction or self.weight_rounding != "nearest"

    def preferred_dtype(self, target: TargetDescription) -> str:
        """Return the dtype of activations that a target does not restrict: this recipe's, or the first that the target lists."""
        if self.activation_dtype is not None:
            return self.activation_dtype
        entries = sorted(target.ops, key=lambda each: not each.weights)
        listed = [(dtype, entry.activation_schemes) for entry in entries for dtype in entry.activations]
        return next((dtype for dtype, schemes in listed if _MADE_OF.get(dtype, "") in (*schemes, "any")), "uint8")

    def resolved(self, ids: Mapping[str, str]) -> Recipe:
        """Return the recipe with the tensors by TensorId; `ids` maps all names that a tensor has to its id."""
        unknown = next((name for name in self.tensors if name not in ids), None)
        if unknown is not None:
            near = get_close_matches(unknown, ids, n=1)
            advice = f"; did you mean {near[0]!r}?" if near else ""
            raise QuantizationError(f"recipe: tensors: the model has no tensor {unknown!r}{advice}")
        return replace(self, tensors={ids[name]: entry for name, entry in self.tensors.items()}) if self.tensors else self

    @property
    def estimator(self) -> RangeEstimator:
        """The range estimator that `range_estimator` names."""
        return range_estimator(self.range_estimator, {"percentile": self.percentile})


def _check(field: str, value: object, supported: tuple[str, ...]) -> None:
    if value not in supported:
        raise QuantizationError(f"recipe: {field} must be one of {', '.join(supported)}, got {value!r}")


def bits_of(params: QuantParams) -> int:
    """Return the width of the integers of a weight."""
    return params.qmax.bit_length() + 1


def _check_bits(value: Any) -> None:
    given = cast("Mapping[Any, Any]", value) if isinstance(value, Mapping) else {ANY: value}
    expected = f"a whole number from 2 to {WEIGHT_BITS}, or a mapping of names to such"
    for name, bits in given.items():
        if not isinstance(name, str) or isinstance(bits, bool) or not isinstance(bits, int) or not 2 <= bits <= WEIGHT_BITS:
            raise QuantizationError(f"recipe: weight_bits must be {expected}, got {value!r}")
