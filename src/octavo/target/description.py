"""TargetDescription: what hardware can compute in integers, as data that a vendor can write as a JSON file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import TargetError, check_path

Scheme = Literal["symmetric", "asymmetric"]
GranularityName = Literal["per_tensor", "per_axis"]
Rounding = Literal["half_even", "half_away", "half_up"]
SCHEMA_VERSION = 1
BATCH_MATMUL = "batch_matmul"
"""The `op` of hardware that multiplies two activations; "matmul" is the product with a constant matrix."""
ELEMENTWISE = "elementwise"
"""The `op` of hardware that computes any function of one tensor, element by element, from a table of 256 entries."""

ELEMENTWISE_PAIR = "elementwise_pair"
"""The `op` of hardware that computes any function of two tensors, or of one and a constant, from a table with rows of 256."""

COMPARE = "compare"
"""The `op` of hardware that compares two tensors, and combines booleans by and, or and not."""

SELECT = "select"
"""The `op` of hardware that chooses, element by element, between two tensors by a tensor of booleans."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpSupport:
    """How one op can run in integers.

    Parameters
    ----------
    op
        Relax op name without the "relax." prefix, e.g. "nn.conv2d", "matmul", "add"; `ELEMENTWISE` or
        `ELEMENTWISE_PAIR`, `BATCH_MATMUL`, `COMPARE`, `SELECT`.
    activations
        Dtypes allowed for its activation inputs and output, best first.
    weights
        Dtypes allowed for its constant operand; empty where it takes none.
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
        How results are rounded to integers.
    accumulator_bits
        Width of the accumulator, in bits.
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
    rounding: Rounding = "half_even"
    accumulator_bits: int = 32


def _op_support(entry: dict[str, Any]) -> OpSupport:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    return OpSupport(**values)


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetDescription:
    """A named set of integer ops and the instruction sets (ISAs) its kernels may use, best first.

    `extensions` are what its kernels may use on top of an ISA where the machine has it: "x86.avx512_bf16", products of bfloat16.
    """

    name: str
    ops: tuple[OpSupport, ...]
    isas: tuple[str, ...] = ("generic",)
    extensions: tuple[str, ...] = ()

    def support(self, op: str) -> OpSupport | None:
        """Return how `op` (a Relax op name, with or without "relax.") runs in integers, or None if it can't."""
        name = op.removeprefix("relax.")
        return next((entry for entry in self.ops if entry.op == name), None)

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `from_json` reads back."""
        ops = [{field: getattr(entry, field) for field in OpSupport.__slots__} for entry in self.ops]
        return {
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "isas": list(self.isas),
            "extensions": list(self.extensions),
            "ops": ops,
        }

    @staticmethod
    def from_json(data: Any) -> TargetDescription:
        """Read what `to_json` wrote; TargetError says what is missing or unknown."""
        if not isinstance(data, dict) or data.get("schema_version") != SCHEMA_VERSION:
            raise TargetError(f"a target description is a JSON object with schema_version {SCHEMA_VERSION}")
        try:
            ops = tuple(_op_support(entry) for entry in data["ops"])
            extensions = tuple(data.get("extensions", ()))
            return TargetDescription(name=str(data["name"]), ops=ops, isas=tuple(data["isas"]), extensions=extensions)
        except (KeyError, TypeError, AttributeError) as error:
            raise TargetError(f"target description: missing or unknown field: {error}") from error

    @staticmethod
    def load(path: str | Path) -> TargetDescription:
        """Read a target description from a JSON file."""
        source = check_path(path, TargetError, "the path of a target description (JSON)")
        try:
            return TargetDescription.from_json(json.loads(source.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise TargetError(f"{path}: cannot read the target description: {error}") from error
