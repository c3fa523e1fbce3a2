"""Convolutions and matmuls of integers with a float32 result equal their oracle bit for bit, on every ISA of this machine."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from conv2d_cases import CHANNELS, Layers
from kernel_runner import EACH_ISA, Case, baseline_target, check, part

from octavo import numerics
from octavo.compiler.backends.cpu.kernels import GENERIC, Conv2dSpec, conv2d, matmul
from octavo.ir.composites.outputs import FloatOutput

every_isa = pytest.mark.parametrize("isa", EACH_ISA)
BOUNDS = ((-math.inf, math.inf), (0.0, math.inf), (-0.5, 0.75))


class FloatLayers(Layers):
    """Layers whose results are real numbers; the input's parameters are constants, or come for each image or for all of them."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.roundings = itertools.cycle(["stepwise", "fused"])

    def float_case(self, spec: Conv2dSpec, isa: str, mode: str) -> Case:
        pixels = spec.out_height * spec.out_width
        low, high = BOUNDS[int(self.rng.integers(len(BOUNDS)))]
        per_scale = {"constant": 0, "image": pixels, "tensor": pixels * spec.batch}[mode]
        spec = dataclasses.replace(
            spec, output=FloatOutput(low=low, high=high, pixels_per_scale=per_scale, rounding=next(self.roundings))
        )
        x, w, w_zero_point = self.operands(spec)
        scale = self.rng.uniform(0.001, 0.02, spec.out_channels).astype(np.float32)
        bias = self.rng.normal(size=spec.out_channels).astype(np.float32)
        kernel = conv2d(spec, weight=w, weight_zero_point=w_zero_point, bias=bias, multiplier=scale, isa=isa)
        parameters = self.parameters(spec)
        expected = np.concatenate([self.image(spec, x, w, w_zero_point, scale, bias, parameters, i) for i in range(spec.batch)])
        inputs = (x,) if mode == "constant" else (x, parameters)
        return Case(kernel=kernel, inputs=inputs, expected=expected, about=(kernel.name, spec, w_zero_point))

    def operands(self, spec: Conv2dSpec) -> tuple[np.ndarray, np.ndarray, object]:
        x = self.rng.integers(0, 256, (spec.batch, spec.in_height, spec.in_width, spec.in_channels)).astype(np.uint8)
        shape = (*spec.kernel, spec.in_channels // spec.groups, spec.out_channels)
        w_zero_point = next(self.weight_zero_points)
        if w_zero_point == "axis":
            w_zero_point = self.rng.integers(-128, 128, spec.out_channels).astype(np.int32)
        return x, self.rng.integers(-128, 128, shape).astype(np.int8), w_zero_point

    def parameters(self, spec: Conv2dSpec) -> np.ndarray:
        """Scale and zero point of each image, or of all of them."""
        zero_points = self.rng.choice([0, 255, *self.rng.integers(0, 256, 2)], spec.scales)
        return np.stack([self.rng.uniform(0.001, 0.1, spec.scales), zero_points], axis=1).astype(np.float32)

    def image(self, spec, x, w, w_zero_point, scale, bias, parameters, index):
        row = parameters[index % len(parameters)] if spec.scales else None
        acc = numerics.conv2d_accumulate(
            x[index : index + 1],
            w,
            x_zero_point=spec.input_zero_point if row is None else int(row[1]),
            w_zero_point=w_zero_point,
            window=numerics.Window(strides=spec.strides, padding=spec.padding, dilation=spec.dilation),
            groups=spec.groups,
        )
        bounds = {"low": spec.output.low, "high": spec.output.high, "rounding": spec.output.rounding}
        return numerics.dequantize_accumulator(acc, scale, bias, input_scale=None if row is None else row[0], **bounds)


@every_isa
def test_pointwise_over_channel_counts(isa: str) -> None:
    layers, modes = FloatLayers(1), itertools.cycle(["constant", "image", "tensor"])  # they share the loops over channels
    pairs = [(c, CHANNELS[(i * 5 + 3) % len(CHANNELS)]) for i, c in enumerate(CHANNELS)]
    check(layers.float_case(layers.spec((1, 5), pair, batch=2), isa, next(modes)) for pair in part(pairs, isa, 2))


@every_isa
@pytest.mark.parametrize(("channels", "groups", "first"), [((5, 33), 1, 0), ((40, 24), 4, 1), ((70, 70), 70, 1), ((5, 15), 5, 0)])
def test_windows(isa: str, channels: tuple[int, int], groups: int, first: int) -> None:
    """Each window with one kind of dense layers and one of layers by channel; one of these on the generic kernel."""
    layers = FloatLayers(2)
    windows = [
        ("constant", {"kernel": (3, 3), "padding": (1, 1, 1, 1), "strides": (2, 2)}),
        ("image", {"kernel": (3, 2), "padding": (0, 2, 1, 0), "batch": 2}),
        ("image", {"kernel": (3, 3), "padding": (2, 2, 2, 2), "dilation": (2, 2), "batch": 3}),
        ("tensor", {"kernel": (7, 7), "padding": (3, 3, 3, 3), "batch": 2}),
    ]
    chosen = part(windows[first::2], isa, 2)
    check(layers.float_case(layers.spec((9, 8), channels, groups=groups, **window), isa, mode) for mode, window in chosen)


@every_isa
def test_depthwise_over_channel_counts(isa: str) -> None:
    layers = FloatLayers(3)
    specs = [layers.spec((5, 6), (c, c), (3, 3), padding=(1, 1, 1, 1), groups=c) for c in part(CHANNELS[1::3], isa)]
    check(layers.float_case(spec, isa, "image") for spec in specs)


@every_isa
def test_threads(isa: str) -> None:
    layers = FloatLayers(4)
    specs = [
        layers.spec((28, 28), (64, 64), (3, 3), padding=(1, 1, 1, 1), batch=2, threads=2),
        layers.spec((56, 56), (64, 64), (3, 3), padding=(1, 1, 1, 1), batch=2, groups=64, threads=2),
    ]
    check(layers.float_case(spec, isa, "image") for spec in specs)


def matmul_case(layers: FloatLayers, rows: int, inputs: int, outputs: int, rows_per_scale: int, isa: str) -> Case:
    rng = layers.rng
    x, w = rng.integers(0, 256, (rows, inputs)).astype(np.uint8), rng.integers(-128, 128, (inputs, outputs)).astype(np.int8)
    scale, bias = rng.uniform(0.001, 0.02, outputs).astype(np.float32), rng.normal(size=outputs).astype(np.float32)
    w_zero_point = int(rng.choice([0, 0, 7]))
    output = FloatOutput(pixels_per_scale=rows_per_scale, rounding=next(layers.roundings))
    kernel = matmul(
        rows=rows,
        in_features=inputs,
        out_features=outputs,
        input_zero_point=0,
        output=output,
        threads=1,
        weight=w,
        weight_zero_point=w_zero_point,
        bias=bias,
        multiplier=scale,
        isa=isa,
    )
    count = rows // rows_per_scale
    parameters = np.stack([rng.uniform(0.001, 0.1, count), rng.integers(0, 256, count)], axis=1).astype(np.float32)
    spread = np.repeat(parameters, rows_per_scale, axis=0)
    sums = (x.astype(np.int64) - spread[:, 1:].astype(np.int64)) @ (w.astype(np.int64) - w_zero_point)
    expected = numerics.dequantize_accumulator(
        sums.astype(np.int32), scale, bias, input_scale=spread[:, :1], rounding=output.rounding
    )
    return Case(kernel=kernel, inputs=(x, parameters), expected=expected, about=(rows, inputs, outputs, w_zero_point, output))


@every_isa
def test_matmul_with_parameters_for_each_row(isa: str) -> None:
    """Row by row, for all rows together: each with 1, 2 and 7 of them."""
    layers = FloatLayers(1)
    pairs = [(c, CHANNELS[(i * 7 + 1) % len(CHANNELS)]) for i, c in enumerate(CHANNELS)]
    rows = itertools.cycle([1, 2, 7])
    work = [(count, *pair, (1, count)[i % 2]) for i, (count, pair) in enumerate(zip(rows, pairs, strict=False))]
    check(matmul_case(layers, *each, isa) for each in part(work, isa, 5))


def test_targets_without_fused_multiply_add() -> None:
    layers = FloatLayers(5)
    cases = [layers.float_case(layers.spec((4, 5), (9, c), (3, 3), padding=(1, 1, 1, 1)), GENERIC, "image") for c in (1, 16, 19)]
    check(cases, baseline_target())
