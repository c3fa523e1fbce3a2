"""The greatest and least elements of rows at sizes around a byte's values, one and two threads, bit for bit."""

from collections.abc import Iterator

import numpy as np
import pytest
from allpairspy import AllPairs
from kernel_runner import HOST_ISAS, Case, baseline_target, check, few

from octavo import numerics
from octavo.compiler.backends.cpu.kernels import GENERIC
from octavo.compiler.backends.cpu.kernels.reductions.topk import TopkSpec, topk

ROWS = [(1, 1, 1, 1), (3, 17, 5, 1), (2, 300, 300, 1), (40, 129, 7, 2)]


def cases(rng: np.random.Generator, isa: str) -> Iterator[Case]:
    choices = (ROWS, ("uint8", "int16"), ("values", "indices"), (True, False))
    for (rows, extent, count, threads), dtype, gives, largest in AllPairs(choices, n=3):
        low, high = numerics.INTEGER_RANGE[dtype]
        # Few different values, so that places decide between equal ones; both ends of the range.
        values = np.concatenate([[low, high], rng.integers(low, high + 1, 9)]).astype(dtype)
        x = rng.choice(values, (rows, extent))
        index_dtype = str(rng.choice(["int32", "int64"]))
        spec = TopkSpec(
            rows=rows,
            extent=extent,
            count=count,
            largest=largest,
            gives=gives,
            dtype=dtype,
            index_dtype=index_dtype,
            threads=threads,
        )
        places = numerics.top_k_indices(x, count, largest=largest)
        expected = np.take_along_axis(x, places, axis=1) if gives == "values" else places.astype(index_dtype)
        yield Case(kernel=topk(spec, isa=isa), inputs=(x.ravel(),), expected=expected.ravel(), about=spec)


@pytest.mark.parametrize("isa", HOST_ISAS[:1])
def test_equals_the_oracle(rng: np.random.Generator, isa: str) -> None:
    check(cases(rng, isa))


def test_same_bits_on_the_baseline(rng: np.random.Generator) -> None:
    check(few(cases(rng, GENERIC), 3), baseline_target())
