"""Products of two activations equal their oracle bit for bit, on every ISA of this machine, over sizes and broadcast batches."""

import dataclasses

import numpy as np
import pytest
from kernel_runner import EACH_ISA, EACH_NARROW_ISA, HOST_ISAS, Case, check, part

from machine_isas import each_isa
from octavo import numerics
from octavo.compiler.backends.cpu.kernels import AVX2, AVX512_VNNI, AVX_VNNI, GENERIC, BatchMatmulSpec, batch_matmul, takes_views
from octavo.compiler.backends.cpu.kernels.matmuls.x86_int8_batch_matmul import MAX_INNER
from octavo.ir.composites.matrix_view import MatrixView
from octavo.ir.composites.outputs import FloatOutput, Output, SumOutput
from octavo.numerics import dynamic
from octavo.numerics.quantized.matmul import row_batch_matmul

every_isa = pytest.mark.parametrize("isa", [*EACH_ISA, *EACH_NARROW_ISA])


def in_memory(value: np.ndarray, view: MatrixView) -> np.ndarray:
    """The tensor that lies in memory where `view` sees `value`."""
    return np.ascontiguousarray(np.transpose(value, np.argsort(view.axes)))


def case(
    rng: np.random.Generator,
    isa: str,
    a_batch,
    b_batch,
    rows: int,
    inner: int,
    columns: int,
    *,
    axes=(None, None, None),
    threads: int = 1,
) -> Case:
    a = rng.integers(0, 256, (*a_batch, rows, inner)).astype(np.uint8)
    b = rng.integers(0, 256, (*b_batch, inner, columns)).astype(np.uint8)
    zeros = [int(zero) for zero in rng.choice([0, 255, 128, 131], 3)]
    qmin, qmax = ((0, 255), (3, 240))[int(rng.integers(2))]
    multiplier = float(np.float32(rng.choice([0.5, 0.011]) / (60 * np.sqrt(inner))))
    shapes = [a.shape, b.shape, (*np.broadcast_shapes(a_batch, b_batch), rows, columns)]
    views = [MatrixView(shape=shape, axes=own or tuple(range(len(shape)))) for shape, own in zip(shapes, axes, strict=True)]
    spec = BatchMatmulSpec(
        a=views[0],
        b=views[1],
        y=views[2],
        a_zero_point=zeros[0],
        b_zero_point=zeros[1],
        multiplier=multiplier,
        output=Output(zero_point=zeros[2], qmin=qmin, qmax=qmax),
        threads=threads,
    )
    names = dict(zip(("a_zero_point", "b_zero_point", "zero_point"), zeros, strict=True))
    expected = numerics.batch_matmul(a, b, multiplier=multiplier, qmin=qmin, qmax=qmax, **names)
    inputs = tuple(in_memory(value, view) for value, view in zip((a, b), views, strict=False))
    return Case(kernel=batch_matmul(spec, isa=isa), inputs=inputs, expected=in_memory(expected, views[2]), about=spec)


@every_isa
def test_sizes(rng: np.random.Generator, isa: str) -> None:
    sizes = [
        (1, 1, 1),
        (2, 3, 15),
        (3, 16, 16),
        (4, 33, 17),
        (5, 64, 33),
        (7, 5, 64),
        (8, 2, 65),
        (9, 17, 3),
        (13, 68, 129),
        (1, 33, 40),
        (4, 50, 1),
        (1, 17, 8),
        (5, 6, 24),
    ]
    check(case(rng, isa, (2,), (2,), *size) for size in part(sizes, isa))


@every_isa
def test_batches_that_broadcast(rng: np.random.Generator, isa: str) -> None:
    pairs = [((), ()), ((3,), ()), ((), (3,)), ((2, 3), (2, 3)), ((2, 1), (1, 3)), ((1, 3), (2, 3)), ((4, 2, 1), (5,))]
    check(case(rng, isa, *pair, 5, 6, 18) for pair in part(pairs, isa))


@every_isa
def test_results_of_32_bits(rng: np.random.Generator, isa: str) -> None:
    cases = []
    for columns in part((1, 15, 17, 64), isa):
        of_bytes = case(rng, isa, (3,), (1,), 5, 33, columns)
        spec, (a, b) = of_bytes.about, of_bytes.inputs
        sums = numerics.batch_matmul_accumulate(a, b, a_zero_point=spec.a_zero_point, b_zero_point=spec.b_zero_point)
        reals = numerics.dequantize_accumulator(sums, np.float32(spec.multiplier), np.float32(0), low=-0.5)
        for output, expected in ((SumOutput(), sums), (FloatOutput(low=-0.5), reals)):
            wide = dataclasses.replace(spec, output=output)
            cases.append(Case(kernel=batch_matmul(wide, isa=isa), inputs=(a, b), expected=expected, about=wide))
    check(cases)


