"""Rule of float32 functions of single elements: chains with exp, sigmoid, tanh or erf, in a kernel of our own.

Chains of other ops are left to TVM, whose loops of them are as fast and fuse with more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm.relax import Var

from .. import kernels
from ..graph.dataflow import DataflowView, op_name, static_shape
from ..graph.rules import Region, Rejection
from ..kernels import FloatElementwiseSpec
from ..numerics.floats.float_function import FloatFunction
from .context import KernelContext, shape_of
from .float_chain import chain_from
from .forms import FloatOp
from .values import constant_value

_MOST_INPUTS = 4


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatElementwiseForm(FloatOp):
    """function(x, ...) of tensors of one shape."""

    inputs: tuple[str, ...]
    function: FloatFunction

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        tensors = [inputs[name] for name in self.inputs]
        is_nhwc = any(context.storage.is_kept_nhwc(tensor) for tensor in tensors)
        arguments = [context.storage.get(tensor, is_nhwc=is_nhwc) for tensor in tensors]
        shape = shape_of(arguments[0])
        spec = FloatElementwiseSpec(size=math.prod(shape), function=self.function, threads=context.threads)
        kernel = kernels.float_elementwise(spec, isa=context.isa)
        context.put(output, context.call(output.name, kernel, arguments, shape, "float32"), is_nhwc=is_nhwc)


def match_float_elementwise(view: DataflowView, core: Var) -> Region | Rejection:
    """Claim the chain around an op of single elements, from the first tensor that the op reads."""
    call = view.definition(core)
    operands = [arg for arg in getattr(call, "args", ()) if isinstance(arg, Var) and constant_value(view, arg) is None]
    shape = static_shape(core)
    if shape is None or 0 in shape:
        return Rejection(reason=f"{core.name} has no static shape")
    # The operand that is there last: the others are inputs beside it.
    operands.sort(key=lambda arg: sum(view.is_bound_before(other, arg) for other in operands))
    chain = chain_from(view, operands[-1], most_inputs=_MOST_INPUTS, core=core) if operands else None
    if chain is None or not chain.is_transcendental:
        return Rejection(reason=f"{core.name} is in no chain of float32 ops with exp, sigmoid, tanh or erf")
    form = FloatElementwiseForm(op=op_name(call), inputs=tuple(var.name for var in chain.inputs), function=chain.function)
    return Region(core=core, output=chain.output, members=chain.members, inputs=chain.inputs, attrs={}, form=form)
