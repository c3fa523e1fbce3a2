"""quantize, dequantize, requantize, relabel, add and concat: every kernel equals its oracle bit for bit."""

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from kernel_runner import EACH_ISA, GENERIC, PARALLEL_SIZE, SIZES, Case, baseline_target, check, part

from octavo import numerics
from octavo.compiler.backends.cpu import kernels
from octavo.compiler.backends.cpu.kernels import (
    AddSpec,
    ConcatSpec,
    DequantizeSpec,
    Kernel,
    QuantizeSpec,
    RelabelSpec,
    RequantizeSpec,
)
from octavo.errors import TargetError
from octavo.ir.composites.outputs import Output
from octavo.numerics import QuantParams

WORK = [*((size, 1) for size in SIZES), (129, 2), (PARALLEL_SIZE, 1), (PARALLEL_SIZE, 2)]
OUTPUTS = (
    Output(zero_point=0),
    Output(zero_point=255),
    Output(zero_point=128, qmin=128, qmax=255),
    Output(zero_point=3, qmin=2, qmax=250),
)
# Halves of odd numbers are ties; 0.1 is no float32; 1.0000001 ends one bit above a tie; the last ones saturate or vanish.
MULTIPLIERS = tuple(float(np.float32(m)) for m in (0.5, 1.0, 1.5, 0.1, 1.0000001, 0.9999999, 7.25, 1e30, 1e-30))


def bytes_of(rng: np.random.Generator, size: int, dtype: str = "uint8") -> np.ndarray:
    low, high = numerics.INTEGER_RANGE[dtype]
    values = rng.integers(low, high + 1, size).astype(dtype)
    values[: min(size, 256)] = np.arange(low, high + 1)[: min(size, 256)]  # every value, where there is room
    return values


@pytest.mark.parametrize("isa", EACH_ISA)
def test_requantize(rng: np.random.Generator, isa: str) -> None:
    check(requantize_cases(rng, isa))


def requantize_cases(rng: np.random.Generator, isa: str) -> Iterator[Case]:
    zero_points, sizes = itertools.cycle((0, 7, 255)), itertools.cycle(WORK)
    work = [(*each, next(sizes)) for each in itertools.product(MULTIPLIERS, OUTPUTS)]
    for multiplier, output, (size, threads) in part(work, isa):
        zero_point = next(zero_points)
        spec = RequantizeSpec(size=size, multiplier=multiplier, input_zero_point=zero_point, output=output, threads=threads)
        x = bytes_of(rng, size)
        expected = numerics.requantize_tensor(
            x,
            input_zero_point=zero_point,
            multiplier=multiplier,
            zero_point=output.zero_point,
            qmin=output.qmin,
            qmax=output.qmax,
        )
        yield Case(kernel=kernels.requantize(spec, isa=isa), inputs=(x,), expected=expected, about=spec)


@pytest.mark.parametrize("isa", EACH_ISA)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_quantize(rng: np.random.Generator, isa: str, dtype: str) -> None:
    check(quantize_cases(rng, isa, dtype))


def reals(rng: np.random.Generator, size: int, scale: np.float32, zero_point: int) -> np.ndarray:
    """Values at and beside the rounding boundaries, then infinities, NaN, zeros, the ends of float32, then random ones."""
    with np.errstate(over="ignore", under="ignore"):
        ties = ((np.arange(-300, 300) + 0.5 - zero_point).astype(np.float32) * scale).astype(np.float32)
    ends = np.float32([np.inf, -np.inf, np.nan, -np.nan, 0.0, -0.0, 1e-45, -1e-45, 3.4e38, -3.4e38])
    beside = [ends, ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))]
    with np.errstate(over="ignore"):
        some = rng.normal(0, 100, size).astype(np.float32) * scale
    values = np.concatenate([*beside, some])
    return rng.permutation(values)[:size] if size < values.size else values[:size]


