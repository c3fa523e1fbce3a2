"""Recipe: the user's wishes, also read from JSON and by wildcards, and overrides: what they are for single ops and tensors.

What hardware can do is the target description's to say.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from ..errors import QuantizationError, TargetError, brief, check_value, is_number
from ..numerics import QuantParams
from ..runtime.atomic_write import read_text
from ..target import TargetDescription
from ..target.tensor_support import TensorSupport
from ..target.vocabulary import SCHEMES, WEIGHT_BLOCKS, check_name, from_fields
from .ranges import RangeEstimator, range_estimator

Preset = Literal["fast", "balanced", "best"]
AUTO = "auto"
"""The range estimator that is a choice among others."""
WIDEST = "min_max"
"""The default: of all estimators the one whose range clips nothing that was observed."""
WEIGHT_BITS = 8
"""Width of weights that use their whole dtype."""
BLOCK_BITS = 4
"""Width of weights in blocks, at most."""
ANY = "*"
"""Stands for all layers that no other name names."""
_MADE_OF = {"uint8": "asymmetric", "int8": "any", "int16": "symmetric"}
"""The scheme that integers of a dtype need."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Override:
    """Fields of a recipe for some ops and tensors; what is None is as the recipe says.

    Parameters
    ----------
    exclude
        True: the op stays float. False: it is integer where the target has it, whatever `exclude` and `float_ops` say.
    activation_dtype
        "uint8", "int8" or "int16" of the tensor, or of the op's result.
    activation_scheme
        "symmetric" or "asymmetric", of the same.
    range_estimator
        Of the same; any but "auto", which is a choice for all tensors together.
    weight_bits
        2 to 8, of the op's weight.
    weight_granularity
        "per_axis" or "per_tensor", of the op's weight.

    Raises
    ------
    QuantizationError
        If a field holds what it does not allow.
    """

    exclude: bool | None = None
    activation_dtype: str | None = None
    activation_scheme: str | None = None
    range_estimator: str | None = None
    weight_bits: int | None = None
    weight_granularity: str | None = None

    def __post_init__(self) -> None:
        """Check the fields that are given."""
        _check("", self, {name: rule for name, rule in _OVERRIDE_RULES.items() if getattr(self, name) is not None})
        if self.range_estimator == AUTO:
            raise QuantizationError(f"range_estimator {AUTO!r} chooses for all tensors; name one for these")
        if self.range_estimator is not None:
            _estimator("", self.range_estimator, Recipe().percentile)

    @property
    def given(self) -> dict[str, Any]:
        """The fields that are not None."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) is not None}

    @property
    def activation(self) -> TensorSupport | None:
        """What the tensor must be; None where nothing is said of its integers."""
        if self.activation_dtype is None and self.activation_scheme is None:
            return None
        return TensorSupport(
            dtypes=None if self.activation_dtype is None else (self.activation_dtype,),
            schemes=None if self.activation_scheme is None else (self.activation_scheme,),
        )

    @staticmethod
    def of(where: str, value: Any) -> Override:
        """Return an Override, or the one that a mapping of its fields says; QuantizationError for anything else."""
        return value if isinstance(value, Override) else from_fields(Override, where, value, QuantizationError)


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
        Name of a registered estimator (`octavo.quantizer.ranges`), with its argument behind a colon if it takes one:
        "min_max", the observed range, "percentile:99.9", which cuts its tails, "mse", "entropy", "mean", "global_scale:8". "auto"
        tries several, ranges of single tensors tuned among them, and takes what leaves the outputs nearest to the float model's
        on the samples that the profile keeps (of those within a standard error the one that clips least); without such it is
        "min_max".
    percentile
        The argument of "percentile" where `range_estimator` gives none: percent of the values kept, in [50; 100].
    weight_bits
        2 to 8. With fewer than 8 integers lie in [-(2^(bits - 1) - 1); 2^(bits - 1) - 1], stored as int8. Or a mapping of names,
        of the kinds that `exclude` takes: the first that names a layer counts, "*" stands for all others (8 where it is missing).
    weight_block
        16, 32, 64 or 128: dense layers whose weights have 4 bits or fewer have a scale for so many inputs and each output, and
        read their activations in float32 (weight-only; products of two activations stay float, too), or, where `activation_dtype`
        is given, quantized per row when run. One whose inputs the block does not divide, or whose target does not take it, keeps
        8 bits, per axis. Blocks have zero points where the target takes asymmetric weights. None: a scale for each output.
    block_activations
        How exact such layers read float32 activations: "float32", "bfloat16" or "int8", as `octavo.compile` takes it; None leaves
        it to that.
    wide_weights
        Share of all weights, in [0; 1], that keep 8 bits where `weight_bits` says fewer: of the layers whose rounding, on
        the samples that the profile keeps, costs the outputs most for each weight (without samples the smallest layers). The
        plan's adjustments name them. By default no layer is spared, neither the first nor the last; layers that `weight_bits`
        names have the width that it says.
    wide_activations
        How many activations have 16 bits: those whose rounding to 8 bits alone costs the outputs most, on the samples that the
        profile keeps, behind what else was done; none where outputs would lose by it. What reads one computes in 16 bits where
        the target does, and leaves float32, which the next op quantizes.
    weight_range
        What the scale of a weight covers: "max", its largest magnitude, or "mse", as much of it as changes the weights least, by
        squares. "auto": where fewer than 8 bits are rounded by "gram" what changes the layer's sums least, else "max".
    weight_rounding
        "nearest", or "gram": so that the layer's sums change least on the samples that the profile keeps. With `bias_correction`
        weights make up before that for what is wrong with the layer's inputs, where that gains on samples held back.
    equalization
        "auto": channels of unlike ranges are brought nearer to each other, by factors in the weights of what makes and what reads
        them, where rounding is estimated to lose less then; the float model computes the same. It needs the samples that
        the profile keeps. Values of attention's heads, and residual streams, are rotated before, by orthogonal matrices in these
        weights that spread what single channels hold; both where it gains on samples held back. "factors": nothing is rotated.
        "none": they stay.
    bias_correction
        Whether what a layer's outputs are off on average, on the samples that the profile keeps, goes into its bias. "analytic":
        what rounding its weights moves them by, as ranges and means in the profile tell without a run.
    min_sqnr
        The signal to noise ratio in dB that the model's worst output must keep on the samples that the profile keeps; 12 dB more
        where inputs look like the state of a recurrent network, in which errors add up from run to run. Where it is missed, the
        activations whose rounding costs most get other ranges or stay float, as many as it takes; less than 3 dB above it, and in
        small models always, they get other ranges where that helps, and stay float where what the outputs gain is worth its time:
        the more they have, the more that must be. The last layers of an output that the samples hardly cover stay float, whatever
        it has, where that takes next to no time and the recipe speaks of no single tensors. None: all is integer, whatever it
        costs; so it is, too, where neither weights nor biases are corrected.
    float_tensors
        TensorIds or source names of activations that are not to be integer: an op that reads one stays float, and so does one
        that makes it, unless it is a product, which can end in float. * and ? stand for other characters, as in `exclude`.
    exclude
        TensorIds, source names of tensors, or op names (source "Conv" or Relax "nn.conv2d") that stay float; in each * stands
        for any characters and ? for one. One that fits nothing in the model is an error.
    float_ops
        Relax op names that stay float even where the target has an integer kernel. By default softmax: 8 bits tie the classes of
        like probability and make the small ones 0, and its cost is small. "batch_matmul" stands for products of two activations.
    tensors
        What single activations and weights must be, by TensorId or source name: a TensorSupport (a fixed scale and zero point,
        dtypes, schemes), or QuantParams, which are then exactly these. What the ops of the target ask besides still counts; where
        both can't be, the op stays float with the reason. A bias has the scales of its input and its weight, multiplied.
    overrides
        What is otherwise for some ops and tensors: an Override, or a mapping of its fields, by a name of the kinds that `exclude`
        takes, or of an input or a weight. Of several that fit the later one counts, field by field; `tensors` before all.

    Raises
    ------
    QuantizationError
        If a field holds none of its supported values.
    """

    activation_dtype: Literal["uint8", "int8", "int16", None] = None
    weight_dtype: Literal["int8"] = "int8"
    weight_granularity: Literal["per_axis", "per_tensor"] = "per_axis"
    range_estimator: str = WIDEST
    percentile: float = 99.99
    weight_bits: int | Mapping[str, int] = field(default=WEIGHT_BITS, hash=False)
    weight_block: int | None = None
    block_activations: Literal["float32", "bfloat16", "int8", None] = None
    wide_weights: float = 0.0
    wide_activations: int = 0
    weight_range: Literal["auto", "max", "mse"] = "auto"
    weight_rounding: Literal["nearest", "gram"] = "gram"
    equalization: Literal["none", "factors", "auto"] = "auto"
    bias_correction: bool | Literal["analytic"] = True
    min_sqnr: float | None = 18.0
    float_tensors: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    float_ops: tuple[str, ...] = ("nn.softmax",)
    tensors: Mapping[str, TensorSupport | QuantParams] = field(
        default_factory=dict[str, "TensorSupport | QuantParams"], hash=False
    )
    overrides: Mapping[str, Override] = field(default_factory=dict[str, Override], hash=False)

    def __post_init__(self) -> None:
        """Check each field against its supported values."""
        _check("recipe: ", self, _RULES)
        bits = self.weight_bits
        fewest = min(bits.values(), default=WEIGHT_BITS) if isinstance(bits, Mapping) else bits
        if self.weight_block is not None and fewest > BLOCK_BITS:
            raise QuantizationError(
                f"recipe: weight_block is of weights of {BLOCK_BITS} bits and fewer: set weight_bits, too, got {bits!r}"
            )
        _estimator("recipe: ", "percentile", self.percentile)
        _estimator("recipe: ", self.range_estimator, self.percentile)
        object.__setattr__(self, "weight_bits", dict(bits) if isinstance(bits, Mapping) else bits)
        for name in _NAMES:
            object.__setattr__(self, name, tuple(getattr(self, name)))
        said = {str(name): Override.of(f"recipe: overrides: {name}", each) for name, each in self.overrides.items()}
        object.__setattr__(self, "overrides", said)

    def with_preset(self, preset: str) -> Recipe:
        """Return the recipe for more or less effort, as `PRESETS` has it; what it says other than by default stays.

        Raises
        ------
        QuantizationError
            There is no such preset.
        """
        check_value(preset in PRESETS, QuantizationError, "recipe: preset", f"one of {', '.join(PRESETS)}", preset)
        usual = Recipe()
        return replace(
            self, **{name: each for name, each in PRESETS[preset].items() if getattr(self, name) == getattr(usual, name)}
        )

    @property
    def has_plain_ranges(self) -> bool:
        """Whether ranges of activations are those that were observed: no other statistics count."""
        return {self.range_estimator, *(each.range_estimator or WIDEST for each in self.overrides.values())} <= {WIDEST, AUTO}

    def with_ranges(self, estimator: str) -> Recipe:
        """Return the recipe with another range estimator, for all tensors."""
        overrides = {name: replace(each, range_estimator=None) for name, each in self.overrides.items()}
        return replace(self, range_estimator=estimator, overrides=overrides)

    @property
    def is_weight_only(self) -> bool:
        """Whether activations beside weights in blocks stay float."""
        return self.weight_block is not None and self.activation_dtype is None

    @property
    def corrects(self) -> bool:
        """Whether anything is to be corrected by running the model."""
        return self.bias_correction is True or self.weight_rounding != "nearest"

    @property
    def may_leave_float(self) -> bool:
        """Whether activations of which nothing is said may stay float where that is better; not where any is spoken of."""
        return self.min_sqnr is not None and self.corrects and not self.tensors and not self.overrides

    def preferred_dtype(self, target: TargetDescription) -> str:
        """Return the dtype of activations that a target does not restrict: this recipe's, or the first that the target lists."""
        if self.activation_dtype is not None:
            return self.activation_dtype
        entries = sorted(target.ops, key=lambda each: not each.weights)
        listed = [(dtype, entry.activation_schemes) for entry in entries for dtype in entry.activations]
        return next((dtype for dtype, schemes in listed if _MADE_OF.get(dtype, "") in (*schemes, "any")), "uint8")

    def resolved(self, ids: Mapping[str, str]) -> tuple[dict[str, TensorSupport | QuantParams], list[str]]:
        """Return `tensors`, and those of `float_tensors`, by TensorId; `ids` maps all names that a tensor has to its id."""
        floats = {name: [entry for known, entry in ids.items() if fits(name, known)] for name in self.float_tensors}
        for field_name, names in (("tensors", self.tensors), ("float_tensors", self.float_tensors)):
            unknown = next((name for name in names if name not in ids and not floats.get(name)), None)
            if unknown is not None:
                near = get_close_matches(unknown, ids, n=1)
                advice = f"; did you mean {near[0]!r}?" if near else ""
                raise QuantizationError(f"recipe: {field_name}: the model has no tensor {unknown!r}{advice}")
        return {ids[name]: entry for name, entry in self.tensors.items()}, [each for found in floats.values() for each in found]

    def estimator(self, name: str | None = None) -> RangeEstimator:
        """Return the range estimator of a name, without one that of `range_estimator`."""
        return _estimator("recipe: ", name or self.range_estimator, self.percentile)


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "fast": {"weight_rounding": "nearest", "equalization": "none", "bias_correction": "analytic", "min_sqnr": None},
    "balanced": {},
    "best": {"range_estimator": AUTO, "wide_weights": 0.3},
}
"""What each preset says other than a recipe by default: "fast" runs nothing, "best" tries ranges, too, and with
fewer than 8 bits of weights leaves 8 to those that cost most."""


