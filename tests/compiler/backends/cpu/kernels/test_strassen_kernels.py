"""Strassen's product gives the bits of the oracle at every level, and is taken where it pays."""

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import pytest
from conv2d_cases import Layers, exact_case
from kernel_runner import Case, check
from test_float_output_kernels import FloatLayers
from test_sum_output_kernels import sum_case

from machine_isas import each_isa
from octavo.compiler.backends.cpu.kernels import AVX2, Conv2dSpec, StrassenSchedule, conv2d, target_for
from octavo.compiler.backends.cpu.kernels.conv.schedule_key import schedule_key
from octavo.compiler.backends.cpu.kernels.conv.x86.bilinear import block_product
from octavo.errors import TuningError
from octavo.ir.composites.outputs import Output
from octavo.runtime.llvm_host import host_target

on_avx2 = pytest.mark.parametrize("isa", each_isa([AVX2]))


def levels(count: int, block: int | None = None) -> StrassenSchedule:
    return StrassenSchedule(levels=count, block=block)


def keyed(spec: Conv2dSpec, schedule: StrassenSchedule) -> dict[str, StrassenSchedule]:
    return {schedule_key(spec, asymmetric=asymmetric): schedule for asymmetric in (False, True)}


def strassen_case(layers: Layers, spec: Conv2dSpec, schedule: StrassenSchedule, isa: str) -> Case:
    """A layer that takes this schedule, whatever the model of costs says."""
    case = layers.case(spec, isa, schedules=keyed(spec, schedule))
    assert case.kernel.name.endswith(f".strassen {2**schedule.levels}")
    return case


def check_all(cases: list[Case]) -> None:
    check(cases, target_for(AVX2, host_target()))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_seven_products_give_the_matrix_product(count: int, rng: np.random.Generator) -> None:
    size = 2**count
    a, b = rng.integers(-255, 256, (size, size)), rng.integers(-255, 256, (size, size))

    def blocks_of(values: np.ndarray) -> list[np.ndarray]:
        return [half for halves in np.split(values, 2) for half in np.split(halves, 2, axis=1)]

    def points_of(transform: Callable[..., list[np.ndarray]], values: np.ndarray) -> list[np.ndarray]:
        if len(values) == 1:
            return [values]
        return [point for each in transform(*blocks_of(values)) for point in points_of(transform, each)]

    pairs = zip(points_of(block_product.left, a), points_of(block_product.right, b), strict=True)
    sums = np.array([x * y for x, y in pairs]).reshape((7,) * count)
    for axis in range(count):
        sums = np.stack(block_product.products(*np.moveaxis(sums, axis, 0)), axis)
    result = np.zeros((size, size), np.int64)
    for place, value in zip(block_product.places(count), sums.ravel(), strict=True):
        result[place] = value
    assert result.tolist() == (a @ b).tolist()


def test_what_is_said_of_its_sums() -> None:
    blocks = np.array([block_product.left(*np.eye(4)), block_product.right(*np.eye(4))])
    assert np.abs(blocks).sum(axis=2).max() == block_product.REACH

    class Term:
        """What counts how often it is added or subtracted."""

        count = 0

        def __add__(self, other: object) -> "Term":
            Term.count += 1
            return Term()

        __sub__ = __add__

    for transform, size, sums in (
        (block_product.left, 4, block_product.LEFT_SUMS),
        (block_product.right, 4, block_product.RIGHT_SUMS),
        (block_product.products, 7, block_product.PRODUCT_SUMS),
    ):
        Term.count = 0
        transform(*(Term() for _ in range(size)))
        assert Term.count == sums


@on_avx2
def test_levels_sizes_and_strides(isa: str) -> None:
    layers = Layers(1)
    cases = []
    sizes = [(1, 1), (3, 5), (7, 7), (2, 13), (1, 6)]
    for number, (count, channels) in enumerate(itertools.product((1, 2), [(64, 64), (128, 192), (192, 64)])):
        size = sizes[number % len(sizes)]
        cases.append(strassen_case(layers, layers.spec(size, channels, batch=1 + number % 2), levels(count), isa))
    for count, strides in (1, (1, 2)), (2, (2, 2)), (1, (3, 1)):
        cases.append(strassen_case(layers, layers.spec((9, 8), (64, 64), strides=strides), levels(count), isa))
    cases.append(strassen_case(layers, layers.spec((5, 5), (32, 96)), levels(1), isa))
    check_all(cases)


@on_avx2
def test_blocks_and_threads(isa: str) -> None:
    layers = Layers(2)
    cases = []
    for number, (block, threads) in enumerate(((1, 1), (5, 1), (7, 1), (None, 2), (None, 3))):
        spec = layers.spec((19, 9), (64, 128), threads=threads)
        cases.append(strassen_case(layers, spec, levels(1 + number % 2, block), isa))
    few_rows = layers.spec((2, 4), (64, 512), threads=2)  # threads share the channels
    cases.append(strassen_case(layers, few_rows, levels(2), isa))
    check_all(cases)