@every_isa
def test_parameters_of_rows_and_columns_that_come_at_run_time(rng: np.random.Generator, isa: str) -> None:
    pairs: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, int, int]]] = [
        ((), (), (6, 21, 3)),
        ((3,), (), (5, 64, 16)),
        ((2, 1), (1, 3), (6, 21, 17)),
        ((1, 3), (2, 3), (14, 200, 40)),
        ((2,), (2,), (27, 32, 65)),
        ((2, 1), (1, 3), (4, 35, 39)),
    ]
    cases = []
    for a_batch, b_batch, (rows, inner, columns) in part(pairs, isa):
        a = (rng.normal(size=(*a_batch, rows, inner)) * 10 ** rng.uniform(-2, 2, (rows, 1))).astype(np.float32)
        b = rng.normal(size=(*b_batch, inner, columns)).astype(np.float32) + rng.uniform(-2, 2, columns).astype(np.float32)
        a[..., 2, 5], a[..., 3, :], b[..., 4, 1] = np.nan, 0, np.inf
        expected = row_batch_matmul(a, b, low=-9, high=40)
        views = [MatrixView.plain(value.shape) for value in (a, b, expected)]
        spec = BatchMatmulSpec(
            a=views[0],
            b=views[1],
            y=views[2],
            a_zero_point=0,
            b_zero_point=0,
            multiplier=1.0,
            output=FloatOutput(low=-9, high=40),
            by_row=True,
        )
        cases.append(Case(kernel=batch_matmul(spec, isa=isa), inputs=quantized_rows(a, b), expected=expected, about=spec))
    check(cases)


def quantized_rows(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, ...]:
    """What the kernel reads: integers of rows, their parameters, integers of columns, planes of theirs."""
    rows, columns = a.reshape(-1, a.shape[-1]), np.swapaxes(b, -1, -2).reshape(-1, b.shape[-2])
    found = [dynamic.dynamic_parameters(each, dynamic.PER_ROW) for each in (rows, columns)]
    integers = [dynamic.dynamic_quantize(each, own, dynamic.PER_ROW) for each, own in zip((rows, columns), found, strict=True)]
    turned = np.swapaxes(integers[1].reshape(*b.shape[:-2], b.shape[-1], b.shape[-2]), -1, -2)
    planes = np.swapaxes(found[1].reshape(-1, b.shape[-1], 2), -1, -2)
    return integers[0].reshape(a.shape), found[0], np.ascontiguousarray(turned), np.ascontiguousarray(planes)


@pytest.mark.parametrize("isa", each_isa((AVX512_VNNI, AVX_VNNI)))
def test_operands_and_result_of_attention(rng: np.random.Generator, isa: str) -> None:
    """Heads lie behind the tokens in memory; the keys' features are neighbours."""
    heads, keys, across = (0, 2, 1, 3), (0, 2, 3, 1), (0, 1, 3, 2)
    ways = [
        {"a_batch": (1, 3), "b_batch": (1, 3), "axes": (heads, keys, None)},
        {"a_batch": (2, 3), "b_batch": (2, 3), "axes": (None, heads, heads), "threads": 2},
        {"a_batch": (2, 3), "b_batch": (2, 3), "axes": (across, across, None)},
    ]
    sizes = ((5, 64, 32), (9, 17, 33), (2, 4, 16), (3, 84, 70), (14, 128, 16), (7, 16, 48))
    sizes = [dict(zip(("rows", "inner", "columns"), size, strict=True)) for size in sizes]
    # Every size in two of the three ways.
    check(case(rng, isa, **way, **size) for i, size in enumerate(sizes) for j, way in enumerate(ways) if (i + j) % 3)


def test_the_generic_kernel_reads_tensors_as_they_lie() -> None:
    assert not takes_views(64, isa=GENERIC)
    assert not takes_views(64, isa=AVX2)
    assert not takes_views(64, isa=AVX512_VNNI, dtype="int16")


def test_the_longest_sums_of_the_largest_bytes() -> None:
    """Each of the four terms is at its largest; the plain kernel takes what is longer still."""
    isa = HOST_ISAS[0]
    cases = []
    for inner in (MAX_INNER // 4 * 4, MAX_INNER + 1):
        plain = [MatrixView.plain(shape) for shape in ((1, inner), (inner, 1), (1, 1))]
        for low, high in ((0, 255), (255, 0)):
            a, b = np.full((1, inner), low, np.uint8), np.full((inner, 1), high, np.uint8)
            zeros = {"a_zero_point": high, "b_zero_point": low}
            spec = BatchMatmulSpec(a=plain[0], b=plain[1], y=plain[2], multiplier=1.0, output=SumOutput(), **zeros)
            expected = numerics.batch_matmul_accumulate(a, b, **zeros)
            cases.append(Case(kernel=batch_matmul(spec, isa=isa), inputs=(a, b), expected=expected, about=spec))
    check(cases)


@every_isa
def test_threads(rng: np.random.Generator, isa: str) -> None:
    check([case(rng, isa, (4,), (4,), 33, 65, 40, threads=2)])


def test_sums_beyond_int32_are_refused_by_the_oracle() -> None:
    long = np.zeros((1, numerics.BATCH_MATMUL_MAX_INNER + 1), np.uint8)
    with pytest.raises(ValueError, match="may exceed int32"):
        numerics.batch_matmul(long, long.T, a_zero_point=0, b_zero_point=0, multiplier=1.0, zero_point=0)
