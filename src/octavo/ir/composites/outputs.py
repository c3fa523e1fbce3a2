"""How a composite's result is formed from real numbers or sums, in the domain in which kernels hold integers (uint8, int16)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, overload

import numpy as np
import numpy.typing as npt

from ...numerics.floats.float_function import FloatFunction
from ...numerics.rounding.requantize import ScaledRounding
from .base import FloatResult, FunctionResult, QuantizedOutput, SumResult


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """How a uint8 result is formed: clamp(rint(real / scale) + zero_point) to [qmin; qmax], all in [0; 255].

    With `real_bias` a convolution's bias is float32, in units of the result, and joins the scaled accumulator in one fused
    multiply-add; without, it is int32 and part of the accumulator.
    """

    zero_point: int
    qmin: int = 0
    qmax: int = 255
    real_bias: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatOutput:
    """A float32 result: float32(acc) * multiplier + bias, clamped to [low; high]; `rounding` says what is, on the way.

    With `pixels_per_scale` the input is quantized at run time: so many output pixels in a row share a scale and a zero point,
    which the kernel reads from a buffer float32 [scales, 2] after x. Without, both are constants. The definition is
    `numerics.dequantize_accumulator`.
    """

    low: float = -math.inf
    high: float = math.inf
    pixels_per_scale: int = 0
    rounding: ScaledRounding = "fused"
    real_bias: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionOutput:
    """A uint8 result of a function: clamp(rint(function(float32(acc) * multiplier + bias) * factor) + zero_point).

    `factors`, from the function's result to steps of the integers, are one or one for each output channel. Behind its sum the
    function reads `channels`, each a number for each output channel.
    """

    function: FloatFunction
    factors: tuple[float, ...]
    integers: Output
    channels: tuple[tuple[float, ...], ...] = ()
    pixels_per_scale: ClassVar[int] = 0
    real_bias: ClassVar[bool] = True

    def constants(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return what kernels read of it, one value for each output channel, by label."""
        own = {f"channel{number}": np.array(values, np.float32) for number, values in enumerate(self.channels)}
        return {**own, **({"factor": np.array(self.factors, np.float32)} if len(self.factors) > 1 else {})}


@dataclass(frozen=True, kw_only=True, slots=True)
class SumOutput:
    """An int32 result: the accumulator itself, which holds the bias.

    `pixels_per_scale` is that of a FloatOutput; of the parameters that come at run time only the zero points are read.
    """

    pixels_per_scale: int = 0
    real_bias: ClassVar[bool] = False


@overload
def output_spec(y: QuantizedOutput) -> Output: ...
@overload
def output_spec(y: FloatResult) -> FloatOutput | FunctionOutput: ...
@overload
def output_spec(y: SumResult) -> SumOutput: ...
def output_spec(y: QuantizedOutput | FloatResult | SumResult) -> Output | FloatOutput | FunctionOutput | SumOutput:
    """Return what a kernel is told of its result."""
    if isinstance(y, FunctionResult):
        factors = (np.ones(1, np.float32) if y.factors is None else y.factors) / np.float32(y.y.tensor.params.scale)
        channels = tuple(tuple(values.tolist()) for values in y.channels)
        integers = output_spec(y.y)
        return FunctionOutput(function=y.function, factors=tuple(factors.tolist()), integers=integers, channels=channels)
    if isinstance(y, QuantizedOutput):
        moved = y.tensor.relabelling
        return Output(zero_point=y.tensor.zero_point, qmin=y.qmin + moved, qmax=y.qmax + moved)
    return FloatOutput(low=y.low, high=y.high, rounding=y.rounding) if isinstance(y, FloatResult) else SumOutput()
