"""Convolutions for kernels of CUDA: random ones with their oracle's result, run many at once in one emulated program."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from cuda_emulator import Call, Check, Emulator

from octavo.compiler.backends.cuda.compiler import DEVICE
from octavo.compiler.backends.cuda.isa import ISAS
from octavo.compiler.backends.cuda.kernels.conv.spec import Conv2dSpec
from octavo.compiler.backends.cuda.kernels.language.calls import Input, KernelCall, Result, Scratch
from octavo.compiler.backends.cuda.kernels.matmuls.output import (
    FUNCTIONS,
    INTEGERS,
    STEPWISE_FLOATS,
    SUMS,
    Output,
    function_output,
)
from octavo.ir.composites.base import FunctionResult, QuantizedOutput, QuantizedTensor
from octavo.numerics import INTEGER_RANGE, QuantParams, Window, conv2d_accumulate, dequantize_accumulator, requantize
from octavo.numerics.floats.float_function import FloatFunction, Step

SM61, SM75, SM80, SM90 = (ISAS[f"cuda.sm_{name}"] for name in ("61", "75", "80", "90a"))


@dataclass(frozen=True, kw_only=True)
class Conv2dCase:
    """A convolution's input and the result that every kernel must give."""

    spec: Conv2dSpec
    x: np.ndarray
    want: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a convolution."""

    size: tuple[int, int] = (5, 7)
    channels: tuple[int, int] = (16, 16)
    kernel: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    batch: int = 1
    dtype: str = "int8"
    x_zero_point: int = 3
    weight_zero_points: bool = False
    result: int = INTEGERS
    result_dtype: str = "int8"
    real_bias: bool = False
    extremes: bool = False


def outputs(rng: np.random.Generator, acc: np.ndarray, shape: Shape) -> tuple[Output, np.ndarray]:
    """Return how a kernel ends whose sums are `acc`, and what it then gives by the oracle."""
    channels = acc.shape[-1]
    spread = max(float(np.abs(acc).max()), 1.0)
    common = {"has_real_bias": False, "has_low": False, "has_high": False, "low": 0.0, "high": 0.0}
    points = {"zero_point": 0, "qmin": -128, "qmax": 127}
    bias = np.zeros(channels, np.float32)
    if shape.result == SUMS:
        parameters = {**common, **points, "result": SUMS}
        return Output(dtype="int32", parameters=parameters, multiplier=np.ones(channels, np.float32), real_bias=bias), acc
    multiplier = (rng.uniform(0.3, 2, channels) * 150 / spread).astype(np.float32)
    if shape.result == INTEGERS:
        low, high = INTEGER_RANGE[shape.result_dtype]
        points = {"zero_point": int(rng.integers(low, high + 1)), "qmin": low + 3, "qmax": high - 2}
        bias = rng.normal(0, 20, channels).astype(np.float32) if shape.real_bias else bias
        parameters = {**common, **points, "result": INTEGERS, "has_real_bias": shape.real_bias}
        want = requantize(
            acc,
            multiplier,
            points["zero_point"],
            points["qmin"],
            points["qmax"],
            shape.result_dtype,
            **({"real_bias": bias} if shape.real_bias else {}),
        )
        return Output(dtype=shape.result_dtype, parameters=parameters, multiplier=multiplier, real_bias=bias), want
    if shape.result == FUNCTIONS:
        return function_outputs(rng, acc, multiplier / 40, shape.result_dtype)
    rounding = "stepwise" if shape.result == STEPWISE_FLOATS else "fused"
    bias = rng.normal(0, 20, channels).astype(np.float32)
    want = dequantize_accumulator(acc, multiplier, bias, rounding=rounding)
    want = np.maximum(want, np.float32(-50.5))
    parameters = {**common, **points, "has_low": True, "low": -50.5, "result": shape.result}
    return Output(dtype="float32", parameters=parameters, multiplier=multiplier, real_bias=bias), want


SILU = FloatFunction(inputs=1, constants=(), steps=(Step(op="sigmoid", operands=(0,)), Step(op="multiply", operands=(0, 1))))
PRELU = FloatFunction(inputs=2, constants=(), steps=(Step(op="leaky_relu", operands=(0, 1)),))
SCALED_TANH = FloatFunction(
    inputs=2,
    constants=(0.7,),
    steps=(Step(op="tanh", operands=(0,)), Step(op="multiply_add", operands=(3, 2, 1)), Step(op="maximum", operands=(4, 0))),
)


def function_outputs(rng: np.random.Generator, acc: np.ndarray, multiplier: np.ndarray, dtype: str) -> tuple[Output, np.ndarray]:
    """Return the same of sums that end in a function of floats: one of three, with numbers of the channels and without."""
    function, channels = (SILU, PRELU, SCALED_TANH)[int(rng.integers(3))], acc.shape[-1]
    own = tuple(rng.normal(0, 0.5, channels).astype(np.float32) for _ in range(function.inputs - 1))
    factors = rng.uniform(0.5, 2, channels).astype(np.float32) if rng.integers(2) else None
    low, high = INTEGER_RANGE[dtype]
    zero_point, scale = int(rng.integers(low, high + 1)), np.float32(0.031)
    bias = rng.normal(0, 1, channels).astype(np.float32)
    tensor = QuantizedTensor(name="y", shape=acc.shape, params=QuantParams.per_tensor(dtype, float(scale), zero_point))
    y = FunctionResult(
        name="real",
        shape=acc.shape,
        bias=bias,
        bias_name="",
        low=-np.inf,
        high=np.inf,
        function=function,
        channels=own,
        factors=factors,
        y=QuantizedOutput(tensor=tensor, qmin=low + 3, qmax=high - 2),
    )
    real = function(dequantize_accumulator(acc, multiplier, bias), *own)
    steps = real * ((np.float32(1) if factors is None else factors) / scale)
    want = np.clip(np.rint(steps).astype(np.float64) + zero_point, low + 3, high - 2).astype(dtype)
    return function_output(y, multiplier), want


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, *, extremes: bool = False) -> np.ndarray:
    """Return random integers, or only the ends of their range."""
    low, high = INTEGER_RANGE[dtype]
    if extremes:
        return np.where(rng.integers(0, 2, shape), low, high).astype(dtype)
    return rng.integers(low, high + 1, shape).astype(dtype)


def conv2d_case(rng: np.random.Generator, shape: Shape) -> Conv2dCase:
    """Draw a convolution of these sizes."""
    (height, width), (ci, co) = shape.size, shape.channels
    x = integers(rng, (shape.batch, height, width, ci), shape.dtype, extremes=shape.extremes)
    w = integers(rng, (*shape.kernel, ci // shape.groups, co), "int8", extremes=shape.extremes)
    zero_points = rng.integers(-128, 128, co).astype(np.int32) * shape.weight_zero_points
    bias = rng.integers(-3000, 3000, co).astype(np.int32)
    window = Window(strides=shape.strides, padding=shape.padding, dilation=shape.dilation)
    acc = conv2d_accumulate(
        x, w, x_zero_point=shape.x_zero_point, w_zero_point=zero_points, bias=bias, window=window, groups=shape.groups
    )
    output, want = outputs(rng, acc, shape)
    values = w.astype(np.int64).reshape(-1, co)
    start = bias - shape.x_zero_point * (values.sum(0) - values.shape[0] * zero_points.astype(np.int64))
    spec = Conv2dSpec(
        batch=shape.batch,
        in_height=height,
        in_width=width,
        in_channels=ci,
        out_height=acc.shape[1],
        out_width=acc.shape[2],
        out_channels=co,
        kernel=shape.kernel,
        strides=shape.strides,
        pad=shape.padding[:2],
        dilation=shape.dilation,
        groups=shape.groups,
        dtype=shape.dtype,
        x_zero_point=shape.x_zero_point,
        weights=w,
        bias=start.astype(np.int32),
        weight_zero_point=zero_points,
        output=output,
    )
    return Conv2dCase(spec=spec, x=x, want=want)


@dataclass
class Job:
    """Launches on buffers: what an emulator takes."""

    calls: list[Call] = field(default_factory=list)
    buffers: list[np.ndarray] = field(default_factory=list)
    results: list[int] = field(default_factory=list)

    def add(self, calls: Sequence[KernelCall], inputs: Sequence[np.ndarray], result: np.ndarray) -> None:
        """Add launches that read these inputs and write such a result."""
        read = [self._buffer(each) for each in inputs]
        write = self._buffer(np.full_like(result, 77))
        self.results.append(write)
        scratch: dict[Scratch, int] = {}
        for call in calls:
            arguments = []
            for operand in call.operands:
                if isinstance(operand, Input):
                    number = read[operand.number]
                elif isinstance(operand, Result):
                    number = write
                elif isinstance(operand, Scratch):
                    if operand not in scratch:
                        scratch[operand] = self._buffer(np.full(operand.size, 123, np.uint8))
                    number = scratch[operand]
                else:
                    number = self._buffer(operand)
                arguments.append((number, 0))
            self.calls.append(Call(kernel=call.kernel, arguments=tuple(arguments)))

    def _buffer(self, values: np.ndarray) -> int:
        self.buffers.append(np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8))
        return len(self.buffers) - 1

    def run(self, *, check: Check = "none", device: Path = DEVICE, seed: int = 0) -> list[np.ndarray]:
        """Return the bytes of every result."""
        emulator = Emulator([call.kernel for call in self.calls], check=check, device=device)
        return emulator.run(self.calls, self.buffers, self.results, seed)


Builder = Callable[[Conv2dSpec], Sequence[KernelCall]]


def differing(
    cases: Sequence[tuple[Conv2dCase, Builder]], *, check: Check = "none", device: Path = DEVICE, seed: int = 0
) -> list[int]:
    """Return the numbers of the cases whose kernels give another result than the oracle."""
    job = Job()
    for case, builder in cases:
        job.add(builder(case.spec), [case.x], case.want)
    found = job.run(check=check, device=device, seed=seed)
    return [
        number for number, ((case, _), each) in enumerate(zip(cases, found, strict=True)) if each.tobytes() != case.want.tobytes()
    ]