def _are_bits(value: Any) -> bool:
    named = cast("Mapping[Any, Any]", value) if isinstance(value, Mapping) else {ANY: value}
    return all(isinstance(name, str) and type(bits) is int and 2 <= bits <= WEIGHT_BITS for name, bits in named.items())


def _are_names(value: Any) -> bool:
    return isinstance(value, (tuple, list, set, frozenset)) and all(isinstance(entry, str) for entry in value)


def _one_of(*values: Any) -> tuple[str, Callable[[Any], bool]]:
    known = ", ".join(str(each) for each in values if each is not None)
    return f"one of {known}{' or None' * (None in values)}", lambda value: value in values


_NAMES = ("float_tensors", "exclude", "float_ops")
_RULES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    **{name: _one_of(*get_args(kind)) for name, kind in get_type_hints(Recipe).items() if get_origin(kind) is Literal},
    "weight_block": _one_of(*WEIGHT_BLOCKS, None),
    "weight_bits": (f"a whole number from 2 to {WEIGHT_BITS}, or a mapping of names to such", _are_bits),
    "wide_weights": ("a share from 0 to 1", lambda value: is_number(value) and 0 <= value <= 1),
    "wide_activations": ("a number of activations, 0 or more", lambda value: type(value) is int and value >= 0),
    "min_sqnr": (
        "a number of dB, 0 or more, or None",
        lambda value: value is None or (is_number(value) and 0 <= value < math.inf),
    ),
    "bias_correction": ("True, False or 'analytic'", lambda value: isinstance(value, bool) or value == "analytic"),
    "range_estimator": ("a name", lambda value: isinstance(value, str)),
    **dict.fromkeys(_NAMES, ("a tuple of names", _are_names)),
    "tensors": (
        "a mapping of names to TensorSupport or QuantParams",
        lambda value: (
            isinstance(value, Mapping) and all(isinstance(entry, TensorSupport | QuantParams) for entry in value.values())
        ),
    ),
    "overrides": ("a mapping of names to Override", lambda value: isinstance(value, Mapping)),
}
"""What each field must be, in words, and whether a value is that."""


