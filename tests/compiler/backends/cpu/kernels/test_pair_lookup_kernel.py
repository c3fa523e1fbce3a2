"""Tables of rows: every pair of bytes, constants that choose rows, shapes that broadcast in every way, bit for bit."""

import numpy as np
import pytest
from kernel_runner import EACH_ISA, SIZES, Case, baseline_target, check, few, part

from octavo import numerics
from octavo.compiler.backends.cpu import kernels
from octavo.compiler.backends.cpu.kernels import GENERIC, PairLookupSpec

SHAPES = [
    *(((size,), (size,)) for size in SIZES),
    ((256, 1), (1, 256)),
    ((2, 5, 5, 19), (2, 1, 1, 19)),
    ((2, 1, 1, 65), (2, 3, 3, 65)),
    ((2, 5, 3, 19), (1,)),
    ((1,), (2, 70)),
    ((3, 1, 5), (1, 4, 1)),
]
WORK = [*((*shapes, 1) for shapes in SHAPES), *(((200, 17, 13), (200, 1, 13), threads) for threads in (1, 2))]


def cases(rng: np.random.Generator, isa: str) -> list[Case]:
    made: list[Case] = []
    for a_shape, b_shape, threads in part(WORK, isa):
        spec = PairLookupSpec(a_shape=a_shape, b_shape=b_shape, threads=threads)
        a, b = (rng.integers(0, 256, shape).astype(np.uint8) for shape in (a_shape, b_shape))
        if a_shape == (256, 1):
            a, b = np.arange(256, dtype=np.uint8).reshape(256, 1), np.arange(256, dtype=np.uint8).reshape(1, 256)
        table = rng.integers(0, 256, (256, 256)).astype(np.uint8)
        kernel = kernels.pair_lookup(spec, table=table, isa=isa)
        expected = numerics.pair_lookup(a, b, table)
        made.append(Case(kernel=kernel, inputs=(a.ravel(), b.ravel()), expected=expected.ravel(), about=(spec, "two tensors")))
        count = int(rng.integers(1, 700))
        rows, table = rng.integers(0, count, b_shape), rng.integers(0, 256, (count, 256)).astype(np.uint8)
        kernel = kernels.pair_lookup(spec, table=table, rows=rows, isa=isa)
        expected = numerics.pair_lookup(a, rows, table)
        made.append(Case(kernel=kernel, inputs=(a.ravel(),), expected=expected.ravel(), about=(spec, "a constant")))
    return made


@pytest.mark.parametrize("isa", EACH_ISA)
def test_equals_the_oracle(rng: np.random.Generator, isa: str) -> None:
    check(cases(rng, isa))


def test_same_bits_on_the_baseline(rng: np.random.Generator) -> None:
    check(few(cases(rng, GENERIC), 3), baseline_target())
