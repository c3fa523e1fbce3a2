"""Kernels for other machines than this one give the oracle's bits, at each level of features, under QEMU.

This is part of what `make test-arm` runs, every test of kernels on every such machine.
"""

import dataclasses
import itertools

import numpy as np
import pytest
import test_affine_rows
import test_elementwise_kernels
import test_half_cast_kernel
import test_half_pool2d_kernel
import test_int16_conv2d_kernels
import test_lookup_kernel
import test_pair_lookup_kernel
import test_pairwise_kernels
import test_reduce_kernel
import test_resize_kernel
import test_softmax_kernel
from conv2d_cases import CHANNEL_PAIRS, Layers, exact_case, matmul_case
from emulated_kernels import DOTPROD, MACHINES, RISCV, Emulated, call_of, check_emulated
from kernel_runner import Case, few

from octavo.compiler.backends.cpu.kernels import ARM_DOTPROD, ARM_I8MM, ARM_NEON, GENERIC, Conv2dSpec, TileSchedule
from octavo.ir.composites.outputs import Output
from octavo.numerics.floats.half import HALF_DTYPES

EACH = pytest.mark.parametrize("isa", [ARM_NEON, ARM_DOTPROD, ARM_I8MM])
SAME = {"padding": (1, 1, 1, 1)}
EXTREMES = np.array([-128, 127, -128, 3], np.int16)


def check(cases: list[Case], machine: Emulated, *, is_optimized: bool = False) -> None:
    assert check_emulated([call_of(case) for case in cases], machine, is_optimized=is_optimized) == len(cases)


def windows(layers: Layers) -> list[Conv2dSpec]:
    """Convolutions of every kind: strides, paddings, dilations, groups, batches, threads."""
    return [
        layers.spec((9, 7), (3, 16), (3, 3), strides=(2, 2), **SAME),
        layers.spec((8, 8), (16, 33), (3, 3), **SAME),
        layers.spec((7, 9), (20, 24), (5, 3), padding=(0, 1, 2, 1), dilation=(1, 2)),
        layers.spec((6, 6), (17, 20), (1, 1), strides=(2, 2), batch=2),
        layers.spec((8, 8), (12, 24), (3, 3), groups=2, **SAME),
        layers.spec((8, 8), (64, 64), (3, 3), groups=4),
        layers.spec((8, 8), (17, 17), (3, 3), groups=17, **SAME),
        layers.spec((12, 12), (32, 40), (3, 3), threads=2, **SAME),
    ]


LARGEST = [
    ((4, 4), (64, 20), (1, 1), 1),
    ((4, 5), (8, 17), (3, 3), 1),
    ((4, 5), (20, 20), (3, 3), 20),
    ((6, 7), (17, 17), (5, 5), 17),
]


