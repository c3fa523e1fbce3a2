"""Rules of functions of single elements in float32: chains with exp, sigmoid, tanh or erf, and any between integers.

Other chains of floats are left to TVM, whose loops of them are as fast and fuse with more.
"""

from __future__ import annotations

from typing import Any

from tvm.relax import Var

from .....numerics import INTEGER_RANGE
from .....numerics.affine import TieRounding
from .....target import OpSupport
from .....target.vocabulary import HALF_EVEN
from ....composites.base import CompositeOp, QuantizedOutput, QuantizedTensor
from ....composites.elementwise import MixedElementwiseOp
from ....composites.float_ops import FloatElementwiseOp
from ....graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ....graph.rules import Region, Rejection
from ...rounding import fixed_point_of, rounding_of, tie_rounding
from ...tail import check_activation, unquantized
from ...values import constant_value, dequantized, params_of
from .float_chain import FloatChain, chain_from

_MAX_INPUTS = 4


def match_float_elementwise(view: DataflowView, core: Var) -> Region[CompositeOp] | Rejection:
    """Claim the chain around an op of single elements, from the first tensor that the op reads."""
    chain = _chain_around(view, core, has_channels=False)
    if isinstance(chain, Rejection):
        return chain
    if not chain.is_transcendental:
        return Rejection(reason=f"{core.name} is in no chain of float32 ops with exp, sigmoid, tanh or erf")
    op = FloatElementwiseOp(
        op=op_name(view.definition(core)), inputs=tuple(var.name for var in chain.inputs), function=chain.function
    )
    return Region(core=core, output=chain.output, members=chain.members, inputs=chain.inputs, op=op)


def match_mixed_elementwise(view: DataflowView, core: Var) -> Region[CompositeOp] | Rejection:
    """Claim the chain around an op with the dequantizes that it reads, and the quantize of its result.

    Before::

        b = R.dequantize(b_q, ...); lv = R.add(a, b); lv1 = R.nn.relu(lv); y = R.quantize(lv1, ...)

    After: one composite "octavo.mixed_elementwise" from a and b_q to y.
    """
    unread = Rejection(reason=f"{core.name} reads no integers, and its result becomes none")
    if view.ops.isdisjoint(("quantize", "dequantize")):  # a float model: its chains need not be looked for
        return unread
    chain = _chain_around(view, core, has_channels=True)
    if isinstance(chain, Rejection):
        return chain
    read = {var: side for var in chain.inputs if (side := _integers(view, var)) is not None}
    end = quantized_behind(view, chain.output)
    if not read and end is None:
        return unread
    sources = [read[var][0] if var in read else var for var in chain.inputs]
    op = MixedElementwiseOp(
        op=op_name(view.definition(core)),
        inputs=tuple(var.name for var in sources),
        integers=tuple(tensor for _, tensor in read.values()),
        function=chain.function,
        channels=chain.channels,
        axis=chain.axis,
        y=None if end is None else end[1],
        name=chain.output.name,
        rounding="half_even" if end is None else end[2],
    )
    output = chain.output if end is None else end[0]
    members = tuple(dict.fromkeys((*read, *chain.members, output)))
    return Region(core=core, output=output, members=members, inputs=tuple(dict.fromkeys(sources)), op=op)


def match_mixed_add(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim quantize(clamp(a + dequantize(b))) of a float32 `a`, or of two, where the target adds such."""
    call: Any = view.definition(core)
    real = next((arg for arg in call.args if dequantized(view, arg) is None), call.args[0])
    if not support.float_input:
        return unquantized(real)
    region = match_mixed_elementwise(view, core)
    if isinstance(region, Rejection):
        return region
    assert isinstance(region.op, MixedElementwiseOp)
    if region.op.y is None:
        return Rejection(reason=f"its result {region.op.name} is read in float; quantize it")
    tensors = (*region.op.integers, region.op.y.tensor)
    problems = (check_activation(tensor.name, tensor.params, support) for tensor in tensors)
    return next((each for each in problems if each is not None), region)


def _chain_around(view: DataflowView, core: Var, *, has_channels: bool) -> FloatChain | Rejection:
    call = view.definition(core)
    operands = [arg for arg in getattr(call, "args", ()) if isinstance(arg, Var) and constant_value(view, arg) is None]
    shape = static_shape(core)
    if shape is None or 0 in shape:
        return Rejection(reason=f"{core.name} has no static shape")
    # The operand that is there last: the others are inputs beside it.
    ordered = sorted(operands, key=lambda arg: sum(view.is_bound_before(each, arg) for each in operands))
    chain = chain_from(view, ordered[-1], max_inputs=_MAX_INPUTS, core=core, has_channels=has_channels) if ordered else None
    return Rejection(reason=f"{core.name} is in no chain of float32 ops of one shape") if chain is None else chain


def _integers(view: DataflowView, var: Var) -> tuple[Var, QuantizedTensor] | None:
    """Return the integers that an input is dequantized from; None where it is float, a constant, or has scales along an axis."""
    side, shape = dequantized(view, var), static_shape(var)
    if side is None or shape is None or not isinstance(side.source, Var) or side.params.scale.ndim:
        return None
    if side.params.dtype not in INTEGER_RANGE or rounding_of(view.definition(var)) != HALF_EVEN:
        return None
    return side.source, QuantizedTensor(name=side.source.name, shape=shape, params=side.params)


def quantized_behind(view: DataflowView, var: Var) -> tuple[Var, QuantizedOutput, TieRounding] | None:
    """Return the quantize that alone reads a float result; None where there is none that is computed in float32."""
    user, shape = view.only_user(var), static_shape(var)
    call = None if user is None else call_to(view.definition(user), "quantize")
    params = None if call is None or user is None else params_of(call, dtype_of(user))
    if user is None or call is None or params is None or shape is None or params.scale.ndim or fixed_point_of(call) is not None:
        return None
    tensor = QuantizedTensor(name=user.name, shape=shape, params=params)
    return user, QuantizedOutput(tensor=tensor, qmin=params.qmin, qmax=params.qmax), tie_rounding(rounding_of(call))
