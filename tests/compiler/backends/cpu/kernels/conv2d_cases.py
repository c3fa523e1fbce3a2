"""Convolutions and matmuls with random operands, and what their oracle says of them."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from kernel_runner import Case
from tvm.ir import PrimType

from octavo import numerics
from octavo.compiler.backends.cpu.kernels import NO_SCHEDULES, Conv2dSpec, Kernel, Schedules, conv2d, matmul
from octavo.ir.composites.outputs import Output
from octavo.runtime.size import Size

CHANNELS = (1, 3, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129)
"""Channel counts around the widths of vectors."""

CHANNEL_PAIRS = ((1, 33), (3, 16), (15, 65), (16, 3), (33, 127), (64, 15), (129, 64))
"""Inputs and outputs, of both each kind of rest beside no vectors, one and several."""

OUTPUTS = (Output(zero_point=0), Output(zero_point=255, qmin=1), Output(zero_point=128, qmin=120, qmax=250), Output(zero_point=3))
INPUT_ZERO_POINTS = (0, 255, 131)
WEIGHT_ZERO_POINTS = (0, -128, 127, 0, "axis", 5)


class Layers:
    """Makes layers whose zero points and clamps cycle through their extremes; one seed, one sequence."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.outputs = itertools.cycle(OUTPUTS)
        self.input_zero_points = itertools.cycle(INPUT_ZERO_POINTS)
        self.weight_zero_points = itertools.cycle(WEIGHT_ZERO_POINTS)
        self.bias_dtypes = itertools.cycle((np.int32, np.int32, np.float32))

    def spec(
        self,
        size: tuple[int, int],
        channels: tuple[int, int],
        kernel: tuple[int, int] = (1, 1),
        *,
        batch: int = 1,
        threads: int = 1,
        **window: object,
    ) -> Conv2dSpec:
        """A layer over an image of `size` from channels[0] to channels[1]."""
        return Conv2dSpec(
            batch=batch,
            in_height=size[0],
            in_width=size[1],
            in_channels=channels[0],
            out_channels=channels[1],
            kernel=kernel,
            input_zero_point=next(self.input_zero_points),
            output=next(self.outputs),
            threads=threads,
            **window,
        )

    def case(
        self,
        spec: Conv2dSpec,
        isa: str,
        *,
        w_zero_point: object = None,
        schedules: Schedules = NO_SCHEDULES,
        is_open: bool = False,
    ) -> Case:
        """The layer with random operands; of open sizes its kernel, if it `is_open`."""
        group_inputs = spec.in_channels // spec.groups
        x = self.rng.integers(0, 256, (spec.batch, spec.in_height, spec.in_width, spec.in_channels)).astype(np.uint8)
        w = self.rng.integers(-128, 128, (*spec.kernel, group_inputs, spec.out_channels)).astype(np.int8)
        w_zero_point = next(self.weight_zero_points) if w_zero_point is None else w_zero_point
        if w_zero_point == "axis":
            w_zero_point = self.rng.integers(-128, 128, spec.out_channels).astype(np.int32)
        bias = self.bias(spec.out_channels)
        return exact_case(spec, isa, x, w, w_zero_point, bias, self.multiplier(w), schedules=schedules, is_open=is_open)

    def bias(self, channels: int) -> np.ndarray:
        """Biases in units of the accumulator, or of the result: there float32, with halves among them, some beyond its range."""
        if next(self.bias_dtypes) is np.int32:
            return self.rng.integers(-5000, 5000, channels).astype(np.int32)
        return (self.rng.choice([0.5, 1.0, 3e3, 3e9, 0.3, 0.0], channels) * self.rng.integers(-5, 6, channels)).astype(np.float32)

    def multiplier(self, w: np.ndarray) -> np.ndarray:
        """Per-axis or per-tensor multipliers that spread the sums over the output's range, with ties among the products."""
        taps = int(np.prod(w.shape[:3]))
        scale = 2.0 ** -np.ceil(np.log2(60 * taps**0.5))
        if self.rng.integers(2):
            return np.full(w.shape[-1], self.rng.choice([0.5, 1.1]) * scale, np.float32)
        return (self.rng.choice([0.5, 0.75, 1.1, 1.0], w.shape[-1]) * scale).astype(np.float32)


def opened(spec: Any) -> Any:
    """A layer of an image whose batch, height and width are open."""
    sizes = {field: Size.named(field) for field in ("batch", "in_height", "in_width")}
    return dataclasses.replace(spec, **sizes)


def of_sizes(kernel: Kernel, spec: Any) -> Kernel:
    """The kernel of an `opened` layer with the sizes of one in place of its arguments: its statements are those of any sizes."""
    values = {each: getattr(spec, str(each.name)) for each in kernel.func.params if isinstance(each.ty, PrimType)}
    return dataclasses.replace(kernel, func=kernel.func.specialize(values))


