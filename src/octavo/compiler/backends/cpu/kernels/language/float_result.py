"""float32 results of int32 accumulators in TIR: the kernels' counterpart of `numerics.dequantize_accumulator`, bit for bit.

One text serves every ISA and every number of lanes. Parameters of an input that was quantized at run time lie in a buffer
float32 [scales, 2]: scale, zero point (of the uint8 integers, an integer in [0; 255]).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm.script.ir_builder import tirx as B

from ......ir.composites.outputs import FloatOutput, FunctionOutput
from .float_function import ElementMath
from .rounding import scaled, unfused
from .vectors import Buffer, Expr, intrinsic, splat, vector_type


def input_scale(parameters: Buffer, index: Expr) -> Expr:
    """Return the scale of the input."""
    return parameters[2 * index]


def input_zero_point(parameters: Buffer, index: Expr) -> Expr:
    """Return the zero point of the input, int32."""
    return parameters[2 * index + 1].astype("int32")


def float_result(output: FloatOutput, acc: Expr, multiplier: Expr, bias: Expr, scale: Expr | None, lanes: int) -> Expr:
    """Return float32(acc) * scale * multiplier + bias, clamped, of an int32 vector; `scale` is one number, None for 1."""
    dtype = vector_type("float32", lanes)
    if output.rounding == "stepwise":
        factor = multiplier if scale is None else splat(scale, lanes) * multiplier
        value = unfused(acc.astype(dtype) * factor, lanes) + bias
    elif scale is None:
        value = scaled(acc, multiplier, bias, lanes)
    else:
        value = intrinsic("llvm.fma", dtype, acc.astype(dtype) * splat(scale, lanes), multiplier, bias)
    # The bound comes first: a comparison with NaN is false, and the value stays what it is.
    if not math.isinf(output.low):
        value, low = B.Bind(value), splat(B.float32(output.low), lanes)
        value = B.Select(low > value, low, value)
    if not math.isinf(output.high):
        value, high = B.Bind(value), splat(B.float32(output.high), lanes)
        value = B.Select(high < value, high, value)
    return value


def function_value(output: FunctionOutput, value: Expr, channels: Sequence[Expr], lanes: int) -> Expr:
    """Return the function of a float32 vector and what it reads of its channels."""
    math = ElementMath(lanes)
    return math.apply(output.function, [math.keep(value), *channels])


def in_steps(output: FunctionOutput, value: Expr, factor: Expr | None, lanes: int) -> Expr:
    """Return a function's float32 vector in steps of the result, to be rounded; `factor` where channels have their own."""
    return ElementMath(lanes).fenced(value * (splat(B.float32(output.factors[0]), lanes) if factor is None else factor))
