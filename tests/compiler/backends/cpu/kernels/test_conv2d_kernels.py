"""Convolutions equal their oracle bit for bit, on every ISA of this machine, at one and two threads."""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from allpairspy import AllPairs
from conv2d_cases import CHANNELS, Layers, exact_case
from kernel_runner import EACH_ISA, check, part

from machine_isas import each_isa
from octavo.compiler.backends.cpu.kernels import AVX512_VNNI, Conv2dSpec, conv2d
from octavo.errors import TargetError
from octavo.ir.composites.outputs import Output

every_isa = pytest.mark.parametrize("isa", EACH_ISA)
every_cpu = pytest.mark.parametrize("isa", each_isa([AVX512_VNNI]))
"""For sweeps over registers, tiles and blocks; test_generic_conv2d.py has those of the generic kernel."""


@every_cpu
def test_pointwise_over_channel_counts(isa: str) -> None:
    layers = Layers(1)
    pairs = [(c, CHANNELS[(i * 5 + 3) % len(CHANNELS)]) for i, c in enumerate(CHANNELS)]
    check(layers.case(layers.spec((3, 5), pair), isa) for pair in pairs)


@every_cpu
def test_pointwise_over_pixel_counts(isa: str) -> None:
    layers = Layers(2)
    check(layers.case(layers.spec((1, pixels), (20, 40)), isa) for pixels in (*range(1, 8), 11, 13, 29, 65))


@every_cpu
def test_direct_over_channel_counts(isa: str) -> None:
    layers = Layers(3)
    windows = itertools.cycle([{"padding": (1, 1, 1, 1)}, {"padding": (0, 1, 1, 1), "strides": (2, 1)}])
    kernels = itertools.cycle([(3, 3), (2, 3)])
    pairs = [(c, CHANNELS[(i * 5 + 4) % len(CHANNELS)]) for i, c in enumerate(CHANNELS)]
    check(layers.case(layers.spec((4, 5), pair, next(kernels), **next(windows)), isa) for pair in pairs)


def window_specs(layers: Layers, channels: tuple[int, int], groups: int) -> Iterator[Conv2dSpec]:
    yield layers.spec((7, 9), channels, (3, 3), padding=(1, 1, 1, 1), strides=(2, 2), groups=groups)
    yield layers.spec((8, 8), channels, (3, 3), padding=(0, 0, 1, 1), strides=(2, 2), groups=groups)
    yield layers.spec((10, 13), channels, (3, 3), padding=(2, 0, 1, 1), strides=(3, 3), groups=groups)
    yield layers.spec((6, 11), channels, (1, 7), padding=(0, 3, 0, 3), groups=groups)
    yield layers.spec((9, 4), channels, (5, 1), padding=(4, 0, 1, 2), strides=(3, 1), groups=groups)
    yield layers.spec((9, 10), channels, (3, 3), padding=(2, 2, 2, 2), dilation=(2, 2), groups=groups)
    yield layers.spec((9, 14), channels, (3, 3), dilation=(1, 3), strides=(1, 2), groups=groups)
    yield layers.spec((7, 6), channels, (5, 5), padding=(2, 2, 2, 2), groups=groups)
    yield layers.spec((9, 9), channels, (7, 7), padding=(3, 3, 3, 3), strides=(2, 2), groups=groups)
    yield layers.spec((2, 2), channels, (5, 5), padding=(2, 2, 2, 2), groups=groups)  # no window inside the image
    yield layers.spec((5, 5), channels, (2, 2), padding=(3, 3, 3, 3), strides=(2, 2), groups=groups)  # windows outside of it
    yield layers.spec((5, 5), channels, (1, 1), padding=(1, 2, 0, 1), groups=groups)
    yield layers.spec((6, 7), channels, (1, 1), strides=(2, 3), groups=groups)
    yield layers.spec((4, 4), channels, (4, 4), batch=3, groups=groups)
    yield layers.spec((1, 1), channels, groups=groups)


