"""Convolutions and matmuls that leave their int32 sums as they are equal the oracle bit for bit, on every ISA of this machine."""

import dataclasses
import itertools

import numpy as np
import pytest
from conv2d_cases import CHANNELS, Layers
from kernel_runner import EACH_ISA, Case, check, part

from octavo import numerics
from octavo.compiler.backends.cpu.kernels import Conv2dSpec, conv2d
from octavo.ir.composites.outputs import SumOutput

every_isa = pytest.mark.parametrize("isa", EACH_ISA)


def sum_case(layers: Layers, spec: Conv2dSpec, isa: str, mode: str) -> Case:
    """A layer whose zero point is a constant, or comes for each image or for all of them."""
    rng, pixels = layers.rng, spec.out_height * spec.out_width
    per_scale = {"constant": 0, "image": pixels, "tensor": pixels * spec.batch}[mode]
    spec = dataclasses.replace(spec, output=SumOutput(pixels_per_scale=per_scale))
    x = rng.integers(0, 256, (spec.batch, spec.in_height, spec.in_width, spec.in_channels)).astype(np.uint8)
    w = rng.integers(-128, 128, (*spec.kernel, spec.in_channels // spec.groups, spec.out_channels)).astype(np.int8)
    w_zero_point = next(layers.weight_zero_points)
    if w_zero_point == "axis":
        w_zero_point = rng.integers(-128, 128, spec.out_channels).astype(np.int32)
    bias = rng.integers(-(10**6), 10**6, spec.out_channels).astype(np.int32)
    unread = np.full(spec.out_channels, np.nan, np.float32)
    kernel = conv2d(spec, weight=w, weight_zero_point=w_zero_point, bias=bias, multiplier=unread, isa=isa)
    zero_points = rng.choice([0, 255, *rng.integers(0, 256, 2)], spec.scales)
    parameters = np.stack([np.full(spec.scales, np.nan), zero_points], axis=1).astype(np.float32)
    of_image = np.broadcast_to(zero_points, spec.batch) if spec.scales else [spec.input_zero_point] * spec.batch
    window = numerics.Window(strides=spec.strides, padding=spec.padding, dilation=spec.dilation)
    layer = {"w_zero_point": w_zero_point, "bias": bias, "window": window, "groups": spec.groups}
    sums = [
        numerics.conv2d_accumulate(x[image : image + 1], w, x_zero_point=int(zero_point), **layer)
        for image, zero_point in enumerate(of_image)
    ]
    inputs = (x, parameters) if spec.scales else (x,)
    return Case(kernel=kernel, inputs=inputs, expected=np.concatenate(sums), about=(kernel.name, spec, w_zero_point))


def sum_case_of(spec: Conv2dSpec, isa: str, x: np.ndarray, w: np.ndarray, w_zero_point: int) -> Case:
    """A layer with the operands given, without a bias."""
    spec = dataclasses.replace(spec, output=SumOutput())
    bias = np.zeros(spec.out_channels, np.int32)
    kernel = conv2d(spec, weight=w, weight_zero_point=w_zero_point, bias=bias, multiplier=np.float32(1), isa=isa)
    layer = {"x_zero_point": spec.input_zero_point, "w_zero_point": w_zero_point, "bias": bias, "groups": spec.groups}
    expected = numerics.conv2d_accumulate(x, w, window=numerics.Window(), **layer)
    return Case(kernel=kernel, inputs=(x,), expected=expected, about=(kernel.name, spec, w_zero_point))


@every_isa
def test_pointwise_over_channel_counts(isa: str) -> None:
    layers, modes = Layers(1), itertools.cycle(["constant", "image", "tensor"])  # they share the loops over channels
    pairs = [(c, CHANNELS[(i * 5 + 3) % len(CHANNELS)]) for i, c in enumerate(CHANNELS)]
    check(sum_case(layers, layers.spec((1, 5), pair, batch=2), isa, next(modes)) for pair in part(pairs, isa, 2))


@every_isa
@pytest.mark.parametrize(("channels", "groups", "first"), [((5, 33), 1, 0), ((40, 24), 4, 1), ((70, 70), 70, 1), ((5, 15), 5, 0)])
def test_windows(isa: str, channels: tuple[int, int], groups: int, first: int) -> None:
    """Each window with one kind of dense layers and one of layers by channel; one of these on the generic kernel."""
    layers = Layers(2)
    windows = [
        ("constant", {"kernel": (3, 3), "padding": (1, 1, 1, 1), "strides": (2, 2)}),
        ("image", {"kernel": (3, 2), "padding": (0, 2, 1, 0), "batch": 2}),
        ("tensor", {"kernel": (3, 3), "padding": (2, 2, 2, 2), "dilation": (2, 2), "batch": 2, "threads": 2}),
    ]
    chosen = part(windows[first::2], isa, 2)
    check(sum_case(layers, layers.spec((9, 8), channels, groups=groups, **window), isa, mode) for mode, window in chosen)


@every_isa
def test_threads(isa: str) -> None:
    layers = Layers(4)
    specs = [
        layers.spec((28, 28), (64, 64), (3, 3), padding=(1, 1, 1, 1), threads=2),
        layers.spec((56, 56), (64, 64), (3, 3), padding=(1, 1, 1, 1), groups=64, threads=2),
    ]
    check(sum_case(layers, spec, isa, "constant") for spec in specs)
