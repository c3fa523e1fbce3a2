"""Softmax: rows around the vector width and around the switch to a table of results, bit for bit."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from kernel_runner import EACH_ISA, GENERIC, SIZES, Case, baseline_target, check, few, part

from octavo import numerics
from octavo.compiler.backends.cpu import kernels
from octavo.compiler.backends.cpu.kernels import SoftmaxSpec
from octavo.ir.composites.outputs import Output

OUTPUTS = ((1 / 256, Output(zero_point=0)), (1 / 128, Output(zero_point=128)), (1 / 256, Output(zero_point=9, qmin=10, qmax=200)))
WIDE = [*SIZES, 10, 191, 192, 256, 1001, 191, 192]
WORK = [*((1 + 2 * (i % 2), columns, 1) for i, columns in enumerate(WIDE)), (70, 500, 2), (900, 33, 2)]


def cases(rng: np.random.Generator, isa: str) -> Iterator[Case]:
    choices = itertools.cycle(itertools.product((0.02, 0.1, 1.0), OUTPUTS))
    for rows, columns, threads in part(WORK, isa):
        scale, (out_scale, output) = next(choices)
        x = rng.integers(0, 256, (rows, columns)).astype(np.uint8)
        x[0] = rng.integers(100, 104, columns)  # an even distribution, too
        spec = SoftmaxSpec(rows=rows, columns=columns, scale=scale, out_scale=out_scale, output=output, threads=threads)
        result = {"zero_point": output.zero_point, "qmin": output.qmin, "qmax": output.qmax}
        expected = numerics.softmax(x, scale=scale, out_scale=out_scale, **result)
        yield Case(kernel=kernels.softmax(spec, isa=isa), inputs=(x,), expected=expected, about=spec)


@pytest.mark.parametrize("isa", EACH_ISA)
def test_equals_the_oracle(rng: np.random.Generator, isa: str) -> None:
    check(cases(rng, isa))


def test_same_bits_without_fused_multiply_add(rng: np.random.Generator) -> None:
    check(few(cases(rng, GENERIC), 2), baseline_target())
