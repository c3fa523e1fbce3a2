"""TargetDescription: what hardware can compute in integers, as data that a vendor can write as a JSON file.

It is checked as it is made: a name that `vocabulary` lacks would otherwise match no op, and everything would stay float.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from ..errors import TargetError, brief, check_path
from .limits import LIMITS, Limit
from .tensor_support import TensorSupport
from .vocabulary import (
    ACTIVATION_DTYPES,
    ACTIVATION_LAYOUTS,
    FLOAT_FUNCTION,
    FLOAT_MULTIPLIER,
    FUSIONS,
    GRANULARITIES,
    MAX_ACCUMULATOR_BITS,
    MIN_ACCUMULATOR_BITS,
    OPS,
    OVERFLOWS,
    REQUANTIZE,
    ROLES,
    SCALES,
    SCHEMES,
    WEIGHT_BLOCKS,
    WEIGHT_DTYPES,
    WEIGHT_LAYOUTS,
    WEIGHT_RANGES,
    GranularityName,
    Scheme,
    check_name,
    check_names,
    check_tuple,
)

SCHEMA_VERSION = 2
READ_VERSIONS = (1, SCHEMA_VERSION)
"""A file of version 1 lacks fields that have defaults, and nothing else."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpSupport:
    """How one op can run in integers.

    Parameters
    ----------
    op
        One of `vocabulary.OPS`: a Relax op name without "relax.", e.g. "nn.conv2d", "matmul", "add"; or `ELEMENTWISE`,
        `ELEMENTWISE_PAIR`, `BATCH_MATMUL`, `STACKED_MATMUL`, `GATHERED_MATMUL`, `COMPARE`, `SELECT`.
    activations
        Dtypes allowed for its activation inputs and output, best first: "uint8", "int8", "uint16", "int16".
    weights
        Dtypes allowed for its constant operand, those of activations or "int4"; empty where it takes none.
    activation_schemes, weight_schemes, weight_granularity
        What its activations and weights may be.
    weight_blocks
        How many inputs may share a scale (and a zero point) of weights of 4 bits, for each output: 16, 32, 64, 128. Such products
        read float32, or what they quantize per row when run, and leave float32.
    weight_range
        Whether symmetric weights leave out the least integer: "narrow", [-127; 127] of int8, or "full".
    scales
        "any", or "power_of_two" for all tensors of the op.
    fusions
        What may follow within the same kernel: "bias", "nn.relu", "clip"; with `float_output` "float_function", a function of
        single elements of the float32 result (SiLU, say, or a parametric relu) and a factor for each channel, before the kernel
        quantizes; with `float_input` the former alone.
    same_params
        Whether output and inputs must share scale and zero point (reshape, max pooling).
    float_output
        Whether an integer op with weights may leave its result in float32, scaled and not quantized.
    sum_output
        Whether such an op may leave the int32 sums of its products as they are.
    float_input
        Whether an addition may read what such ops leave in float32.
    per_row_input
        Whether an op with weights may read an activation in float32 that it quantizes when run, each row, or each sample of a
        convolution, with a scale and a zero point of its own; it leaves float32 then. Of a product of two activations: the rows
        of one, the columns of the other.
    requantize
        What brings sums, or real values, to the scale of the result: "float_multiplier", "fixed_point" or "shift".
    rounding
        How its results can be rounded to integers, best first; one name where there is one. Names that `vocabulary.REQUANTIZE`
        has for `requantize`.
    accumulator_bits
        Width of the accumulator, in bits, of products of 8-bit activations: 16 to 64.
    wide_accumulator_bits
        That of products of 16-bit activations.
    overflow
        What an accumulator does that a sum leaves: "proven", it must be shown that none does; "saturates" or "wraps".
    tensors
        What differs for one of its tensors, by role: "input" or "input0" and "input1", "weight", "bias", "output".
    limits
        What its attributes and shapes may be, by the names of `limits.LIMITS`.

    Raises
    ------
    TargetError
        A field holds what it does not allow; the message names the op, the field and what is allowed.
    """

    op: str
    activations: tuple[str, ...] = ("uint8", "int8")
    activation_schemes: tuple[Scheme, ...] = ("symmetric", "asymmetric")
    weights: tuple[str, ...] = ()
    weight_schemes: tuple[Scheme, ...] = ("symmetric", "asymmetric")
    weight_granularity: tuple[GranularityName, ...] = ("per_tensor", "per_axis")
    weight_blocks: tuple[int, ...] = ()
    weight_range: str = "narrow"
    scales: str = "any"
    fusions: tuple[str, ...] = ()
    same_params: bool = False
    float_output: bool = False
    sum_output: bool = False
    float_input: bool = False
    per_row_input: bool = False
    requantize: str = FLOAT_MULTIPLIER
    rounding: str | tuple[str, ...] = ""
    accumulator_bits: int = 32
    wide_accumulator_bits: int = 64
    overflow: str = "proven"
    tensors: Mapping[str, TensorSupport] = field(default_factory=dict[str, TensorSupport], hash=False)
    limits: Mapping[str, Limit] = field(default_factory=dict[str, Limit], hash=False)

    def __post_init__(self) -> None:
        """Check every field against the vocabulary."""
        check_name("op", self.op, OPS)
        where = f"op {self.op!r}"
        check_names(f"{where}: activations", self.activations, ACTIVATION_DTYPES, minimum=1)
        check_names(f"{where}: weights", self.weights, WEIGHT_DTYPES)
        for name, allowed in (
            ("weight_schemes", SCHEMES),
            ("activation_schemes", SCHEMES),
            ("weight_granularity", GRANULARITIES),
        ):
            check_names(f"{where}: {name}", getattr(self, name), allowed, minimum=1)
        check_names(f"{where}: fusions", self.fusions, FUSIONS)
        for name, choices in _CHOICES.items():
            check_name(f"{where}: {name}", getattr(self, name), choices)
        if self.rounding == "":
            object.__setattr__(self, "rounding", REQUANTIZE[self.requantize][0])
        named: object = (self.rounding,) if isinstance(self.rounding, str) else self.rounding
        check_names(f"{where}: rounding", named, REQUANTIZE[self.requantize], minimum=1)
        self._check_numbers(where)
        _check_mapping(f"{where}: tensors", self.tensors, ROLES, TensorSupport)
        _check_mapping(f"{where}: limits", self.limits, tuple(LIMITS), Limit)
        if self.requantize == "shift" and self.scales != "power_of_two":
            raise TargetError(f"{where}: requantize 'shift' needs scales 'power_of_two', got {self.scales!r}")
        for role in self.tensors:
            try:
                found = self.tensor(role)
            except TargetError as error:
                raise TargetError(f"{where}: tensors: {role}: {error}") from error
            if self.requantize == "shift" and found.scales != "power_of_two":
                needed = "requantize 'shift' needs scales 'power_of_two'"
                raise TargetError(f"{where}: tensors: {role}: {needed}, got {found.scales!r}")

    def _check_numbers(self, where: str) -> None:
        blocks: Any = self.weight_blocks
        if not isinstance(blocks, tuple) or not all(type(size) is int and size in WEIGHT_BLOCKS for size in self.weight_blocks):
            allowed = f"expected a list of {', '.join(map(str, WEIGHT_BLOCKS))}"
            raise TargetError(f"{where}: weight_blocks: {allowed}, got {brief(blocks)}")
        for name in ("same_params", "float_output", "sum_output", "float_input", "per_row_input"):
            if not isinstance(getattr(self, name), bool):
                raise TargetError(f"{where}: {name}: expected true or false, got {brief(getattr(self, name))}")
        for name in ("accumulator_bits", "wide_accumulator_bits"):
            bits: object = getattr(self, name)
            if type(bits) is not int or not MIN_ACCUMULATOR_BITS <= bits <= MAX_ACCUMULATOR_BITS:
                allowed = f"expected a whole number from {MIN_ACCUMULATOR_BITS} to {MAX_ACCUMULATOR_BITS}"
                raise TargetError(f"{where}: {name}: {allowed}, got {brief(bits)}")

    @property
    def float_function(self) -> bool:
        """Whether a kernel computes functions of its float32 result before it quantizes."""
        return (self.float_output or self.float_input) and FLOAT_FUNCTION in self.fusions

    @property
    def roundings(self) -> tuple[str, ...]:
        """What quantizes can say of it, best first: names of `vocabulary.ROUNDINGS`, which hold `requantize`, too."""
        named = (self.rounding,) if isinstance(self.rounding, str) else self.rounding
        return named if self.requantize == FLOAT_MULTIPLIER else tuple(f"{self.requantize}_{name}" for name in named)

    def tensor(self, role: str, *, is_constant: bool = False) -> TensorSupport:
        """Return what the tensor of a role in a quantize_info may be: as `tensors` says of it, else as the op says of all."""
        found: dict[str, Any] = {"scales": self.scales}
        if role == "weight" or (is_constant and role != "bias"):
            found |= {"dtypes": self.weights or None, "schemes": self.weight_schemes}
            found |= {"granularity": self.weight_granularity} if role == "weight" else {}
        elif role != "bias":
            found |= {"dtypes": self.activations, "schemes": self.activation_schemes}
        names = ("input", "input0" if role == "input" else role) if role.startswith("input") else (role,)
        for name in names:
            found |= self.tensors[name].given if name in self.tensors else {}
        return _support_of(**found)

    def bits_of(self, dtype: str) -> int:
        """Return the width of the accumulator of products of activations of a dtype."""
        return self.wide_accumulator_bits if dtype in ("int16", "uint16") else self.accumulator_bits


