"""add, sub, mul, max and min over shapes that broadcast in every way: each kernel equals its oracle bit for bit."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from kernel_runner import EACH_ISA, GENERIC, SIZES, Case, baseline_target, check, few, part

from octavo import numerics
from octavo.compiler.backends.cpu import kernels
from octavo.compiler.backends.cpu.kernels import PairwiseSpec, Side
from octavo.ir.composites.outputs import Output

SHAPES = [
    *(((size,), (size,)) for size in SIZES),
    ((2, 5, 5, 19), (2, 1, 1, 19)),
    ((2, 1, 1, 65), (2, 3, 3, 65)),
    ((2, 5, 3, 19), (1,)),
    ((1,), (2, 70)),
    ((3, 4, 5, 6), (4, 1, 6)),
    ((3, 1, 5), (1, 4, 1)),
    ((2, 33, 1), (2, 33, 70)),
    ((7, 1), (1, 130)),
]
PARALLEL = [((200, 17, 13), (200, 1, 13)), ((40_003,), (40_003,)), ((40_003,), (1,))]
OUTPUTS = (Output(zero_point=0), Output(zero_point=128, qmin=128), Output(zero_point=77, qmin=3, qmax=250))


def cases(rng: np.random.Generator, isa: str) -> Iterator[Case]:
    outputs = itertools.cycle(OUTPUTS)
    work = [(*shapes, 1) for shapes in SHAPES] + [(*shapes, threads) for shapes in PARALLEL for threads in (1, 2)]
    kinds = ("add", "sub", "mul", "max", "min")
    # Each way to broadcast, and each size, with three of the five.
    every = [(kinds[(i + j) % 5], each) for j in (0, 1, 3) for i, each in enumerate(work)]
    for kind, (a_shape, b_shape, threads) in part(every, isa, 4):
        output = next(outputs)
        a, b = (rng.integers(0, 256, shape).astype(np.uint8) for shape in (a_shape, b_shape))
        scales = [float(scale) for scale in np.exp(rng.uniform(-4, 0, 3)).astype(np.float32)]
        a_zero, b_zero = (int(zero) for zero in rng.integers(0, 256, 2))
        out_scale = scales[2] * (0.3 if kind == "mul" else 1.0)
        spec = PairwiseSpec(
            kind=kind,
            a=Side(shape=a_shape, scale=scales[0], zero_point=a_zero),
            b=Side(shape=b_shape, scale=scales[1], zero_point=b_zero),
            out_scale=out_scale,
            output=output,
            threads=threads,
        )
        result = {"zero_point": output.zero_point, "qmin": output.qmin, "qmax": output.qmax}
        if kind == "mul":
            multiplier = float(numerics.requantize_multiplier(scales[0], scales[1], out_scale))
            expected = numerics.mul(a, b, a_zero_point=a_zero, b_zero_point=b_zero, multiplier=multiplier, **result)
        elif kind in ("max", "min"):
            choose = numerics.maximum if kind == "max" else numerics.minimum
            expected = choose(a, b, qmin=output.qmin, qmax=output.qmax)
        else:
            common = {"a_scale": scales[0], "b_scale": scales[1], "out_scale": out_scale}
            common |= {"a_zero_point": a_zero, "b_zero_point": b_zero, "subtract": kind == "sub"}
            expected = numerics.add(a, b, **common, **result)
        kernel = kernels.pairwise(spec, isa=isa)
        yield Case(kernel=kernel, inputs=(a, b), expected=expected, about=spec)


@pytest.mark.parametrize("isa", EACH_ISA)
def test_equals_the_oracle(rng: np.random.Generator, isa: str) -> None:
    check(cases(rng, isa))


def test_same_bits_without_fused_multiply_add(rng: np.random.Generator) -> None:
    check(few(cases(rng, GENERIC), 2), baseline_target())


def float_sums(rng: np.random.Generator, isa: str) -> Iterator[Case]:
    """Sums and differences in float32, and products whose ties are even as stored, of source integers of both signs."""
    outputs = itertools.cycle(OUTPUTS)
    turns = (("add", 0), ("sub", 128), ("mul", 0), ("add", 128), ("sub", 0))
    turns = itertools.cycle([(*turn, stored) for stored in (True, False) for turn in turns])
    work = [(shapes, *next(turns)) for shapes in SHAPES for _ in range(2)]
    for shapes, kind, relabelling, stored in part(work, isa):
        output = next(outputs)
        a, b = (rng.integers(0, 256, shape).astype(np.uint8) for shape in shapes)
        scales = [float(scale) for scale in np.float32(0.02) * np.float32(2.0) ** rng.integers(-2, 3, 3)]
        zeros = [int(zero) for zero in rng.integers(0, 256, 2)]
        bounds = {"qmin": output.qmin, "qmax": output.qmax}
        a_side, b_side = (Side(shape=shapes[i], scale=scales[i], zero_point=zeros[i]) for i in range(2))
        common = {"a": a_side, "b": b_side, "out_scale": scales[2], "output": output}
        if kind == "mul":
            spec = PairwiseSpec(kind="mul", **common, rounding="half_even_stored" if stored else "half_even")
            product = (a.astype(np.int32) - zeros[0]) * (b.astype(np.int32) - zeros[1])
            real = product.astype(np.float32) * numerics.requantize_multiplier(scales[0], scales[1], scales[2])
            moved, after = (output.zero_point, 0) if stored else (0, output.zero_point)
            expected = np.clip(np.rint(real.astype(np.float64) + moved) + after, output.qmin, output.qmax).astype(np.uint8)
        else:
            source = [zero - relabelling for zero in (*zeros, output.zero_point)]
            constants = numerics.float_sum_parameters(
                scales[0], source[0], scales[1], source[1], scales[2], source[2], subtract=kind == "sub", stored=stored
            )
            spec = PairwiseSpec(kind=kind, **common, float_sum=constants, relabelling=relabelling)
            stored_a, stored_b = (q.astype(np.int16) - relabelling for q in (a, b))
            low, high = (bound - relabelling for bound in bounds.values())
            dtype = "int8" if relabelling else "uint8"
            result = numerics.float_sum(stored_a, stored_b, constants, qmin=low, qmax=high, dtype=dtype)
            expected = (result.astype(np.int16) + relabelling).astype(np.uint8)
        yield Case(kernel=kernels.pairwise(spec, isa=isa), inputs=(a, b), expected=expected, about=spec)


@pytest.mark.parametrize("isa", EACH_ISA)
def test_float_sums_equal_the_oracle(rng: np.random.Generator, isa: str) -> None:
    check(float_sums(rng, isa))


def test_float_sums_without_fused_multiply_add(rng: np.random.Generator) -> None:
    check(few(float_sums(rng, GENERIC), 3), baseline_target())