@EACH
def test_sums_and_results_as_large_as_are_rounded_by_a_sum(isa: str) -> None:
    """Sums at the ends of the range whose bits a kernel reads as those of a float32, and beyond; results of 16 bits alike.

    Each layer with each of the results and each of the sums, and with one zero point, by turns from a layer or an ISA to the
    next; in one program, as all kernels of a layer are equal.
    """
    layers, cases, sums = Layers(42), list[Case](), (2**22, 2**22 + 1, 2**21)
    for (number, layer), (turn, most_real) in itertools.product(enumerate(LARGEST), enumerate([32766.9, 32767.5, 300.0])):
        is_last = (number + list(MACHINES).index(isa)) % 2
        (size, channels, kernel, groups), zero_point, most_sum = layer, 255 * is_last, sums[(number + turn + is_last) % 3]
        spec = layers.spec(size, channels, kernel, groups=groups)
        spec = dataclasses.replace(spec, input_zero_point=zero_point, output=Output(zero_point=zero_point, qmin=1))
        w = layers.rng.choice(np.array([-128, 127, 1], np.int8), (*kernel, channels[0] // groups, channels[1]))
        w[..., 0] = 127
        largest = 255 * np.abs(w.astype(int)).sum(axis=(0, 1, 2))
        bias = ((most_sum - largest) * layers.rng.choice([-1, 1], channels[1])).astype(np.int32)
        x = layers.rng.choice(np.array([0, 255, 254], np.uint8), (1, *size, channels[0]))
        x[0, :-1, :-1] = 255 - zero_point
        factor = np.full(channels[1], most_real / most_sum, np.float32)
        cases.append(exact_case(spec, isa, x, w, 0, bias, factor))
    check(cases, MACHINES[isa])


@EACH
def test_pointwise(isa: str) -> None:
    """Few outputs on pixels that leave some in each direction; many, whose tiles are long code, on those of one tile or fewer."""
    layers = Layers(31)
    sizes = {64: (1, 4), 65: (2, 1), 127: (1, 1)}
    check([layers.case(layers.spec(sizes.get(pair[1], (5, 3)), pair), isa) for pair in CHANNEL_PAIRS], MACHINES[isa])


def test_pixels_in_pairs() -> None:
    """Copied two by turns, with one that has no partner, and runs that end in half a block."""
    layers, sizes = Layers(38), [((5, 3), (16, 32)), ((7, 7), (24, 48)), ((9, 9), (40, 17)), ((3, 1), (64, 70))]
    check([layers.case(layers.spec(*size), ARM_I8MM) for size in sizes], MACHINES[ARM_I8MM])


def test_windows_in_pairs() -> None:
    """Side by side or one below the other, with rows and columns that leave one alone; some of them in no pair of the copy.

    Each window with three of the tiles, each tile with two windows or three.
    """
    layers, cases = Layers(47), list[Case]()
    tiles = itertools.cycle([(4, 1), (1, 4), (2, 2), (1, 2), (2, 3)])
    outputs = itertools.cycle([40, 16, 16, 16])
    for inputs, kernel, window in (
        (24, (3, 3), SAME),
        (16, (3, 5), {"strides": (2, 1), "padding": (1, 2, 0, 1)}),
        (8, (3, 3), {"dilation": (1, 2), "strides": (1, 2)}),
        (72, (1, 2), {"threads": 2}),
    ):
        for _ in range(3):
            rows, columns = next(tiles)
            # Those of the last vector are written out apart.
            spec = layers.spec((9, 11), (inputs, next(outputs)), kernel, batch=2, **window)
            tunable = layers.case(spec, ARM_I8MM, w_zero_point=0).kernel.tunable
            assert tunable is not None
            measured = {tunable.key: TileSchedule(rows=rows, columns=columns, vectors=1)}
            cases.append(layers.case(spec, ARM_I8MM, w_zero_point=0, schedules=measured))
    check(cases, MACHINES[ARM_I8MM])


@EACH
def test_windows(isa: str) -> None:
    """Weights with zero points, or with others; plain and dot products, which read windows alike, share them. Optimized."""
    layers, points = Layers(32), itertools.cycle((0, "axis"))
    chosen = {ARM_NEON: slice(0, None, 2), ARM_DOTPROD: slice(1, None, 2), ARM_I8MM: slice(None)}[isa]
    cases = [layers.case(spec, isa, w_zero_point=next(points)) for spec in windows(layers)[chosen]]
    check(cases, MACHINES[isa], is_optimized=True)


def depthwise(layers: Layers) -> list[Conv2dSpec]:
    """Windows that share rows or don't, or end within a strip; few channels, several of an input, taps that are a loop."""
    return [
        layers.spec((9, 7), (16, 16), (3, 3), groups=16, **SAME),
        layers.spec((9, 8), (33, 33), (3, 3), groups=33, strides=(2, 2), **SAME),
        layers.spec((7, 9), (64, 64), (5, 5), groups=64, padding=(2, 2, 2, 2), threads=2),
        layers.spec((11, 8), (32, 32), (5, 5), groups=32, strides=(2, 2), padding=(1, 2, 2, 1)),
        layers.spec((6, 6), (3, 6), (3, 3), groups=3, **SAME),
        layers.spec((8, 9), (20, 20), (3, 3), groups=20, dilation=(2, 2), batch=2),
        layers.spec((10, 8), (17, 17), (7, 5), groups=17, padding=(3, 2, 3, 2)),
        layers.spec((1, 12), (48, 48), (1, 3), groups=48, padding=(0, 1, 0, 1)),
    ]


@EACH
def test_depthwise(isa: str) -> None:
    """Each window with weights that have zero points, or with others, and with the others on another machine."""
    layers, points = Layers(36), itertools.cycle(("axis", 0) if isa == ARM_DOTPROD else (0, "axis"))
    check([layers.case(spec, isa, w_zero_point=next(points)) for spec in depthwise(layers)], MACHINES[isa])


@EACH
def test_depthwise_of_extremes(isa: str) -> None:
    """Sums of two products in 16 bits hold all but those of -128 twice; three hold where weights are small."""
    rng = np.random.default_rng(37)
    sizes = {"batch": 1, "in_height": 6, "in_width": 6, "in_channels": 16, "out_channels": 16, "groups": 16, "kernel": (3, 3)}
    spec = Conv2dSpec(**sizes, input_zero_point=128, output=Output(zero_point=128))
    cases: list[Case] = []
    for values in ((-128,), (-128, -127), (127, -128), (127,), (85, -85), (-86, 85), (-64, 63)):
        x = rng.choice([0, 255], (1, 6, 6, 16)).astype(np.uint8)
        x[0, :, :3], x[0, :, 3:, 8:] = 0, 255
        w = rng.choice(values, (3, 3, 1, 16)).astype(np.int8)
        cases.append(exact_case(spec, isa, x, w, 0, np.zeros(16, np.int32), np.full(16, 1e-4, np.float32)))
    check(cases, MACHINES[isa])


@EACH
def test_matmul(isa: str) -> None:
    layers = Layers(33)
    sizes = [(1, 1, 33), (1, 7, 16), (1, 129, 100), (2, 64, 17), (3, 40, 1), (16, 31, 65)]
    check([matmul_case(layers, *size, isa) for size in sizes], MACHINES[isa])


@EACH
def test_extremes_in_every_pairing(isa: str) -> None:
    """Products of the least and greatest bytes, which 16 bits don't hold two of."""
    rng = np.random.default_rng(34)
    sizes = {"batch": 1, "in_height": 8, "in_width": 1, "in_channels": 48, "out_channels": 20, "kernel": (1, 1)}
    spec = Conv2dSpec(**sizes, input_zero_point=128, output=Output(zero_point=128))
    cases: list[Case] = []
    for values in ((-128,), (127,), (-128, 127), (-127, 127), (-128, -127)):
        x = rng.choice([0, 255], (1, 8, 1, 48)).astype(np.uint8)
        x[0, 0], x[0, 1] = 0, 255
        w = rng.choice(values, (1, 1, 48, 20)).astype(np.int8)
        cases.append(exact_case(spec, isa, x, w, 0, np.zeros(20, np.int32), np.full(20, 1e-4, np.float32)))
    check(cases, MACHINES[isa])


@pytest.mark.parametrize("machine", [DOTPROD, RISCV], ids=["aarch64", "riscv64"])
def test_generic(machine: Emulated) -> None:
    layers = Layers(35)
    check([layers.case(spec, GENERIC) for spec in windows(layers)], machine)


OTHERS = [
    *(module.cases for module in (test_affine_rows, test_pair_lookup_kernel, test_pairwise_kernels)),
    *(module.cases for module in (test_reduce_kernel, test_resize_kernel, test_softmax_kernel)),
    test_elementwise_kernels.requantize_cases,
    test_elementwise_kernels.add_cases,
    test_elementwise_kernels.concat_cases,
]


@pytest.mark.parametrize("machine", [DOTPROD, RISCV], ids=["aarch64", "riscv64"])
def test_other_kernels(rng: np.random.Generator, machine: Emulated) -> None:
    check([case for cases in OTHERS for case in few(cases(rng, GENERIC), 13)], machine)


def test_lookups(rng: np.random.Generator) -> None:
    check(test_lookup_kernel.cases(rng, ARM_NEON), MACHINES[ARM_NEON])


@pytest.mark.parametrize("machine", [DOTPROD, RISCV], ids=["aarch64", "riscv64"])
def test_halves(rng: np.random.Generator, machine: Emulated) -> None:
    casts = [case for dtype in HALF_DTYPES for case in few(test_half_cast_kernel.cases(rng, dtype, GENERIC), 5)]
    check([*casts, *test_half_pool2d_kernel.cases(rng, GENERIC)], machine)


@EACH
def test_int16_by_products_of_bytes(isa: str) -> None:
    """High and low bytes side by side or by turns, with ends of blocks that are no vectors, and the ends of the ranges.

    Matrices, windows and layers for two threads each at random and with the ends of the ranges, by turns.
    """
    rng = np.random.default_rng(17)
    windows = [
        ((1, 5, 3, 8), (1, 1, 8, 20), {}),
        ((2, 3, 3, 24), (1, 1, 24, 65), {}),
        ((1, 23, 31, 21), (1, 1, 21, 33), {"threads": 2}),
        ((1, 9, 7, 8), (3, 3, 8, 40), {"padding": (1, 1, 0, 2), "strides": (2, 1), "zero_point": -77}),
        ((2, 6, 5, 20), (3, 2, 20, 17), {"dilation": (1, 2), "zero_point": 32767}),
        ((1, 7, 7, 32), (3, 3, 16, 34), {"groups": 2, **SAME}),
        ((1, 1, 1, 96), (1, 1, 96, 24), {}),
    ]
    cases: list[Case] = []
    for number, (shape, weight_shape, fields) in enumerate(windows):
        rounding = test_int16_conv2d_kernels.ROUNDINGS[number % 5]
        given = {"x": test_int16_conv2d_kernels.extremes(rng, shape), "weight": rng.choice(EXTREMES, weight_shape)}
        operands = given if number % 2 else {}
        cases.append(test_int16_conv2d_kernels.convolution(isa, rounding, rng, shape, weight_shape, **operands, **fields))
    assert {case.kernel.isa for case in cases} == {isa}
    check(cases, MACHINES[isa])


@EACH
def test_schedules_of_depthwise(isa: str) -> None:
    """Each that a kernel offers it takes, whichever of the two it is."""
    layers, cases = Layers(53), list[Case]()
    for kernel, window in (((3, 3), SAME), ((5, 5), {"strides": (2, 2)})):
        spec = layers.spec((11, 9), (80, 80), kernel, groups=80, **window)
        tunable = layers.case(spec, isa, w_zero_point=0).kernel.tunable
        assert tunable is not None
        schedules = [{tunable.key: schedule} for schedule in tunable.alternatives]
        cases += [layers.case(spec, isa, w_zero_point=0, schedules=each) for each in schedules]
    check(cases, MACHINES[isa])
