"""ONNX Runtime's normalizations as standard ops: with what is added before, of embeddings, and by the root of the mean square.

Also those that ONNX Runtime writes into operator sets of ONNX that lack them.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx.helper

from ..frontend import RejectedOpError
from .standard_steps import Steps

_STATISTICS = "ONNX Runtime computes it in training alone; export the model for inference"


def _epsilon(r: Steps, default: float) -> float:
    return float(r.attrs.get("epsilon", default))


def _sum(r: Steps, bias_at: int) -> str:
    """Add what is skipped, and a bias; the sum is a result, too, where it is read."""
    r.refuse_outputs(1, 2, advice=_STATISTICS)
    total, bias = r.output(3), r.input(bias_at)
    value = r.emit("Add", [r.required(0, "input"), r.required(1, "skip")], to="" if bias else total)
    return r.emit("Add", [value, bias], to=total) if bias else value


def _skip_layer_norm(r: Steps) -> None:
    r.layer_norm(_sum(r, 4), r.required(2, "gamma"), r.input(3), _epsilon(r, 1e-12), to=r.output(0))


def _skip_rms_norm(r: Steps) -> None:
    r.rms_norm(_sum(r, 3), r.required(2, "gamma"), _epsilon(r, 1e-12), to=r.output(0))


def _rms_norm(r: Steps) -> None:
    x, axis = r.required(0, "X"), int(r.attrs.get("axis", -1))
    first = axis if axis < 0 else axis - r.rank(x)
    r.rms_norm(x, r.required(1, "scale"), _epsilon(r, 1e-5), axes=range(first, 0), to=r.output(0), inverse=r.output(1))


def _layer_norm_before_17(r: Steps) -> None:
    """Write LayerNormalization, which operator sets before 17 lack, in steps."""
    if int(r.attrs.get("axis", -1)) not in (-1, r.rank(r.required(0, "X")) - 1):
        raise RejectedOpError("its axis must be the last one in operator sets before 17; convert the model's version")
    r.refuse_outputs(1, 2, advice=_STATISTICS)
    r.layer_norm(r.required(0, "X"), r.required(1, "Scale"), r.input(2), _epsilon(r, 1e-5), to=r.output(0))


def _embeddings(r: Steps) -> None:
    """Normalize the sum of the embeddings of words, of positions and of segments; count the words that a mask leaves."""
    r.refuse_attributes("mask_index_type", advice="write the number of words to mask_index")
    ids = r.required(0, "input_ids")
    rows, segments = r.required(3, "position_embedding"), r.input(1)
    positions = r.emit("Gather", [rows, r.input(8)], axis=0) if r.input(8) else r.cut(rows, 0, 0, r.dim(ids, 1))
    words = r.emit("Gather", [r.required(2, "word_embedding"), ids], axis=0)
    total = r.emit("Add", [words, positions], to="" if segments else r.output(2))
    if segments:
        part = r.emit("Gather", [r.required(4, "segment_embedding"), segments], axis=0)
        total = r.emit("Add", [total, part], to=r.output(2))
    r.layer_norm(total, r.required(5, "gamma"), r.required(6, "beta"), _epsilon(r, 1e-12), to=r.output(0))
    if r.output(1) and r.input(7):
        r.ints("ReduceSum", r.input(7), "axes", [1], since=13, to=r.output(1), keepdims=0)
    elif r.output(1):
        zero = onnx.helper.make_tensor("zero", onnx.TensorProto.INT32, [1], [0])
        r.emit("ConstantOfShape", [r.dim(ids, 0)], to=r.output(1), value=zero)


REWRITES: dict[str, Callable[[Steps], None]] = {
    "EmbedLayerNormalization": _embeddings,
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_rms_norm,
}
"""How each op becomes standard ones."""

STANDARD_DOMAIN_REWRITES: dict[str, Callable[[Steps], None]] = {
    "LayerNormalization": _layer_norm_before_17,
    "SimplifiedLayerNormalization": _rms_norm,
}
"""Ops that ONNX Runtime knows in operator sets of ONNX that lack them."""