def exact_case(
    spec: Conv2dSpec,
    isa: str,
    x: np.ndarray,
    w: np.ndarray,
    w_zero_point: object,
    bias: np.ndarray,
    multiplier: np.ndarray,
    *,
    schedules: Schedules = NO_SCHEDULES,
    is_open: bool = False,
) -> Case:
    """A layer with the operands given; a float32 bias is one in units of the result."""
    is_real = bias.dtype == np.float32
    spec = dataclasses.replace(spec, output=dataclasses.replace(spec.output, real_bias=is_real))
    operands = {"weight": w, "weight_zero_point": w_zero_point, "bias": bias, "multiplier": multiplier}
    kernel = conv2d(opened(spec) if is_open else spec, **operands, isa=isa, schedules=schedules)
    kernel = of_sizes(kernel, spec) if is_open else kernel
    expected = result_of(spec, x, w, w_zero_point, bias, multiplier)
    assert expected.shape == (spec.batch, spec.out_height, spec.out_width, spec.out_channels)
    return Case(kernel=kernel, inputs=(x,), expected=expected, about=(kernel.name, spec, w_zero_point))


def result_of(
    spec: Conv2dSpec, x: np.ndarray, w: np.ndarray, w_zero_point: object, bias: np.ndarray, multiplier: np.ndarray
) -> np.ndarray:
    """What the oracle says of a layer; a float32 bias is one in units of the result."""
    return numerics.conv2d(
        x,
        w,
        x_zero_point=spec.input_zero_point,
        w_zero_point=w_zero_point,
        **({"real_bias": bias} if bias.dtype == np.float32 else {"bias": bias}),
        multiplier=multiplier,
        zero_point=spec.output.zero_point,
        qmin=spec.output.qmin,
        qmax=spec.output.qmax,
        window=numerics.Window(strides=spec.strides, padding=spec.padding, dilation=spec.dilation),
        groups=spec.groups,
    )


def open_layer(
    spec: Conv2dSpec, isa: str, w: np.ndarray, w_zero_point: int, sizes: Iterable[tuple[int, int, int]], layers: Layers
) -> tuple[Kernel, Iterator[tuple[dict[str, int], tuple[np.ndarray], np.ndarray]]]:
    """The kernel of a layer of open sizes; what it is called with for each batch, height and width, and what its oracle says."""
    bias = layers.rng.integers(-5000, 5000, spec.out_channels).astype(np.int32)
    operands = {"w_zero_point": w_zero_point, "bias": bias, "multiplier": layers.multiplier(w)}
    kernel = conv2d(opened(spec), weight=w, weight_zero_point=w_zero_point, bias=bias, multiplier=operands["multiplier"], isa=isa)

    def calls() -> Iterator[tuple[dict[str, int], tuple[np.ndarray], np.ndarray]]:
        for size in sizes:
            x = layers.rng.integers(0, 256, (*size, spec.in_channels)).astype(np.uint8)
            yield dict(zip(("batch", "in_height", "in_width"), size, strict=True)), (x,), result_of(spec, x, w, **operands)

    return kernel, calls()


def matmul_case(layers: Layers, rows: int, in_features: int, out_features: int, isa: str, *, threads: int = 1) -> Case:
    """A matmul with random operands."""
    x = layers.rng.integers(0, 256, (rows, in_features)).astype(np.uint8)
    w = layers.rng.integers(-128, 128, (in_features, out_features)).astype(np.int8)
    w_zero_point = next(layers.weight_zero_points)
    if w_zero_point == "axis":
        w_zero_point = layers.rng.integers(-128, 128, out_features).astype(np.int32)
    bias = layers.bias(out_features)
    multiplier = layers.multiplier(w.reshape(1, 1, in_features, out_features))
    output, x_zero_point = next(layers.outputs), next(layers.input_zero_points)
    is_real = bias.dtype == np.float32
    output = dataclasses.replace(output, real_bias=is_real)
    kernel = matmul(
        rows=rows,
        in_features=in_features,
        out_features=out_features,
        input_zero_point=x_zero_point,
        output=output,
        threads=threads,
        weight=w,
        weight_zero_point=w_zero_point,
        isa=isa,
        bias=bias,
        multiplier=multiplier,
    )
    expected = numerics.matmul(
        x,
        w,
        x_zero_point=x_zero_point,
        w_zero_point=w_zero_point,
        zero_point=output.zero_point,
        qmin=output.qmin,
        qmax=output.qmax,
        multiplier=multiplier,
        **({"real_bias": bias} if is_real else {"bias": bias}),
    )
    about = (kernel.name, rows, in_features, out_features, w_zero_point, threads)
    return Case(kernel=kernel, inputs=(x,), expected=expected, about=about)
