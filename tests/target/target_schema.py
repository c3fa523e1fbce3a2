"""The JSON Schema of a target description's file, made from the names that the checks use. It checks nothing itself.

What depends on several fields at once, on `defaults` among them, only `TargetDescription.from_json` knows: `one_of` without a
number that the other fields allow, a rounding that is not of the `requantize`, scales beside "shift", an op that stands twice.
"""

from __future__ import annotations

from typing import Any

from octavo.target.description import ALIGNMENTS, READ_VERSIONS
from octavo.target.limits import LIMITS
from octavo.target.tensor_support import DTYPES
from octavo.target.vocabulary import (
    ACTIVATION_DTYPES,
    ACTIVATION_LAYOUTS,
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
)

Schema = dict[str, Any]


def json_schema() -> Schema:
    """Return the schema (draft 2020-12) of the file that `TargetDescription.load` reads."""
    op = _op_fields()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Target description",
        "description": "What hardware computes in integers, and how: read by octavo.TargetDescription.load; see targets.md.",
        **_object(
            {
                "schema_version": {"enum": list(READ_VERSIONS)},
                "name": {"type": "string", "pattern": r"\S"},
                "defaults": {"$ref": "#/$defs/defaults"},
                "ops": {"type": "array", "items": {"$ref": "#/$defs/op"}},
                "never": _names(OPS),
                "op_by_op": {"type": "boolean"},
                "activation_layout": _name(ACTIVATION_LAYOUTS),
                "weight_layout": _name(WEIGHT_LAYOUTS),
                "alignment": {"enum": list(ALIGNMENTS)},
                "scratch_bytes": _or_null(_integer(0)),
                "isas": {"type": "array", "items": {"type": "string"}},
                "extensions": {"type": "array", "items": {"type": "string"}},
            },
            required=("schema_version", "name", "ops"),
        ),
        "$defs": {
            "defaults": _object(op),
            "op": _object({"op": _name(OPS), **op}, required=("op",)),
            "tensor": _object(_tensor_fields()),
            "limit": {"anyOf": [_integer(0), _object(_limit_fields())]},
        },
    }


def _op_fields() -> Schema:
    roundings = [*dict.fromkeys(name for names in REQUANTIZE.values() for name in names)]
    return {
        "activations": _names(ACTIVATION_DTYPES, minimum=1),
        "activation_schemes": _names(SCHEMES, minimum=1),
        "weights": _names(WEIGHT_DTYPES),
        "weight_schemes": _names(SCHEMES, minimum=1),
        "weight_granularity": _names(GRANULARITIES, minimum=1),
        "weight_blocks": {"type": "array", "items": {"enum": list(WEIGHT_BLOCKS)}},
        "weight_range": _name(WEIGHT_RANGES),
        "scales": _name(SCALES),
        "fusions": _names(FUSIONS),
        "same_params": {"type": "boolean"},
        "float_output": {"type": "boolean"},
        "sum_output": {"type": "boolean"},
        "float_input": {"type": "boolean"},
        "per_row_input": {"type": "boolean"},
        "requantize": _name(REQUANTIZE),
        "rounding": {"anyOf": [_name(("", *roundings)), _names(roundings, minimum=1)]},
        "accumulator_bits": _integer(MIN_ACCUMULATOR_BITS, MAX_ACCUMULATOR_BITS),
        "wide_accumulator_bits": _integer(MIN_ACCUMULATOR_BITS, MAX_ACCUMULATOR_BITS),
        "overflow": _name(OVERFLOWS),
        "tensors": _object({role: {"$ref": "#/$defs/tensor"} for role in ROLES}),
        "limits": _object({name: {"$ref": "#/$defs/limit", "description": said} for name, said in LIMITS.items()}),
    }


def _tensor_fields() -> Schema:
    return {
        "dtypes": _or_null(_names(DTYPES, minimum=1)),
        "schemes": _or_null(_names(SCHEMES, minimum=1)),
        "granularity": _or_null(_names(GRANULARITIES, minimum=1)),
        "scales": _or_null(_name(SCALES)),
        "scale": _or_null({"type": "number", "exclusiveMinimum": 0}),
        "zero_point": _or_null({"type": "integer"}),
    }


def _limit_fields() -> Schema:
    return {
        "minimum": _or_null(_integer(0)),
        "maximum": _or_null(_integer(0)),
        "multiple_of": _integer(1),
        "one_of": {"type": "array", "items": _integer(0)},
    }


def _object(properties: Schema, required: tuple[str, ...] = ()) -> Schema:
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "properties": properties, **needed, "additionalProperties": False}


def _name(allowed: Any) -> Schema:
    return {"enum": list(allowed)}


def _names(allowed: Any, minimum: int = 0) -> Schema:
    at_least = {"minItems": minimum} if minimum else {}
    return {"type": "array", "items": _name(allowed), **at_least, "uniqueItems": True}


def _integer(minimum: int, maximum: int | None = None) -> Schema:
    return {"type": "integer", "minimum": minimum, **({} if maximum is None else {"maximum": maximum})}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}
