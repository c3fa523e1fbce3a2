"""Rule of float32 functions of single elements: chains with exp, sigmoid, tanh or erf, in a kernel of our own.

Chains of other ops are left to TVM, whose loops of them are as fast and fuse with more.
"""

from __future__ import annotations

from tvm.relax import Var

from ...composites.base import CompositeOp
from ...composites.float_ops import FloatElementwiseOp
from ...graph.dataflow import DataflowView, op_name, static_shape
from ...graph.rules import Region, Rejection
from ..values import constant_value
from .float_chain import chain_from

_MAX_INPUTS = 4


def match_float_elementwise(view: DataflowView, core: Var) -> Region[CompositeOp] | Rejection:
    """Claim the chain around an op of single elements, from the first tensor that the op reads."""
    call = view.definition(core)
    operands = [arg for arg in getattr(call, "args", ()) if isinstance(arg, Var) and constant_value(view, arg) is None]
    shape = static_shape(core)
    if shape is None or 0 in shape:
        return Rejection(reason=f"{core.name} has no static shape")
    # The operand that is there last: the others are inputs beside it.
    operands.sort(key=lambda arg: sum(view.is_bound_before(other, arg) for other in operands))
    chain = chain_from(view, operands[-1], max_inputs=_MAX_INPUTS, core=core) if operands else None
    if chain is None or not chain.is_transcendental:
        return Rejection(reason=f"{core.name} is in no chain of float32 ops with exp, sigmoid, tanh or erf")
    op = FloatElementwiseOp(op=op_name(call), inputs=tuple(var.name for var in chain.inputs), function=chain.function)
    return Region(core=core, output=chain.output, members=chain.members, inputs=chain.inputs, op=op)