def quantize_cases(rng: np.random.Generator, isa: str, dtype: str) -> Iterator[Case]:
    low, high = numerics.INTEGER_RANGE[dtype]
    scales = (1.0, 0.1, 1 / 255, 0.0078125, 3.0, 1e-38, 1e-42, 3e38)
    settings = zip(itertools.cycle(scales), itertools.cycle((low, 5, high)), strict=True)
    for size, threads in part([*WORK, *[(1000, 1)] * 8], isa):
        scale, zero_point = next(settings)
        spec = QuantizeSpec(size=size, scale=scale, zero_point=zero_point, dtype=dtype, threads=threads)
        x = reals(rng, size, np.float32(scale), zero_point)
        expected = numerics.quantize(x, QuantParams.per_tensor(dtype, scale, zero_point))
        yield Case(kernel=kernels.quantize(spec, isa=isa), inputs=(x,), expected=expected, about=spec)
    rows, room = 3, 40
    for size in (1, 37):  # rows of a cache, with room behind each
        x = reals(rng, rows * room, np.float32(0.1), 5).reshape(rows, room)
        expected = numerics.quantize(x[:, :size], QuantParams.per_tensor(dtype, 0.1, 5))
        spec = QuantizeSpec(size=rows * size, scale=0.1, zero_point=5, dtype=dtype, rows=rows, room=room, threads=2)
        yield Case(kernel=kernels.quantize(spec, isa=isa), inputs=(x.ravel(),), expected=expected.ravel(), about=spec)


@pytest.mark.parametrize("isa", EACH_ISA)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_dequantize(rng: np.random.Generator, isa: str, dtype: str) -> None:
    def cases() -> Iterator[Case]:
        low, high = numerics.INTEGER_RANGE[dtype]
        settings = itertools.cycle(itertools.product((1.0, 0.1, 1e-42, 3e38), (low, 0, high)))
        for size, threads in part(WORK, isa):
            scale, zero_point = next(settings)
            spec = DequantizeSpec(size=size, scale=scale, zero_point=zero_point, dtype=dtype, threads=threads)
            q = bytes_of(rng, size, dtype)
            expected = numerics.dequantize(q, QuantParams.per_tensor(dtype, scale, zero_point))
            yield Case(kernel=kernels.dequantize(spec, isa=isa), inputs=(q,), expected=expected, about=spec)

    check(cases())


@pytest.mark.parametrize("isa", EACH_ISA)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
def test_relabel(rng: np.random.Generator, isa: str, dtype: str) -> None:
    def cases() -> Iterator[Case]:
        for size, threads in part(WORK, isa):
            spec = RelabelSpec(size=size, in_dtype=dtype, threads=threads)
            q = bytes_of(rng, size, dtype)
            yield Case(kernel=kernels.relabel(spec, isa=isa), inputs=(q,), expected=numerics.relabel(q), about=spec)

    check(cases())


# Ratios of input to output scale: common ones, ties, a shift of 30 and beyond it, of 1 and beyond it, and beyond float32.
ADD_SCALES = (
    (0.1, 0.2, 0.3),
    (0.5, 0.5, 1.0),
    (1.0, 1.0, 1.0),
    (1.0, 1e-6, 1.0),
    (255.9, 0.001, 1.0),
    (0.0009765625, 0.0009765625, 1.0),
    (0.0009, 0.0005, 1.0),
    (1e-30, 1e-20, 1.0),
    (300.0, 299.0, 1.0),
    (524288.0, 524287.0, 1.0),
    (1048576.0, 1048575.0, 1.0),
    (1e9, 1e9, 1.0),
    (3e38, 3e38, 1e-38),
    (1e-45, 1e-45, 3e38),
)


@pytest.mark.parametrize("isa", EACH_ISA)
def test_add(rng: np.random.Generator, isa: str) -> None:
    check(add_cases(rng, isa))