_OVERRIDE_RULES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    **{name: _RULES[name] for name in ("activation_dtype", "range_estimator", "weight_granularity")},
    "exclude": ("True or False", lambda value: isinstance(value, bool)),
    "activation_scheme": _one_of(*SCHEMES),
    "weight_bits": (f"a whole number from 2 to {WEIGHT_BITS}", lambda value: type(value) is int and _are_bits(value)),
}
"""The same of the fields of an override."""


def _check(where: str, said: Any, rules: Mapping[str, tuple[str, Callable[[Any], bool]]]) -> None:
    for name, (expected, is_fine) in rules.items():
        value = getattr(said, name)
        check_value(is_fine(value), QuantizationError, f"{where}{name}", expected, value)


def _estimator(where: str, name: str, percentile: float) -> RangeEstimator:
    """Return a range estimator; QuantizationError where there is none, or none with that argument."""
    try:
        return range_estimator(name, {"percentile": percentile})
    except ValueError as error:
        raise QuantizationError(f"{where}{error}") from error


def fits(pattern: str, name: str) -> bool:
    """Return whether a name is `pattern`, in which * stands for any characters and ? for one; brackets stand for themselves."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))


def has_wildcards(pattern: str) -> bool:
    """Return whether a name may stand for several."""
    return "*" in pattern or "?" in pattern


def read_recipe(path: str | Path) -> Recipe:
    """Return the recipe in a JSON file: an object of a Recipe's fields, those that it leaves out being as by default.

    `tensors` holds objects of the fields of a TensorSupport, `overrides` of those of an Override.

    Raises
    ------
    QuantizationError
        If there is no such file, or it is no such object; the message names the file and the field.
    """
    text = read_text(path, QuantizationError, "the recipe")
    try:
        said: dict[str, Any] | Any = json.loads(text)
        if not isinstance(said, dict):
            raise QuantizationError(f"recipe: expected an object of its fields, got {brief(said)}")
        for name in said:
            check_name("recipe: field", name, [each.name for each in fields(Recipe)])
        named: dict[str, Any] | Any = said.get("tensors", {})
        check_value(isinstance(named, dict), QuantizationError, "recipe: tensors", "an object of names", named)
        said["tensors"] = {name: TensorSupport.from_json(f"tensors: {name}", entry) for name, entry in named.items()}
        return Recipe(**said)
    except json.JSONDecodeError as error:
        raise QuantizationError(f"{path}: the recipe is no JSON: {error}") from error
    except (QuantizationError, TargetError) as error:
        raise QuantizationError(f"{path}: {error}") from error
