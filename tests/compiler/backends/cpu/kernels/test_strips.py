"""Pixels of open images that tiles take strip by strip: the bits of the definition, or of the kernels of each size alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from allpairspy import AllPairs
from conv2d_cases import Layers, exact_case, open_layer, opened
from kernel_runner import EACH_ISA, EACH_NARROW_ISA, check
from open_kernels import check_open, check_sizes
from test_float_conv2d_kernels import operands, spec_of

from octavo.compiler.backends.cpu.kernels import AVX2, Kernel, float_conv2d
from octavo.compiler.backends.cpu.kernels.conv.loops.geometry import geometry_of
from octavo.compiler.backends.cpu.kernels.conv.loops.strips import is_strung

SAME = {"padding": (1, 1, 1, 1)}

LAYERS = (
    ((16, 40), (3, 3), SAME),
    ((32, 33), (3, 3), {"strides": (2, 2), **SAME}),
    ((16, 48), (5, 5), {"padding": (2, 2, 2, 2), "threads": 2}),
    ((8, 64), (7, 7), {"strides": (2, 2), "padding": (3, 3, 3, 3)}),
    ((20, 64), (3, 2), {"dilation": (2, 1), "padding": (2, 1, 2, 0)}),
    ((18, 64), (3, 3), SAME),
    ((32, 128), (3, 3), {"groups": 2, **SAME}),
    ((128, 80), (1, 1), {"strides": (2, 2)}),
)
"""Channels, kernel and further attributes: taps that steps split, two loops over taps, no padding."""

IMAGES = ((1, 1), (1, 7), (2, 2), (3, 1), (3, 3), (4, 4), (5, 2), (9, 13), (30, 23), (70, 70))
"""Of one column, which is left and right at once, to several blocks of rows, with tiles of each size at their ends."""


POINTS = ((0, 0), (0, -128), (120, 0))
"""Zero points of the image and of the weights."""

INTEGERS = [
    pytest.param(isa.values[0], *layer, *points, marks=isa.marks)
    for isa, layer, points in AllPairs([[*EACH_ISA, *EACH_NARROW_ISA], LAYERS, POINTS])
]
"""Each layer on each ISA, each with each of the zero points."""


@pytest.mark.parametrize(("isa", "channels", "kernel", "window", "zero_point", "weight_zero_point"), INTEGERS)
def test_integers(
    isa: str,
    channels: tuple[int, int],
    kernel: tuple[int, int],
    window: dict[str, Any],
    zero_point: int,
    weight_zero_point: int,
    rng: np.random.Generator,
) -> None:
    """Where padding holds zeros, taps are left out."""
    layers = Layers(int(rng.integers(1000)))
    spec = replace(layers.spec((9, 9), channels, kernel, **window), input_zero_point=zero_point)
    w = rng.integers(-128, 128, (*kernel, channels[0] // spec.groups, channels[1])).astype(np.int8)
    sizes = [(1 + number % 2, *image) for number, image in enumerate(IMAGES)]
    check_sizes(*open_layer(spec, isa, w, weight_zero_point, sizes, layers))


@pytest.mark.needs_isa("x86.avx2")
def test_many_weights_are_bytes(rng: np.random.Generator) -> None:
    """An image of open size is taken to be small then, and weights to come from memory."""
    layers = Layers(47)
    spec = layers.spec((2, 3), (512, 256), (3, 3), dilation=(2, 2), padding=(2, 2, 2, 2))
    x = rng.integers(0, 256, (1, 2, 3, 512)).astype(np.uint8)
    w = rng.integers(-127, 128, (3, 3, 512, 256)).astype(np.int8)
    case = exact_case(spec, AVX2, x, w, 0, layers.bias(256), layers.multiplier(w), is_open=True)
    assert case.kernel.name.startswith("conv2d.direct")
    assert case.kernel.constants[0].dtype == np.int8
    check([case])


@pytest.mark.parametrize("isa", EACH_ISA)
@pytest.mark.parametrize(("channels", "kernel", "window"), LAYERS[:6:2])
def test_floats(
    isa: str, channels: tuple[int, int], kernel: tuple[int, int], window: dict[str, Any], rng: np.random.Generator
) -> None:
    """Sums in the very order of the kernel of one size."""
    spec = spec_of((9, 9), channels, kernel, **window)
    _, weight, bias = operands(rng, spec)

    def make(size: Callable[[str], Any]) -> Kernel:
        sizes = {name: size(name) for name in ("in_height", "in_width")}
        return float_conv2d(replace(spec, **sizes), weight=weight, bias=bias, isa=isa)

    def draw(kernel: Kernel) -> list[np.ndarray]:
        return [rng.normal(size=int(kernel.func.params[0].ty.shape[0])).astype(np.float32)]

    check_open(make, [{"in_height": height, "in_width": width} for height, width in IMAGES[::2]], draw)


@pytest.mark.parametrize("isa", EACH_ISA)
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_weights_that_are_not_finite_meet_the_zeros_of_the_padding(isa: str, value: float, rng: np.random.Generator) -> None:
    spec = spec_of((3, 3), (16, 48), (3, 3), **SAME)
    _, weight, bias = operands(rng, spec)
    weight[0, 0, 3, 5] = value

    def make(size: Callable[[str], Any]) -> Kernel:
        sizes = {name: size(name) for name in ("in_height", "in_width")}
        return float_conv2d(replace(spec, **sizes), weight=weight, bias=bias, isa=isa)

    def draw(kernel: Kernel) -> list[np.ndarray]:
        return [rng.normal(size=int(kernel.func.params[0].ty.shape[0])).astype(np.float32)]

    check_open(make, [{"in_height": 3, "in_width": 3}], draw)


@pytest.mark.parametrize(("channels", "kernel", "window"), LAYERS)
def test_these_layers_are_strung(channels: tuple[int, int], kernel: tuple[int, int], window: dict[str, Any]) -> None:
    spec = Layers(1).spec((9, 9), channels, kernel, **window)
    for each, expected in ((opened(spec), True), (spec, False)):
        geometry = geometry_of(each, spec.groups, channels[0] // spec.groups, padded_width=each.in_width)
        assert is_strung(geometry, geometry.reduction.steps) is expected