def add_cases(rng: np.random.Generator, isa: str) -> Iterator[Case]:
    outputs, work = itertools.cycle(OUTPUTS[:3]), itertools.cycle([(size, size, threads) for size, threads in WORK])
    points = itertools.cycle(((0, 255), (255, 0), (0, 0), (128, 3), (255, 255)))
    settings = [(scales, next(points)) for scales in ADD_SCALES for _ in range(2)]
    repeated = [
        (ADD_SCALES[0], (5, 7), OUTPUTS[3], (size, b_size, 2)) for size, b_size in ((51, 17), (64, 1), (40_003, 1), (66_000, 33))
    ]
    every = [*((*setting, next(outputs), next(work)) for setting in settings), *repeated]
    for scales, zero_points, output, sizes in part(every, isa):
        size, b_size, threads = sizes
        common = {"a_scale": scales[0], "b_scale": scales[1], "out_scale": scales[2]}
        common |= {"a_zero_point": zero_points[0], "b_zero_point": zero_points[1]}
        spec = AddSpec(size=size, b_size=b_size, output=output, threads=threads, **common)
        a, b = bytes_of(rng, size), rng.permutation(bytes_of(rng, b_size))
        expected = numerics.add(
            a.reshape(-1, b_size), b, zero_point=output.zero_point, qmin=output.qmin, qmax=output.qmax, **common
        )
        yield Case(kernel=kernels.add(spec, isa=isa), inputs=(a, b), expected=expected, about=spec)


@pytest.mark.parametrize("isa", EACH_ISA)
def test_concat(rng: np.random.Generator, isa: str) -> None:
    check(concat_cases(rng, isa))


def concat_cases(rng: np.random.Generator, isa: str) -> Iterator[Case]:
    work = [(1, (n, 5), 1) for n in SIZES] + [(outer, (16, 3, 64), 1) for outer in (2, 7)]
    work += [(1, (PARALLEL_SIZE, 70_000), 2), (500, (64, 33), 2), (501, (64, 33), 1), (3, (1, 1, 1, 1), 2), (9, (65,), 1)]
    outputs = itertools.cycle(OUTPUTS[:1] + OUTPUTS[3:])
    for outer, inners, threads in part(work, isa):
        output = next(outputs)
        # The first input is a plain copy where the clamp is idle, the others are requantized.
        multipliers = (1.0, *itertools.islice(itertools.cycle(MULTIPLIERS), len(inners) - 1))
        zero_points = (output.zero_point, *itertools.islice(itertools.cycle((255, 0, 9)), len(inners) - 1))
        spec = ConcatSpec(
            outer=outer, inners=inners, multipliers=multipliers, zero_points=zero_points, output=output, threads=threads
        )
        inputs = tuple(bytes_of(rng, outer * inner) for inner in inners)
        expected = numerics.concat(
            [q.reshape(outer, -1) for q in inputs],
            multipliers=multipliers,
            input_zero_points=zero_points,
            zero_point=output.zero_point,
            qmin=output.qmin,
            qmax=output.qmax,
        )
        yield Case(kernel=kernels.concat(spec, isa=isa), inputs=inputs, expected=expected, about=spec)


@pytest.mark.parametrize("cases", [requantize_cases, add_cases, concat_cases, lambda rng, isa: quantize_cases(rng, isa, "uint8")])
def test_same_bits_without_fused_multiply_add(
    rng: np.random.Generator, cases: Callable[[np.random.Generator, str], Iterator[Case]]
) -> None:
    check(itertools.islice(cases(rng, GENERIC), 0, None, 2), baseline_target())


@pytest.mark.parametrize(
    "make",
    [
        lambda: kernels.relabel(RelabelSpec(size=1, in_dtype="int8"), isa="x86.avx1024"),
        lambda: kernels.requantize(
            RequantizeSpec(size=1, multiplier=1.0, input_zero_point=0, output=Output(zero_point=0)), isa=""
        ),
    ],
)
def test_unknown_isa(make: Callable[[], Kernel]) -> None:
    with pytest.raises(TargetError, match=r"unknown ISA .*x86\.avx512_vnni, x86\.avx_vnni, x86\.avx2, arm\..*, generic"):
        make()


def test_one_thread_has_no_parallel_loop() -> None:
    for threads, loops in ((1, 0), (2, 1)):
        kernel = kernels.relabel(RelabelSpec(size=PARALLEL_SIZE, in_dtype="int8", threads=threads), isa=GENERIC)
        assert kernel.func.script().count("parallel") == loops
