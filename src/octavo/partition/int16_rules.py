"""Which rules take the ops of int16 tensors: those of 8-bit tensors hand over to these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tvm import relax
from tvm.relax import Expr, Var

from ..graph.dataflow import DataflowView, call_to, dtype_of
from ..graph.rules import Region, Rejection
from ..ops import CLAMPS
from ..qdq.matchers.edge import match_dequantize, match_quantize
from ..qdq.matchers.gather import match_gather
from ..qdq.matchers.int16_batch_matmul import match_int16_batch_matmul
from ..qdq.matchers.int16_forms import (
    Matcher,
    match_int16_concat,
    match_int16_pairwise,
    match_int16_pool2d,
    match_int16_reduce,
    match_int16_softmax,
)
from ..qdq.matchers.int16_lookup import match_int16_lookup, match_int16_move
from ..qdq.matchers.int16_prelu import match_int16_prelu
from ..qdq.matchers.int16_resize import match_int16_resize
from ..qdq.matchers.int16_weighted import match_int16_conv2d, match_int16_matmul
from ..qdq.matchers.select import match_select
from ..qdq.matchers.take import match_take
from ..qdq.matchers.topk import match_topk
from ..qdq.matchers.truth import match_compare
from ..qdq.values import dequantized
from ..target import OpSupport


def _match_int16_gather(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    return _as_it_is(match_gather(view, core, support))


def _match_int16_take(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    return _as_it_is(match_take(view, core, support))


def _as_it_is(found: Region | Rejection) -> Region | Rejection:
    if isinstance(found, Region) and found.form.x.params != found.form.y.tensor.params:
        return Rejection(reason=f"it moves int16 values and changes scale, zero point or dtype of {found.form.x.name} at once")
    return found


_RULES: Mapping[str, Matcher] = {
    "octavo.conv2d": match_int16_conv2d,
    "octavo.matmul": match_int16_matmul,
    "octavo.batch_matmul": match_int16_batch_matmul,
    "octavo.add": match_int16_pairwise,
    "octavo.sub": match_int16_pairwise,
    "octavo.mul": match_int16_pairwise,
    "octavo.max": match_int16_pairwise,
    "octavo.min": match_int16_pairwise,
    "octavo.pool2d": match_int16_pool2d,
    "octavo.reduce": match_int16_reduce,
    "octavo.softmax": match_int16_softmax,
    "octavo.concat": match_int16_concat,
    "octavo.move": match_int16_move,
    "octavo.gather": _match_int16_gather,
    "octavo.take": _match_int16_take,
    "octavo.topk": match_topk,
    "octavo.resize": match_int16_resize,
    "octavo.lookup": match_int16_lookup,
    "octavo.pair_lookup": match_int16_prelu,
    "octavo.compare": match_compare,
    "octavo.select": match_select,
    "octavo.quantize": match_quantize,
    "octavo.dequantize": match_dequantize,
}
"""Composite -> its rule over int16 tensors."""


_WIDE = ("int16", "uint16")


_LOOKED_THROUGH = ("nn.pad", "multiply", *CLAMPS)


_DEPTH = 4


def by_width(composite: str, matcher: Matcher) -> Matcher:
    """Return the rule that hands ops of int16 tensors to the one for them, and all others to `matcher`."""

    def match(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
        if not _reads_int16(view, core, _DEPTH) and dtype_of(core) not in _WIDE:
            narrow = tuple(dtype for dtype in support.activations if dtype not in _WIDE)
            return matcher(view, core, replace(support, activations=narrow))
        wide = _RULES.get(composite)
        if wide is None:
            return Rejection(reason=f"{composite.removeprefix('octavo.')} has no 16-bit kernel")
        return wide(view, core, support)

    return match


def _reads_int16(view: DataflowView, expr: Expr, depth: int) -> bool:
    """Return whether a value is computed from int16 integers, looking through what stands before an op's dequantize."""
    value = view.definition(expr)
    if isinstance(value, relax.Tuple):
        return any(_reads_int16(view, field, depth) for field in value.fields)
    if not isinstance(value, relax.Call):
        return False
    for arg in value.args:
        if not isinstance(getattr(arg, "ty", None), (relax.TensorType, relax.TupleType)):
            continue
        if isinstance(arg.ty, relax.TensorType) and dtype_of(arg) in _WIDE:
            return True
        x = dequantized(view, arg)
        if x is not None:
            if x.params.dtype in _WIDE:
                return True
            continue
        inner = view.definition(arg)
        if depth and (isinstance(inner, relax.Tuple) or call_to(inner, *_LOOKED_THROUGH) is not None):
            found = _reads_int16(view, arg, depth - 1)
            if found:
                return True
    return False
