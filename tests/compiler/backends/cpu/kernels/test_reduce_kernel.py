"""Reductions over the middle axis at sizes around the vector width, one and two threads, bit for bit."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from kernel_runner import EACH_ISA, Case, baseline_target, check, few, part

from octavo import numerics
from octavo.compiler.backends.cpu import kernels
from octavo.compiler.backends.cpu.kernels import GENERIC, ReduceSpec
from octavo.ir.composites.outputs import Output

SHAPES = [(1, 1, 1), (3, 64, 1), (2, 65, 1), (5, 7, 1), (1, 200, 1), (3, 5, 17), (1, 9, 64), (2, 1, 65), (1, 33, 130), (4, 3, 3)]
WORK = [*((shape, 1) for shape in SHAPES), *((shape, t) for shape in ((300, 40, 9), (1, 40, 3000), (900, 70, 1)) for t in (1, 2))]
OUTPUTS = (Output(zero_point=0), Output(zero_point=128, qmin=128), Output(zero_point=77, qmin=30, qmax=200))


def cases(rng: np.random.Generator, isa: str) -> Iterator[Case]:
    outputs = itertools.cycle(OUTPUTS)
    kinds = ("sum", "max", "argmin", "min", "argmax")
    # Each shape with three of the five.
    every = [(each, kinds[(i + j) % 5]) for i, each in enumerate(WORK) for j in (0, 1, 2)]
    for (shape, threads), kind in part(every, isa, 2):
        output = next(outputs)
        # Few different values, so that extremes are met more than once.
        values = rng.integers(0, 256, 5) if kind.startswith("arg") else np.arange(256)
        x = rng.choice(values, shape).astype(np.uint8)
        zero, multiplier = int(rng.integers(0, 256)), float(np.float32(rng.uniform(0.2, 2) / np.sqrt(shape[1])))
        index_dtype = str(rng.choice(["int32", "int64"]))
        spec = ReduceSpec(
            kind=kind,
            outer=shape[0],
            extent=shape[1],
            inner=shape[2],
            output=output,
            multiplier=multiplier,
            input_zero_point=zero,
            stored_even=bool(rng.integers(0, 2)),
            index_dtype=index_dtype,
            threads=threads,
        )
        bounds = {"qmin": output.qmin, "qmax": output.qmax}
        if kind == "sum":
            about = {"multiplier": multiplier, "input_zero_point": zero, "zero_point": output.zero_point}
            expected = numerics.reduce_sum(x, (1,), **about, **bounds, stored_even=spec.stored_even)
        elif kind in ("max", "min"):
            expected = numerics.reduce_extreme(x, (1,), largest=kind == "max", **bounds)
        else:
            expected = numerics.arg_reduce(x, 1, largest=kind == "argmax").astype(index_dtype)
        kernel = kernels.reduce(spec, isa=isa)
        yield Case(kernel=kernel, inputs=(x.ravel(),), expected=expected.ravel(), about=spec)


@pytest.mark.parametrize("isa", EACH_ISA)
def test_equals_the_oracle(rng: np.random.Generator, isa: str) -> None:
    check(cases(rng, isa))


def test_same_bits_on_the_baseline(rng: np.random.Generator) -> None:
    check(few(cases(rng, GENERIC), 2), baseline_target())
