"""Rules of the edges of integer regions: a quantize of a float tensor, a dequantize for a float reader."""

from __future__ import annotations

from tvm.relax import Var

from ....target import OpSupport
from ...composites.base import CompositeOp, QuantizedOutput, QuantizedTensor
from ...composites.movement import DequantizeOp, QuantizeOp
from ...graph.dataflow import DataflowView, call_to, dtype_of, static_shape
from ...graph.rules import Region, Rejection
from ..rounding import fixed_point_of, rounding_of, tie_rounding
from ..tail import check_activation, integer_clamp
from ..values import params_of


def match_quantize(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim a quantize whose input stays float."""
    call = call_to(view.definition(core), "quantize")
    assert call is not None
    source, shape = call.args[0], static_shape(core)
    params = params_of(call, dtype_of(core))
    if not isinstance(source, Var) or shape is None or params is None or dtype_of(source) != "float32":
        return Rejection(reason=f"{core.name}: needs a float32 variable of static shape and constant scale and zero point")
    problem = check_activation(core.name, params, support)
    if problem is not None:
        return problem
    output, qmin, qmax = integer_clamp(view, core, params.qmin, params.qmax)
    if (qmin, qmax) != (params.qmin, params.qmax):
        output, qmin, qmax = core, params.qmin, params.qmax
    tensor = QuantizedTensor(name=output.name, shape=shape, params=params)
    result = QuantizedOutput(tensor=tensor, qmin=qmin, qmax=qmax, fixed_point=fixed_point_of(call))
    op = QuantizeOp(source=source.name, y=result, rounding=tie_rounding(rounding_of(call)))
    members = (core,) if output.same_as(core) else (core, output)
    return Region(core=core, output=output, members=members, inputs=(source,), op=op)


def match_dequantize(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim a dequantize that float ops or the caller read."""
    call = call_to(view.definition(core), "dequantize")
    assert call is not None
    source, shape = call.args[0], static_shape(core)
    params = params_of(call, dtype_of(source))
    if not isinstance(source, Var) or shape is None or params is None or dtype_of(core) != "float32":
        return Rejection(reason=f"{core.name}: needs an integer variable of static shape and constant scale and zero point")
    problem = check_activation(source.name, params, support)
    if problem is not None:
        return problem
    op = DequantizeOp(x=QuantizedTensor(name=source.name, shape=shape, params=params), result=core.name)
    return Region(core=core, output=core, members=(core,), inputs=(source,), op=op)
