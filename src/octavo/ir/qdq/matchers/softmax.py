"""Rule of softmax and its logarithm; rows that do not lie together are brought so, by our layout or a transposition."""

from __future__ import annotations

import numpy as np
from tvm.relax import Expr, Var

from ....numerics import LOG_SOFTMAX_MIN_SCALE, SOFTMAX_MAX_COLUMNS
from ....target import OpSupport
from ....target.vocabulary import INTEGER_INVERSE_SCALE
from ...composites.base import CompositeOp, QuantizedTensor
from ...composites.normalization import SoftmaxOp
from ...graph.dataflow import DataflowView, call_to, static_shape
from ...graph.rules import Region, Rejection
from ..rounding import is_fixed_point, result_rounding
from ..tail import check_activation, follow_to_quantize, of_width
from ..values import Dequantized, dequantized, numpy_constant


def match_softmax(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim quantize(softmax(dequantize(x))), or quantize(log_softmax(...)), or of a positive constant times dequantize(x)."""
    call = call_to(view.definition(core), "nn.softmax", "nn.log_softmax")
    assert call is not None
    found = _source(view, call.args[0])
    if isinstance(found, Rejection):
        return found
    x, beta, members = found
    shape = static_shape(x.source)
    if not isinstance(x.source, Var) or shape is None:
        return Rejection(reason=f"the input of {core.name} is a constant, or its shape is not static")
    axis = int(call.attrs.axis) % len(shape)
    if shape[axis] > SOFTMAX_MAX_COLUMNS:
        return Rejection(reason=f"its rows hold {shape[axis]} values; the kernel takes {SOFTMAX_MAX_COLUMNS}")
    problem = check_activation(x.source.name, x.params, support)
    if problem is not None:
        return problem
    tail = follow_to_quantize(view, core, of_width(support, x.params))
    if isinstance(tail, Rejection):
        return tail
    is_log = call_to(call, "nn.log_softmax") is not None
    if is_log and float(tail.result.tensor.params.scale) < LOG_SOFTMAX_MIN_SCALE:
        return Rejection(reason=f"its result has steps of {float(tail.result.tensor.params.scale)}, too small for the kernel")
    source = QuantizedTensor(name=x.source.name, shape=shape, params=x.params)
    # A factor in between keeps a softmax from the kernels that round otherwise.
    rounding = "half_even" if is_log or beta != 1.0 else result_rounding(view, tail.members, (INTEGER_INVERSE_SCALE,))
    if source.kernel_dtype == "int16":
        rounding = "fixed_point" if is_fixed_point(result_rounding(view, tail.members)) else "half_even"
        y = tail.result.tensor
        if rounding == "fixed_point" and (float(y.params.scale) != 1 / 32768 or y.zero_point != 0):
            return Rejection(reason="its result has another scale than 1 / 32768, or a zero point")
    op = SoftmaxOp(x=source, y=tail.result, axis=axis, beta=beta, is_log=is_log, rounding=rounding)
    return Region(
        core=core,
        output=tail.output,
        members=(*members, core, *tail.members),
        inputs=(x.source,),
        op=op,
    )


def _source(view: DataflowView, arg: Expr) -> tuple[Dequantized, float, tuple[Var, ...]] | Rejection:
    """Return what is dequantized, the factor beta, and the variables between (in order)."""
    name = getattr(arg, "name", "constant")
    x, beta = dequantized(view, arg), 1.0
    members: tuple[Var, ...] = ()
    scaled = call_to(view.definition(arg), "multiply")
    if scaled is not None:
        sides = [(dequantized(view, a), numpy_constant(view.definition(b))) for a, b in (scaled.args, scaled.args[::-1])]
        x, factor = next(((a, b) for a, b in sides if a is not None and b is not None and b.size == 1), (None, None))
        var = view.binding_of(arg)
        beta = float(np.asarray(factor).reshape(())) if factor is not None else 0.0
        members = () if var is None else (var,)
    if x is None:
        return Rejection(reason=f"input {name} is float; quantize and dequantize it (constant scale) before this op")
    if not beta > 0.0:
        return Rejection(reason=f"its input is multiplied by {beta}; the kernel takes positive factors")
    return x, beta, (*(() if x.var is None else (x.var,)), *members)
