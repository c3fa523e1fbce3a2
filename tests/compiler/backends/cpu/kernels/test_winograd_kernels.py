"""Minimal filtering gives the bits of the oracle with every kind of tile, and is taken where it is exact and pays."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from conv2d_cases import CHANNEL_PAIRS, Layers, exact_case
from kernel_runner import Case, check
from test_float_output_kernels import FloatLayers
from test_sum_output_kernels import sum_case

from machine_isas import each_isa
from octavo.compiler.backends.cpu.kernels import AVX2, Conv2dSpec, WinogradSchedule, conv2d, target_for
from octavo.compiler.backends.cpu.kernels.conv.schedule_key import schedule_key
from octavo.compiler.backends.cpu.kernels.conv.x86.bilinear.minimal_filter import MinimalFilter, TileTransform
from octavo.compiler.backends.cpu.kernels.conv.x86.bilinear.winograd_choice import FILTERS, winograd_plans
from octavo.compiler.backends.cpu.kernels.conv.x86.cores import CORES
from octavo.errors import TuningError
from octavo.ir.composites.outputs import Output
from octavo.runtime.llvm_host import host_target

on_avx2 = pytest.mark.parametrize("isa", each_isa([AVX2]))
SAME = (1, 1, 1, 1)
EVERY_FILTER = [each for filters in FILTERS.values() for each in filters]


def tiles(rows: int, columns: int, block: int | None = None) -> WinogradSchedule:
    return WinogradSchedule(tile_rows=rows, tile_columns=columns, block=block)


def scheduled_case(layers: Layers, spec: Conv2dSpec, schedule: WinogradSchedule, isa: str) -> Case:
    """A layer that takes this schedule if that is exact for its weights."""
    schedules = {schedule_key(spec, asymmetric=asymmetric): schedule for asymmetric in (False, True)}
    return layers.case(spec, isa, schedules=schedules)


def winograd_case(layers: Layers, spec: Conv2dSpec, schedule: WinogradSchedule, isa: str) -> Case:
    """A layer that takes this schedule, whatever the model of costs says."""
    case = scheduled_case(layers, spec, schedule, isa)
    assert case.kernel.name == f"conv2d.winograd {schedule.tile_rows}x{schedule.tile_columns}"
    return case


def check_all(cases: Sequence[Case]) -> None:
    check(cases, target_for(AVX2, host_target()))


@pytest.mark.parametrize("each", EVERY_FILTER, ids=lambda each: f"{each.taps} taps by {each.stride}, {each.outputs} outputs")
def test_matrices_give_the_convolution(each: MinimalFilter, rng: np.random.Generator) -> None:
    matrices = (np.array(rows) for rows in (each.input_rows, each.weight_rows, each.output_rows))
    inputs, weights, outputs = matrices
    x, w = rng.integers(0, 256, each.inputs), rng.integers(-128, 128, each.taps)
    expected = [w @ x[o * each.stride : o * each.stride + each.taps] for o in range(each.outputs)]
    assert (outputs @ ((weights @ w) * (inputs @ x))).tolist() == [each.factor * value for value in expected]


@pytest.mark.parametrize("rows", EVERY_FILTER, ids=lambda each: f"{each.taps}/{each.stride}/{each.outputs}")
def test_reach_and_inverse(rows: MinimalFilter) -> None:
    transform = TileTransform(rows=rows, columns=MinimalFilter.of(4, 3))
    both = np.kron(rows.input_rows, transform.columns.input_rows)
    assert transform.input_reach == max(np.maximum(both, 0).sum(axis=1).max(), np.maximum(-both, 0).sum(axis=1).max())
    assert transform.inverse * rows.factor * transform.columns.factor % 2**32 == 1 << transform.shift


@on_avx2
def test_every_kind_of_tile(isa: str) -> None:
    layers, outputs = Layers(1), itertools.cycle((33, 16, 16))
    cases = []
    # Every filter along rows, and along columns, beside one that leaves it the bits that it takes.
    pairs = [
        (each, MinimalFilter.of(1, 1) if each.taps == 7 else MinimalFilter.of(2, 3)) for each in EVERY_FILTER if each.taps > 1
    ]
    pairs += [(other, each) for each, other in pairs[::-2]]
    for rows, columns in pairs:
        kernel, strides, padding = (rows.taps, columns.taps), (rows.stride, columns.stride), (rows.taps // 2, 1, 0, 2)
        spec = layers.spec((11, 10), (5, next(outputs)), kernel, strides=strides, padding=padding)
        cases.append(winograd_case(layers, spec, tiles(rows.outputs, columns.outputs), isa))
    check_all(cases)


@on_avx2
def test_channels_sizes_and_paddings(isa: str) -> None:
    layers = Layers(2)
    kinds = itertools.cycle([tiles(4, 4), tiles(2, 2), tiles(2, 4)])
    cases = [winograd_case(layers, layers.spec((6, 7), pair, (3, 3), padding=SAME), next(kinds), isa) for pair in CHANNEL_PAIRS]
    for size, padding in {
        (4, 4): (0, 0, 0, 0),
        (1, 13): SAME,
        (9, 3): (2, 0, 1, 3),
        (8, 8): (0, 2, 2, 0),
        (5, 6): (0, 1, 0, 2),
    }.items():
        cases.append(winograd_case(layers, layers.spec(size, (16, 16), (3, 3), padding=padding), next(kinds), isa))
    check_all(cases)


@on_avx2
def test_blocks_threads_and_batches(isa: str) -> None:
    layers = Layers(3)
    cases = []
    for number, (block, threads, batch) in enumerate(((1, 1, 2), (3, 1, 1), (None, 3, 2), (4, 2, 1))):
        spec = layers.spec((27, 22), (40, (72, 32)[number % 2]), (3, 3), padding=SAME, threads=threads, batch=batch)
        cases.append(winograd_case(layers, spec, tiles(4, 4, block), isa))
    few_rows = layers.spec((7, 7), (96, 200), (3, 3), padding=SAME, threads=2)  # threads share the channels
    cases.append(winograd_case(layers, few_rows, tiles(2, 2), isa))
    check_all(cases)


def _extreme(spec: Conv2dSpec, isa: str, schedule: WinogradSchedule, x: np.ndarray, w: np.ndarray, w_zero_point: int) -> Case:
    most = max(1, int(np.abs(w.astype(np.int64) - w_zero_point).sum(axis=(0, 1, 2)).max())) * 255
    multiplier = np.full(spec.out_channels, 140 / most, np.float32)
    schedules = {schedule_key(spec, asymmetric=bool(w_zero_point)): schedule}
    bias = np.zeros(spec.out_channels, np.int32)
    return exact_case(spec, isa, x, w, w_zero_point, bias, multiplier, schedules=schedules)


@on_avx2
def test_extreme_operands(isa: str) -> None:
    """Weights at both ends of their range and activations at both of theirs, alike or alternating, in every pairing."""
    cases = []
    shape, grid = (3, 3, 24, 17), np.indices((3, 3, 24, 17)).sum(axis=0)
    image = np.indices((1, 9, 9, 24)).sum(axis=0)
    weights = [np.full(shape, 127), np.full(shape, -128), np.where(grid % 2, 127, -128), np.where(grid % 3, -128, 127)]
    inputs = [np.zeros(image.shape), np.full(image.shape, 255), np.where(image % 2, 255, 0), np.where(image % 3, 0, 255)]
    for number, (w, x) in enumerate(itertools.product(weights, inputs)):
        spec = Layers(4).spec((9, 9), (24, 17), (3, 3), padding=SAME)
        spec = dataclasses.replace(spec, input_zero_point=(0, 255)[number % 2], output=Output(zero_point=100))
        schedule = (tiles(4, 4), tiles(2, 2))[number // 2 % 2]
        # None, or the one farthest from most weights: with either each of the weights and each of the activations meet.
        w_zero_point = (0, (-128, 127, -128, 127)[number // 4])[(number // 4 + number) % 2]
        case = _extreme(spec, isa, schedule, x.astype(np.uint8), w.astype(np.int8), w_zero_point)
        assert case.kernel.name.startswith("conv2d.winograd")
        cases.append(case)
    check_all(cases)


LARGEST = ((1 << 31) - 1 >> 6) // 255
"""Sum of weights of one sign from which on tiles of 4 x 4 take too many bits."""


@on_avx2
def test_the_largest_sums_and_what_is_beyond(isa: str) -> None:
    inputs = -(-LARGEST // (9 * 127))
    spec = dataclasses.replace(Layers(5).spec((6, 6), (inputs, 16), (3, 3)), output=Output(zero_point=3), input_zero_point=0)
    x = np.full((1, 6, 6, inputs), 255, np.uint8)
    cases = []
    for total, sign in itertools.product((LARGEST, LARGEST + 1), (1, -1)):
        w = np.full((3, 3, inputs, 16), 127, np.int64)
        w.reshape(-1, 16)[-9:] -= 127  # room for what makes the sum exact
        rest = total - int(w[..., 0].sum())
        w.reshape(-1, 16)[-9:] += np.array([rest // 9 + (i < rest % 9) for i in range(9)])[:, None]
        cases.append(_extreme(spec, isa, tiles(4, 4), x, (sign * w).astype(np.int8), 0))
        assert abs(int(cases[-1].expected[0, 0, 0, 0]) - 3) > 100 or sign < 0
    names = [case.kernel.name for case in cases]
    assert names[:2] == ["conv2d.winograd 4x4"] * 2
    assert "conv2d.winograd 4x4" not in names[2:]
    check_all(cases)


@on_avx2
def test_any_size(isa: str, rng: np.random.Generator) -> None:
    layers = Layers(11)
    cases = []
    for kernel in ((3, 3), (1, 3), (3, 1), (1, 7), (7, 1), (5, 5), (2, 2)):
        size = tuple(int(rng.integers(taps, taps + 15)) for taps in kernel)
        channels = tuple(map(int, rng.integers(1, 71, 2)))
        padding = tuple(map(int, rng.integers(0, 3, 4)))
        spec = layers.spec(size, channels, kernel, padding=padding, threads=int(rng.integers(1, 3)))
        plans = [plan for plan in winograd_plans(spec, CORES[AVX2]) if plan.transform.weight_reach * 255 < 1 << 15]
        # Of so many weights some may have sums of too many bits, which another kernel computes.
        make = winograd_case if channels[0] * kernel[0] * kernel[1] * 255 <= LARGEST else scheduled_case
        cases.append(make(layers, spec, plans[rng.integers(len(plans))].schedule, isa))
    check_all(cases)


@on_avx2
def test_results_of_every_kind(isa: str) -> None:
    layers, floats = Layers(6), FloatLayers(7)
    modes = ("constant", "image", "tensor")
    specs = [layers.spec((12, 13), (40, 16), (3, 3), padding=SAME, batch=2) for _ in modes]
    cases = [sum_case(layers, spec, isa, mode) for spec, mode in zip(specs, modes, strict=True)]
    cases += [floats.float_case(spec, isa, mode) for spec, mode in zip(specs, modes, strict=True)]
    assert all(case.kernel.name.startswith("conv2d.winograd") for case in cases)
    check_all(cases)


def kernel_name(size: int, channels: tuple[int, int], kernel: tuple[int, int] = (3, 3), **window: object) -> str:
    layers = Layers(8)
    padding = (kernel[0] // 2, kernel[1] // 2) * 2
    return layers.case(layers.spec((size, size), channels, kernel, padding=padding, **window), AVX2, w_zero_point=0).kernel.name


def names_of_layers() -> Iterator[tuple[str, str]]:
    yield "conv2d.winograd 4x4", kernel_name(56, (64, 64))
    yield "conv2d.winograd 1x4", kernel_name(17, (128, 128), (1, 7))
    yield "conv2d.winograd 4x4", kernel_name(35, (48, 64), (5, 5))
    yield "conv2d.direct", kernel_name(33, (3, 32), strides=(2, 2))
    yield "conv2d.direct", kernel_name(20, (3, 8))
    yield "conv2d.direct", kernel_name(14, (64, 64), dilation=(2, 2))
    yield "conv2d.grouped", kernel_name(14, (64, 64), groups=4)
    yield "conv2d.pointwise", kernel_name(14, (64, 64), (1, 1))


def test_it_is_taken_where_it_pays() -> None:
    for expected, name in names_of_layers():
        assert name.startswith(expected), (expected, name)


def test_schedules_that_no_kernel_can_take() -> None:
    layers = Layers(9)
    spec = layers.spec((9, 9), (20, 20), (3, 3), padding=SAME)
    for schedule in (tiles(3, 3), tiles(4, 4, 4), tiles(1, 4)):
        with pytest.raises(TuningError, match="can take the schedule winograd"):
            winograd_case(layers, spec, schedule, AVX2)


def test_tuning_has_both_kinds_of_kernels_to_choose_from() -> None:
    layers = Layers(10)
    spec = layers.spec((14, 14), (64, 64), (3, 3), padding=SAME)
    operands = {"weight": np.ones((3, 3, 64, 64), np.int8), "weight_zero_point": 0, "multiplier": np.float32(1)}
    kernel = conv2d(spec, **operands, bias=np.zeros(64, np.int32), isa=AVX2)
    assert kernel.tunable is not None
    kinds = {type(schedule).__name__ for schedule in kernel.tunable.alternatives}
    assert kinds == {"TileSchedule", "WinogradSchedule"}