def extreme_cases(isa: str, inputs: int, count_of: Callable[[int], int], **window: object) -> list[Case]:
    """Weights at both ends of their range and activations at both of theirs, alike, alternating or in parts, in every pairing.

    `count_of` says how many levels each of them takes.
    """
    shape = (1, 1, inputs, 64)
    grid, image = (np.indices(each).sum(axis=0) for each in (shape, (1, 3, 3, inputs)))
    weights = [np.full(shape, 127), np.full(shape, -128), np.where(grid % 2, 127, -128), np.where(grid // 32 % 2, -128, 127)]
    parts = image // (inputs // 4) % 2
    values = [np.zeros(image.shape), np.full(image.shape, 255), np.where(image % 2, 255, 0), np.where(parts, 0, 255)]
    cases = []
    for number, (w, x) in enumerate(itertools.product(weights, values)):
        spec = dataclasses.replace(
            Layers(3).spec((3, 3), (inputs, 64), **window), input_zero_point=(0, 255)[number % 2], output=Output(zero_point=100)
        )
        # None, or the one farthest from most weights: with either each of the weights and each of the activations meet.
        w_zero_point = (0, (-128, 127, -128, 127)[number // 4])[(number // 4 + number) % 2]
        most = max(1, int(np.abs(w.astype(np.int64) - w_zero_point).sum(axis=(0, 1, 2)).max())) * 255
        operands = (np.zeros(64, np.int32), np.full(64, 140 / most, np.float32))
        schedules = keyed(spec, levels(count_of(number)))
        cases.append(exact_case(spec, isa, x.astype(np.uint8), w.astype(np.int8), w_zero_point, *operands, schedules=schedules))
        assert cases[-1].kernel.name.endswith(f".strassen {2 ** count_of(number)}")
    return cases


@on_avx2
def test_extreme_operands(isa: str) -> None:
    check_all(extreme_cases(isa, 128, lambda number: 1 + number // 2 % 2))


@on_avx2
def test_any_size(isa: str, rng: np.random.Generator) -> None:
    layers = Layers(10)
    cases = []
    for count in (1, 2, 1, 2, 1):
        channels = tuple(int(16 * 2**count * each) for each in rng.integers(1, 5, 2))
        height, width, threads, batch = map(int, rng.integers(1, (13, 13, 3, 3)))
        spec = layers.spec((height, width), channels, threads=threads, batch=batch)
        cases.append(strassen_case(layers, spec, levels(count), isa))
    check_all(cases)


@on_avx2
def test_results_of_every_kind(isa: str) -> None:
    layers, floats = Layers(4), FloatLayers(5)
    modes = ("constant", "image", "tensor")
    specs = [layers.spec((15, 14), (256, 256), batch=2) for _ in modes]
    cases = [sum_case(layers, spec, isa, mode) for spec, mode in zip(specs, modes, strict=True)]
    cases += [floats.float_case(spec, isa, mode) for spec, mode in zip(specs, modes, strict=True)]
    assert all(case.kernel.name.startswith("conv2d.pointwise.strassen") for case in cases)
    check_all(cases)


def test_it_is_taken_where_it_pays() -> None:
    layers = Layers(6)

    def name(size: int, channels: tuple[int, int], **window: object) -> str:
        return layers.case(layers.spec((size, size), channels, **window), AVX2, w_zero_point=0).kernel.name

    assert name(28, (512, 512)) == "conv2d.pointwise.strassen 4"
    assert name(28, (128, 128)).startswith("conv2d.pointwise.strassen")
    for plain in (name(14, (48, 48)), name(112, (32, 16)), name(1, (512, 512)), name(14, (512, 512), groups=2)):
        assert ".strassen" not in plain


def test_schedules_that_no_kernel_can_take() -> None:
    layers = Layers(7)
    spec = layers.spec((9, 9), (64, 64))
    for schedule in (levels(3), levels(2, 1000)):
        with pytest.raises(TuningError, match="can take the schedule strassen"):
            strassen_case(layers, spec, schedule, AVX2)


def test_tuning_has_both_kinds_of_kernels_to_choose_from() -> None:
    spec = Layers(8).spec((14, 14), (256, 256))
    operands = {"weight": np.ones((1, 1, 256, 256), np.int8), "weight_zero_point": 0, "multiplier": np.float32(1)}
    kernel = conv2d(spec, **operands, bias=np.zeros(256, np.int32), isa=AVX2)
    assert kernel.tunable is not None
    kinds = {type(schedule).__name__ for schedule in kernel.tunable.alternatives}
    assert kinds == {"TileSchedule", "StrassenSchedule"}


@pytest.mark.parametrize(("size", "channels", "kernel"), [(56, (128, 128), 1), (14, (256, 256), 1), (14, (64, 128), 3)])
def test_a_kernel_can_take_each_schedule_that_it_names(size: int, channels: tuple[int, int], kernel: int) -> None:
    layers = Layers(9)
    spec = layers.spec((size, size), channels, kernel=(kernel, kernel), padding=(kernel // 2,) * 4)
    own = layers.case(spec, AVX2, w_zero_point=0).kernel.tunable
    assert own is not None
    assert any(not isinstance(schedule, type(own.schedule)) for schedule in own.alternatives)
    for schedule in own.alternatives:
        taken = layers.case(spec, AVX2, w_zero_point=0, schedules={own.key: schedule}).kernel.tunable
        assert taken is not None
        assert taken.schedule == schedule
