"""Products of two activations equal their oracle bit for bit, on every ISA of this machine, over sizes and broadcast batches."""

import dataclasses

import numpy as np
import pytest
from kernel_runner import HOST_ISAS, Case, check

from octavo import numerics
from octavo.kernels import BatchMatmulSpec, FloatOutput, Output, SumOutput, batch_matmul

every_isa = pytest.mark.parametrize("isa", HOST_ISAS)
RNG = np.random.default_rng(0)


def case(isa: str, a_batch, b_batch, rows: int, inner: int, columns: int, threads: int = 1) -> Case:
    a = RNG.integers(0, 256, (*a_batch, rows, inner)).astype(np.uint8)
    b = RNG.integers(0, 256, (*b_batch, inner, columns)).astype(np.uint8)
    zeros = [int(zero) for zero in RNG.choice([0, 255, 128, 131], 3)]
    qmin, qmax = ((0, 255), (3, 240))[int(RNG.integers(2))]
    multiplier = float(np.float32(RNG.choice([0.5, 0.011]) / (60 * np.sqrt(inner))))
    spec = BatchMatmulSpec(
        a_batch=a_batch,
        b_batch=b_batch,
        rows=rows,
        inner=inner,
        columns=columns,
        a_zero_point=zeros[0],
        b_zero_point=zeros[1],
        multiplier=multiplier,
        output=Output(zero_point=zeros[2], qmin=qmin, qmax=qmax),
        threads=threads,
    )
    names = dict(zip(("a_zero_point", "b_zero_point", "zero_point"), zeros, strict=True))
    expected = numerics.batch_matmul(a, b, multiplier=multiplier, qmin=qmin, qmax=qmax, **names)
    return Case(kernel=batch_matmul(spec, isa=isa), inputs=(a, b), expected=expected, about=spec)


@every_isa
def test_sizes(isa: str) -> None:
    sizes = [(1, 1, 1), (2, 3, 15), (3, 16, 16), (4, 33, 17), (5, 64, 33), (7, 5, 64), (8, 2, 65), (9, 17, 3)]
    check(case(isa, (2,), (2,), *size) for size in sizes)


@every_isa
def test_batches_that_broadcast(isa: str) -> None:
    pairs = [((), ()), ((3,), ()), ((), (3,)), ((2, 3), (2, 3)), ((2, 1), (1, 3)), ((1, 3), (2, 3)), ((4, 2, 1), (5,))]
    check(case(isa, *pair, 5, 6, 18) for pair in pairs)


@every_isa
def test_results_of_32_bits(isa: str) -> None:
    cases = []
    for columns in (1, 15, 17, 64):
        of_bytes = case(isa, (3,), (1,), 5, 33, columns)
        spec, (a, b) = of_bytes.about, of_bytes.inputs
        sums = numerics.batch_matmul_accumulate(a, b, a_zero_point=spec.a_zero_point, b_zero_point=spec.b_zero_point)
        reals = numerics.scaled(sums, np.float32(spec.multiplier), np.float32(0), low=-0.5)
        for output, expected in ((SumOutput(), sums), (FloatOutput(low=-0.5), reals)):
            wide = dataclasses.replace(spec, output=output)
            cases.append(Case(kernel=batch_matmul(wide, isa=isa), inputs=(a, b), expected=expected, about=wide))
    check(cases)


@every_isa
def test_threads(isa: str) -> None:
    check([case(isa, (4,), (4,), 33, 65, 40, threads=2)])


def test_sums_beyond_int32_are_refused_by_the_oracle() -> None:
    long = np.zeros((1, numerics.BATCH_MATMUL_MAX_INNER + 1), np.uint8)
    with pytest.raises(ValueError, match="may exceed int32"):
        numerics.batch_matmul(long, long.T, a_zero_point=0, b_zero_point=0, multiplier=1.0, zero_point=0)
