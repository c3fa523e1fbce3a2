"""TargetDescription: what hardware can compute in integers, as data that a vendor can write as a JSON file.

It is checked as it is made: a name that `vocabulary` lacks would otherwise match no op, and everything would stay float.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import TargetError, brief, check_path
from .vocabulary import (
    ACTIVATION_DTYPES,
    FUSIONS,
    GRANULARITIES,
    HALF_EVEN,
    MAX_ACCUMULATOR_BITS,
    MIN_ACCUMULATOR_BITS,
    OPS,
    ROUNDINGS,
    SCHEMES,
    WEIGHT_DTYPES,
    GranularityName,
    Scheme,
    check_name,
    check_names,
    check_tuple,
)

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class OpSupport:
    """How one op can run in integers.

    Parameters
    ----------
    op
        One of `vocabulary.OPS`: a Relax op name without "relax.", e.g. "nn.conv2d", "matmul", "add"; or `ELEMENTWISE`,
        `ELEMENTWISE_PAIR`, `BATCH_MATMUL`, `COMPARE`, `SELECT`.
    activations
        Dtypes allowed for its activation inputs and output, best first: "uint8", "int8", "uint16", "int16".
    weights
        Dtypes allowed for its constant operand, those of activations or "int4"; empty where it takes none.
    weight_schemes, weight_granularity
        What its weights may be.
    fusions
        Ops that may follow within the same kernel: "bias", "nn.relu", "clip".
    same_params
        Whether output and inputs must share scale and zero point (reshape, max pooling).
    float_output
        Whether an integer op with weights may leave its result in float32, scaled and not quantized.
    sum_output
        Whether such an op may leave the int32 sums of its products as they are.
    rounding
        How its results can be rounded to integers, best first; one name where there is one. Names of `vocabulary.ROUNDINGS`.
    accumulator_bits
        Width of the accumulator, in bits, of products of 8-bit activations: 16 to 64.
    wide_accumulator_bits
        That of products of 16-bit activations.

    Raises
    ------
    TargetError
        A field holds what it does not allow; the message names the op, the field and what is allowed.
    """

    op: str
    activations: tuple[str, ...] = ("uint8", "int8")
    weights: tuple[str, ...] = ()
    weight_schemes: tuple[Scheme, ...] = ("symmetric", "asymmetric")
    weight_granularity: tuple[GranularityName, ...] = ("per_tensor", "per_axis")
    fusions: tuple[str, ...] = ()
    same_params: bool = False
    float_output: bool = False
    sum_output: bool = False
    rounding: str | tuple[str, ...] = HALF_EVEN
    accumulator_bits: int = 32
    wide_accumulator_bits: int = 64

    def __post_init__(self) -> None:
        """Check every field against the vocabulary."""
        check_name("op", self.op, OPS)
        where = f"op {self.op!r}"
        check_names(f"{where}: activations", self.activations, ACTIVATION_DTYPES, minimum=1)
        check_names(f"{where}: weights", self.weights, WEIGHT_DTYPES)
        check_names(f"{where}: weight_schemes", self.weight_schemes, SCHEMES, minimum=1)
        check_names(f"{where}: weight_granularity", self.weight_granularity, GRANULARITIES, minimum=1)
        check_names(f"{where}: fusions", self.fusions, FUSIONS)
        check_names(f"{where}: rounding", self.roundings, tuple(ROUNDINGS), minimum=1)
        for field in ("same_params", "float_output", "sum_output"):
            if not isinstance(getattr(self, field), bool):
                raise TargetError(f"{where}: {field}: expected true or false, got {brief(getattr(self, field))}")
        for field in ("accumulator_bits", "wide_accumulator_bits"):
            bits: object = getattr(self, field)
            if type(bits) is not int or not MIN_ACCUMULATOR_BITS <= bits <= MAX_ACCUMULATOR_BITS:
                allowed = f"expected a whole number from {MIN_ACCUMULATOR_BITS} to {MAX_ACCUMULATOR_BITS}"
                raise TargetError(f"{where}: {field}: {allowed}, got {brief(bits)}")

    @property
    def roundings(self) -> tuple[str, ...]:
        """`rounding` as a tuple, best first."""
        return (self.rounding,) if isinstance(self.rounding, str) else self.rounding

    def bits_of(self, dtype: str) -> int:
        """Return the width of the accumulator of products of activations of a dtype."""
        return self.wide_accumulator_bits if dtype in ("int16", "uint16") else self.accumulator_bits


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetDescription:
    """A named set of integer ops.

    `isas` are the instruction sets that kernels of this machine may use for it, best first, by their back end's names; none: all
    that the machine has. `extensions` likewise, what they may use on top of an ISA where the machine has it.

    Raises
    ------
    TargetError
        A field holds what it does not allow, or an op stands twice.
    """

    name: str
    ops: tuple[OpSupport, ...]
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
        for field in ("isas", "extensions"):
            check_tuple(field, getattr(self, field), str, "a list of names")

    def support(self, op: str) -> OpSupport | None:
        """Return how `op` (a Relax op name, with or without "relax.") runs in integers, or None if it can't."""
        name = op.removeprefix("relax.")
        return next((entry for entry in self.ops if entry.op == name), None)

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `from_json` reads back."""
        ops = [{field: _plain(getattr(entry, field)) for field in OpSupport.__slots__} for entry in self.ops]
        return {
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "isas": list(self.isas),
            "extensions": list(self.extensions),
            "ops": ops,
        }

    @staticmethod
    def from_json(data: Any) -> TargetDescription:
        """Read what `to_json` wrote; TargetError names the field that is missing, unknown or wrong."""
        if not isinstance(data, dict) or data.get("schema_version") != SCHEMA_VERSION:
            raise TargetError(f"a target description is a JSON object with schema_version {SCHEMA_VERSION}")
        fields = _fields("target description", data, TargetDescription, ("name", "ops"), besides=("schema_version",))
        entries = data["ops"]
        if not isinstance(entries, list):
            raise TargetError(f"ops: expected a list of objects, got {brief(entries)}")
        fields["ops"] = tuple(_op_support(index, entry) for index, entry in enumerate(entries))
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


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _fields(
    where: str, data: dict[str, Any], kind: Any, required: tuple[str, ...], besides: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the fields of a JSON object for a class, lists as tuples, once they are those that it has."""
    known = (*kind.__slots__, *besides)
    for field in data:
        check_name(f"{where}: field", field, known)
    for field in required:
        if field not in data:
            raise TargetError(f"{where}: field {field!r} is missing")
    return {field: tuple(value) if isinstance(value, list) else value for field, value in data.items() if field not in besides}


def _op_support(index: int, entry: Any) -> OpSupport:
    if not isinstance(entry, dict):
        raise TargetError(f"ops[{index}]: expected an object, got {brief(entry)}")
    try:
        return OpSupport(**_fields("an op's", entry, OpSupport, ("op",)))
    except TargetError as error:
        raise TargetError(f"ops[{index}]: {error}") from error