@every_cpu
@pytest.mark.parametrize(
    ("channels", "groups", "first"), [((3, 16), 1, 0), ((32, 20), 1, 1), ((40, 24), 4, 0), ((32, 64), 16, 1)]
)
def test_windows(isa: str, channels: tuple[int, int], groups: int, first: int) -> None:
    """Each window with one kind of convolution of one group, and with one of several."""
    layers = Layers(4)
    check(layers.case(spec, isa) for spec in list(window_specs(layers, channels, groups))[first::2])


@every_cpu
@pytest.mark.parametrize(("channels", "groups", "first"), [((3, 16), 1, 0), ((36, 20), 1, 1), ((40, 24), 4, 2)])
def test_padding_that_holds_zeros(isa: str, channels: tuple[int, int], groups: int, first: int) -> None:
    layers = Layers(14)
    wide = [
        layers.spec((3, 40), channels, (3, 5), padding=(1, 2, 1, 2), groups=groups),
        layers.spec((9, 21), channels, (3, 3), padding=(1, 1, 1, 1), groups=groups, batch=2, threads=2),
    ]
    padded = [spec for spec in window_specs(layers, channels, groups) if any(spec.padding)][first::3]
    specs = (dataclasses.replace(spec, input_zero_point=0) for spec in (*padded, *wide))
    check(layers.case(spec, isa) for spec in specs)


@every_cpu
@pytest.mark.parametrize(
    ("channels", "chosen"), [((70, 70), slice(0, None, 2)), ((5, 15), slice(0, None, 3)), ((24, 48), slice(1, None, 2))]
)
def test_depthwise_windows(isa: str, channels: tuple[int, int], chosen: slice) -> None:
    layers = Layers(5)
    check(layers.case(spec, isa) for spec in list(window_specs(layers, channels, channels[0]))[chosen])


@every_cpu
def test_depthwise_over_channel_counts(isa: str) -> None:
    layers = Layers(6)
    window = {"kernel": (3, 3), "padding": (1, 1, 1, 1)}
    strides = itertools.cycle([(1, 1), (1, 1), (2, 2)])
    counts = [layers.spec((5, 6), (c, c), **window, strides=next(strides), groups=c) for c in (1, 15, 16, 17, 31, 64, 65, 129)]
    wide = [layers.spec((3, w), (16, 16), **window, groups=16) for w in (1, 2, 4, 5, 9)]
    check(layers.case(spec, isa) for spec in counts + wide)


@every_isa
def test_weight_zero_points(isa: str) -> None:
    layers = Layers(7)
    # Runs of 1 to 200 bytes: window sums take scalars, vectors, and vectors that overlap.
    shapes = [((c, 32), (1, 1), 1) for c in (2, 15, 65, 200)]
    shapes += [((c, 16), (3, 3), 1) for c in (1, 16)] + [((12, 8), (3, 3), 4), ((20, 20), (3, 3), 20)]
    # Lanes without an output channel sum windows, too: four side by side, or one where no four are left.
    shapes += [((40, c), (1, 1), 1) for c in (18, 30)] + [((10, 40), (3, 3), 2)]
    shapes += [((c, 7), (3, 3), 1) for c in (3, 30)]
    specs = [layers.spec((4, 5), channels, kernel, groups=groups) for channels, kernel, groups in shapes]
    padded = [dataclasses.replace(spec, padding=(1, 0, 1, 2)) for spec in specs if spec.kernel == (3, 3)][::3]
    # Window sums add up rows of taps: windows that overlap in other ways, wider than a vector, in several blocks, of one column.
    windows = [((9, 37), {"strides": (2, 1)}), ((9, 37), {"dilation": (2, 3), "padding": (2, 3, 2, 3)}), ((5, 3), {})]
    windows += [((17, 5), {"strides": (2, 1), "dilation": (3, 1), "threads": 2})]
    windows += [((7, 18), {"strides": (4, 3), "padding": (1, 1, 1, 1)}), ((150, 40), {"padding": (1, 1, 1, 1)})]
    others = [layers.spec(size, (40, 32), (3, 3), **window) for size, window in windows]
    others += [layers.spec((40, 70), (40, 32), (1, 1), strides=(2, 2)), layers.spec((300, 9), (130, 32))]
    # Sixteen windows at once: side by side, or near enough to lie in two registers; and some that are left over.
    short = [layers.spec((5, 9), (channels, 32)) for channels in (4, 16, 64)]
    short.append(layers.spec((45, 30), (32, 16)))  # over blocks of rows
    for channels, window in (
        (3, {"strides": (2, 2)}),
        (3, {"strides": (2, 2), "dilation": (2, 2)}),
        (5, {"padding": (1, 1, 1, 1)}),
    ):
        short.append(layers.spec((7, 49), (channels, 16), (3, 3), **window))
    short.append(layers.spec((10, 11), (16, 16), (9, 9), groups=16))  # sums that float32's bits don't hold
    zero_points = itertools.cycle([-128, "axis", 127, "axis"])
    chosen = part(specs + padded + others + short, isa, 7)
    check(layers.case(spec, isa, w_zero_point=next(zero_points)) for spec in chosen)