@lru_cache(maxsize=1024)
def _support_of(**fields: Any) -> TensorSupport:
    """Return it as made once of the same fields: who places ops asks thousands of times, and each is checked when it is made."""
    return TensorSupport(**fields)


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetDescription:
    """A named set of integer ops.

    Parameters
    ----------
    name
        Its name; of a back end, the prefix of its composites, too.
    ops
        What it computes in integers.
    never
        Ops that stay float whatever `ops` says: what a vendor takes out of a description that it was given.
    op_by_op
        Whether it runs the source's ops one by one: no kernel takes in several of them, and none is a step within one.
    activation_layout, weight_layout
        How it wants activations of rank 4 ("any", "NHWC", "NCHW") and the weights of convolutions; for code generators.
    alignment
        Bytes that constants are aligned to: a power of two, at most 64.
    scratch_bytes
        Memory that the code of one composite may use besides its tensors; None: as much as it asks for.
    isas, extensions
        The instruction sets that kernels of this machine may use for it, best first, by their back end's names, and what they may
        use on top; none: all that the machine has.

    Raises
    ------
    TargetError
        A field holds what it does not allow, or an op stands twice.
    """

    name: str
    ops: tuple[OpSupport, ...]
    never: tuple[str, ...] = ()
    op_by_op: bool = False
    activation_layout: str = "any"
    weight_layout: str = "HWIO"
    alignment: int = 1
    scratch_bytes: int | None = None
    isas: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the fields; each op has checked itself."""
        check_tuple("name", (self.name,), str, "the target's name")
        if not self.name.strip():
            raise TargetError("name: expected the target's name, got ''")
        check_tuple("ops", self.ops, OpSupport, "a tuple of OpSupport")
        names = [entry.op for entry in self.ops]
        twice = next((op for op in names if names.count(op) > 1), None)
        if twice is not None:
            raise TargetError(f"ops: {twice!r} stands twice; merge the two entries")
        for listed in ("isas", "extensions"):
            check_tuple(listed, getattr(self, listed), str, "a list of names")
        check_names("never", self.never, OPS)
        if not isinstance(cast("Any", self.op_by_op), bool):
            raise TargetError(f"op_by_op: expected true or false, got {brief(self.op_by_op)}")
        check_name("activation_layout", self.activation_layout, ACTIVATION_LAYOUTS)
        check_name("weight_layout", self.weight_layout, WEIGHT_LAYOUTS)
        if type(self.alignment) is not int or self.alignment not in ALIGNMENTS:
            raise TargetError(f"alignment: expected one of {', '.join(map(str, ALIGNMENTS))}, got {brief(self.alignment)}")
        scratch: object = self.scratch_bytes
        if scratch is not None and (type(scratch) is not int or scratch < 0):
            raise TargetError(f"scratch_bytes: expected a whole number of 0 or more, or null, got {brief(scratch)}")

    def support(self, op: str) -> OpSupport | None:
        """Return how `op` (a Relax op name, with or without "relax.") runs in integers, or None if it can't."""
        name = op.removeprefix("relax.")
        return None if name in self.never else next((entry for entry in self.ops if entry.op == name), None)

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `from_json` reads back."""
        own = {name: _plain(getattr(self, name)) for name in TargetDescription.__slots__ if name != "ops"}
        ops = [{name: _plain(getattr(entry, name)) for name in OpSupport.__slots__} for entry in self.ops]
        return {"schema_version": SCHEMA_VERSION, **own, "ops": ops}

    @staticmethod
    def from_json(data: Any) -> TargetDescription:
        """Read what `to_json` wrote, or a vendor: `defaults` hold fields of ops that each entry of `ops` may override.

        TargetError names the field that is missing, unknown or wrong.
        """
        if not isinstance(data, dict) or data.get("schema_version") not in READ_VERSIONS:
            raise TargetError(f"a target description is a JSON object with schema_version {SCHEMA_VERSION}")
        given = {name: value for name, value in data.items() if name != "defaults"}
        fields = _fields("target description", given, TargetDescription, ("name", "ops"), besides=("schema_version",))
        defaults, entries = data.get("defaults", {}), data["ops"]
        if not isinstance(entries, list):
            raise TargetError(f"ops: expected a list of objects, got {brief(entries)}")
        if not isinstance(defaults, dict) or "op" in defaults:
            raise TargetError(f"defaults: expected an object with fields of ops, `op` not among them, got {brief(defaults)}")
        # An op that no entry can name makes errors of the defaults their own.
        _op_support("defaults", {"op": OPS[0], **defaults})
        fields["ops"] = tuple(_op_support(f"ops[{index}]", _merged(defaults, entry)) for index, entry in enumerate(entries))
        return TargetDescription(**fields)

    @staticmethod
    def load(path: str | Path) -> TargetDescription:
        """Read a target description from a JSON file; TargetError names the file, the field and what it allows."""
        source = check_path(path, TargetError, "the path of a target description (JSON)")
        try:
            data = json.loads(source.read_text(encoding="utf-8"))
        except OSError as error:
            raise TargetError(f"{path}: cannot read the target description: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise TargetError(f"{path}: cannot read the target description: not JSON, or truncated ({error})") from error
        try:
            return TargetDescription.from_json(data)
        except TargetError as error:
            raise TargetError(f"{path}: {error}") from error


_CHOICES = {"weight_range": WEIGHT_RANGES, "scales": SCALES, "requantize": tuple(REQUANTIZE), "overflow": OVERFLOWS}
ALIGNMENTS = (1, 2, 4, 8, 16, 32, 64)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: entry.to_json() for name, entry in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _check_mapping(where: str, values: object, names: tuple[str, ...], kind: type) -> None:
    if not isinstance(values, Mapping):
        raise TargetError(f"{where}: expected an object by name ({', '.join(names)}), got {brief(values)}")
    for name, entry in values.items():
        check_name(where, name, names)
        if not isinstance(entry, kind):
            raise TargetError(f"{where}: {name}: expected a {kind.__name__}, got {brief(entry)}")


def _merged(defaults: dict[str, Any], entry: Any) -> Any:
    """Return an op's entry with what it leaves to the defaults; `tensors` and `limits` are merged name by name."""
    if not isinstance(entry, dict):
        return entry
    merged = {**defaults, **entry}
    for name in ("tensors", "limits"):
        if isinstance(defaults.get(name), dict) and isinstance(entry.get(name), dict):
            merged[name] = {**defaults[name], **entry[name]}
    return merged


def _fields(
    where: str, data: dict[str, Any], kind: Any, required: tuple[str, ...], besides: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the fields of a JSON object for a class, lists as tuples, once they are those that it has."""
    known = (*kind.__slots__, *besides)
    for name in data:
        check_name(f"{where}: field", name, known)
    for name in required:
        if name not in data:
            raise TargetError(f"{where}: field {name!r} is missing")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items() if name not in besides}


def _op_support(where: str, entry: Any) -> OpSupport:
    if not isinstance(entry, dict):
        raise TargetError(f"{where}: expected an object, got {brief(entry)}")
    try:
        fields = _fields("an op's", entry, OpSupport, ("op",))
        for name, kind in (("tensors", TensorSupport), ("limits", Limit)):
            if isinstance(fields.get(name), dict):
                fields[name] = {key: kind.from_json(f"{name}: {key}", value) for key, value in fields[name].items()}
        return OpSupport(**fields)
    except TargetError as error:
        raise TargetError(f"{where}: {error}") from error
