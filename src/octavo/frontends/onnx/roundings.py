"""How a file's QuantizeLinears and recurrent ops round: as ONNX Runtime does, or as the file's metadata says. It rounds nothing.

ONNX has no word for a rounding, and that of a model which was quantized for other hardware, or for Octavo's own kernels, differs
in ties. `export_onnx` writes it where it is not what is assumed here, so that the file loaded again is the model. No other
runtime reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import onnx

from ...errors import ModelError
from ...target.vocabulary import FLOAT32, HALF_EVEN, HALF_EVEN_STORED, INTEGER_INVERSE_SCALE, RECURRENT_STATE, ROUNDINGS

METADATA_KEY = "octavo.roundings"
_BY_OP = {
    "add": HALF_EVEN_STORED,
    "multiply": HALF_EVEN_STORED,
    "nn.avg_pool2d": FLOAT32,
    "image.resize2d": FLOAT32,
}
"""How ONNX Runtime rounds results that it does not round half to even about the zero point, by the Relax op."""
_BY_INTEGER_OP = {**_BY_OP, "nn.softmax": INTEGER_INVERSE_SCALE}
"""The same of its integer ops, where a file has these."""


def assumed_rounding(op: str, *, is_qdq: bool = True) -> str:
    """Return the rounding of an op's result, by its Relax name, in a file that says none.

    `is_qdq`: float ops stand between Q and DQ, which are computed one by one.
    """
    return (_BY_OP if is_qdq else _BY_INTEGER_OP).get(op, HALF_EVEN)


def roundings_metadata(found: Mapping[str, str]) -> str:
    """Return the metadata of roundings by the outputs of QuantizeLinears, and the first ones of recurrent ops."""
    return json.dumps(dict(found), separators=(",", ":"))


def roundings_in(proto: onnx.ModelProto) -> Mapping[str, str]:
    """Return what a file's metadata says; ModelError where it is not what `roundings_metadata` writes."""
    text = next((each.value for each in proto.metadata_props if each.key == METADATA_KEY), "{}")
    try:
        found: object = json.loads(text)
    except ValueError as error:
        raise ModelError(f"the file's metadata {METADATA_KEY} is no JSON: {error}; remove it") from error
    if not isinstance(found, dict):
        raise ModelError(f"the file's metadata {METADATA_KEY} must map tensors to roundings; remove it")
    unknown = next(((name, word) for name, word in found.items() if word not in (*ROUNDINGS, RECURRENT_STATE)), None)
    if unknown is not None:
        raise ModelError(
            f"the file's metadata {METADATA_KEY} says {unknown[1]!r} of {unknown[0]!r}: it is none of {', '.join(ROUNDINGS)}"
        )
    return found