@every_cpu
def test_depthwise_with_few_channels_of_nine_bits(isa: str) -> None:
    layers = Layers(12)
    spec = layers.spec((5, 6), (200, 200), (3, 3), padding=(1, 1, 1, 1), groups=200)
    x = layers.rng.integers(0, 256, (1, 5, 6, 200)).astype(np.uint8)
    plain = layers.rng.integers(-50, 50, (3, 3, 1, 200)).astype(np.int8)
    bias = layers.rng.integers(-5000, 5000, 200).astype(np.int32)
    cases = []
    for extreme, w_zero_point in (((), -40), ((3, 199), -40), ((128, 129), -40), ((3, 199), -128)):
        w = plain.copy()
        w[1, 2, 0, list(extreme)] = 127
        cases.append(exact_case(spec, isa, x, w, w_zero_point, bias, layers.multiplier(w)))
    check(cases)


@every_cpu
@pytest.mark.parametrize("w_zero_point", [-40, 44, -128])
def test_few_weights_of_nine_bits(isa: str, w_zero_point: int) -> None:
    layers = Layers(13)
    cases = []
    for channels, kernel, groups in (((64, 160), (1, 1), 1), ((30, 72), (3, 3), 1), ((16, 40), (3, 3), 4), ((3, 33), (3, 3), 1)):
        spec = layers.spec((5, 6), channels, kernel, groups=groups, padding=(kernel[0] // 2,) * 4)
        x = layers.rng.integers(0, 256, (1, 5, 6, channels[0])).astype(np.uint8)
        w = layers.rng.integers(-40, 40, (*kernel, channels[0] // groups, channels[1])).astype(np.int8)
        flat = w.reshape(-1)
        flat[layers.rng.choice(flat.size, 3, replace=False)] = -128 if w_zero_point > 0 else 127
        bias = layers.rng.integers(-5000, 5000, channels[1]).astype(np.int32)
        cases.append(exact_case(spec, isa, x, w, w_zero_point, bias, layers.multiplier(w)))
    check(cases)


@every_cpu
def test_threads(isa: str) -> None:
    layers = Layers(8)
    specs = [
        layers.spec((28, 28), (64, 136)),
        layers.spec((1, 1), (2048, 1000)),  # one pixel: the threads share the channels
        layers.spec((7, 7), (96, 200), (3, 3), padding=(1, 1, 1, 1)),
        layers.spec((20, 20), (32, 96), (3, 3), strides=(2, 2), batch=3),
        layers.spec((25, 25), (64, 128), (3, 3), padding=(1, 1, 1, 1), groups=4),
        layers.spec((40, 40), (72, 72), (5, 5), padding=(2, 2, 2, 2), strides=(2, 2), groups=72, batch=2),
    ]
    check(layers.case(dataclasses.replace(spec, threads=2 + i % 2), isa) for i, spec in enumerate(specs))


@every_cpu
def test_inputs_larger_than_a_block(isa: str) -> None:
    layers = Layers(9)
    specs = [
        layers.spec((61, 67), (130, 24)),
        layers.spec((50, 70), (100, 24), (3, 3), padding=(1, 1, 1, 1)),
        layers.spec((50, 70), (100, 24), (3, 3), strides=(2, 2)),
        layers.spec((64, 64), (100, 100), (3, 3), padding=(1, 1, 1, 1), groups=100),
    ]
    check(layers.case(spec, isa) for spec in specs)


@every_isa
def test_extreme_operands(isa: str) -> None:
    """Kinds of layers, weights, their zero points (none, or the one farthest from them) and the input's zero points: every three
    of these meet, and every two in the generic kernel."""
    layers = Layers(10)
    specs = [
        layers.spec((4, 4), (1000, 17)),
        layers.spec((5, 5), (64, 17), (3, 3), padding=(1, 1, 1, 1)),
        layers.spec((5, 5), (33, 33), (3, 3), padding=(1, 1, 1, 1), groups=33),
    ]
    cases = []
    choices = [specs, [127, -128], [True, False], [0, 255]]
    for plain, w_value, has_zero_point, x_zero_point in AllPairs(choices, n=3 if isa == AVX512_VNNI else 2):
        spec = dataclasses.replace(plain, input_zero_point=x_zero_point, output=Output(zero_point=100))
        w = np.full((*spec.kernel, spec.in_channels // spec.groups, spec.out_channels), w_value, np.int8)
        x = np.full((1, spec.in_height, spec.in_width, spec.in_channels), 255 - x_zero_point, np.uint8)
        most = 255 * 255 * int(np.prod(w.shape[:3]))
        w_zero_point = -w_value - 1 if has_zero_point else 0
        multiplier = np.full(spec.out_channels, 140 / most, np.float32)
        cases.append(exact_case(spec, isa, x, w, w_zero_point, np.zeros(spec.out_channels, np.int32), multiplier))
    check(cases)


@every_isa
def test_saturating_multipliers_and_biases(isa: str) -> None:
    layers = Layers(11)
    cases = []
    for channels, groups in (((5, 17), 1), ((5, 16), 1), ((5, 80), 1), ((20, 20), 20)):
        spec = layers.spec((3, 3), channels, (2, 2), groups=groups)
        x = layers.rng.integers(0, 256, (1, 3, 3, channels[0])).astype(np.uint8)
        w = layers.rng.integers(-128, 128, (2, 2, channels[0] // groups, channels[1])).astype(np.int8)
        bias = np.resize(np.int32([0, 2**30, -(2**30), 1, -(2**31) + 2**24, 2**31 - 2**24]), channels[1])
        multiplier = np.resize(np.float32([1e30, 1e-30, 3.4e38, 1e-45, 1.0, 2.0**-23, 0.75]), channels[1])
        cases.append(exact_case(spec, isa, x, w, 0, bias, multiplier))
    check(cases)


@every_isa
def test_ties_round_half_to_even(isa: str) -> None:
    spec = Conv2dSpec(
        batch=1,
        in_height=1,
        in_width=256,
        in_channels=1,
        out_channels=96,
        kernel=(1, 1),
        input_zero_point=128,
        output=Output(zero_point=101),
    )
    x = np.arange(256, dtype=np.uint8).reshape(1, 1, 256, 1)
    w = np.ones((1, 1, 1, 96), np.int8)
    case = exact_case(spec, isa, x, w, 0, np.zeros(96, np.int32), np.full(96, 0.5, np.float32))
    assert case.expected[0, 0, 129, 0] == 101  # 0.5 rounds to 0
    assert case.expected[0, 0, 131, 0] == 103  # 1.5 rounds to 2
    check([case])


def test_unknown_isa_lists_the_known_ones() -> None:
    spec = Layers(0).spec((1, 1), (1, 1))
    with pytest.raises(TargetError, match=r"'riscv\.rvv'.*x86\.avx512_vnni, x86\.avx_vnni, x86\.avx2, arm\..*, generic"):
        conv2d(
            spec,
            weight=np.zeros((1, 1, 1, 1), np.int8),
            weight_zero_point=0,
            bias=np.zeros(1, np.int32),
            multiplier=np.ones(1, np.float32),
            isa="riscv.rvv",
        )
