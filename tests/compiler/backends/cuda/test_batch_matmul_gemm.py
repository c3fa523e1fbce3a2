"""Products of two variables by tiles, emulated: the oracle's integers for every tile, layout, zero points and batches."""

import math
from functools import partial

import numpy as np
import pytest
from allpairspy import AllPairs
from cuda_conv2d_cases import SM61, SM75, SM80, SM90, Job, Shape, integers, outputs
from cuda_units import Unit

from octavo.compiler.backends.cuda.kernels.matmuls.batch_matmul import BatchMatmulSpec, Operand, batch_matmul, gemm_batch_matmul
from octavo.compiler.backends.cuda.kernels.matmuls.gemm import lying_columns, swizzle
from octavo.compiler.backends.cuda.kernels.matmuls.output import FUSED_FLOATS, INTEGERS, SUMS
from octavo.compiler.backends.cuda.kernels.matmuls.tile_choice import Product, best_tiling, registers, tilings
from octavo.numerics import INTEGER_RANGE, batch_matmul_accumulate

SIZES = ((5, 7, 9), (33, 48, 64), (17, 40, 130), (64, 16, 32), (1, 65, 100), (20, 33, 16))
BATCHES = (((), ()), ((3,), (1,)), ((2, 3), (2, 3)), ((1, 2), (2, 1)))
DTYPES = ("int8", "uint8")


def dense_steps(batch, matrix):
    return tuple(0 if size == 1 else math.prod(batch[axis + 1 :]) * matrix for axis, size in enumerate(batch))


def case(rng, size, batches, dtypes, zero_points, transposed, result, extremes=False):
    """Return a spec, its two operands as they lie, and the oracle's result."""
    (rows, columns, depth), (a_batch, b_batch) = size, batches
    a = integers(rng, (*a_batch, rows, depth), dtypes[0], extremes=extremes)
    b = integers(rng, (*b_batch, depth, columns), dtypes[1], extremes=extremes)
    acc = batch_matmul_accumulate(a, b, a_zero_point=zero_points[0], b_zero_point=zero_points[1])
    output, want = outputs(rng, acc, Shape(result=result, result_dtype="uint8"))
    spec = BatchMatmulSpec(
        batches=acc.shape[:-2],
        rows=rows,
        columns=columns,
        depth=depth,
        a=Operand(dtype=dtypes[0], zero_point=zero_points[0], pitch=depth, steps=dense_steps(a_batch, rows * depth)),
        b=Operand(
            dtype=dtypes[1],
            zero_point=zero_points[1],
            pitch=depth if transposed else columns,
            steps=dense_steps(b_batch, depth * columns),
        ),
        b_is_transposed=transposed,
        output=output,
    )
    return spec, (a, b.swapaxes(-1, -2) if transposed else b), want


def differing(cases, **options):
    job = Job()
    for (spec, operands, want), builder in cases:
        job.add(builder(spec), operands, want)
    found = job.run(**options)
    return [number for number, ((_, _, want), _) in enumerate(cases) if found[number].tobytes() != want.tobytes()]


def zero_points(kind, dtypes):
    ends = [INTEGER_RANGE[dtype] for dtype in dtypes]
    return {"none": (0, 0), "a": (ends[0][1], 0), "b": (0, ends[1][0] or 255), "both": (ends[0][0] or 7, 99)}[kind]


@pytest.mark.parametrize("isa", [SM61, SM75, SM80, SM90], ids=lambda isa: isa.name)
def test_every_tile_gives_the_oracles_integers(rng, isa):
    tiles = list(tilings(Product(rows=1, columns=1, depth=1, depths=(64,)), isa))[:: 2 if isa.asynchronous else 1]
    kinds = ("none", "a", "b", "both")
    if isa.warp_groups:  # what four warps multiply together has no sums of rows and columns
        tiles, kinds = [tiling for tiling in tilings(Product(rows=1, columns=1, depth=1), isa) if tiling.warp_groups], ("none",)
        tiles = [tiling for tiling in tiles if tiling.tile[2] == 64]
    dtypes = [(a, b) for a in DTYPES for b in DTYPES]
    cases = []
    for tiling, size, batches, pair, kind, transposed, result in AllPairs(
        [tiles, SIZES, BATCHES, dtypes, kinds, (False, True), (INTEGERS, SUMS, FUSED_FLOATS)]
    ):
        drawn = case(rng, size, batches, pair, zero_points(kind, pair), transposed, result)
        cases.append((drawn, partial(gemm_batch_matmul, isa=isa, tiling=tiling)))
    assert differing(cases[::3]) == []


def test_extremes_add_up(rng):
    cases = [
        (
            case(rng, (17, 18, 200), ((2,), (2,)), pair, zero_points("both", pair), False, SUMS, extremes=True),
            partial(batch_matmul, isa=isa),
        )
        for pair in (("uint8", "int8"), ("int8", "uint8"))
        for isa in (SM61, SM75, SM80, SM90)
    ]
    assert differing(cases) == []


def test_views_of_each_head_are_read_as_they_lie(rng):
    tokens, heads, depth = 20, 3, 32
    q, k = (integers(rng, (2, tokens, heads, depth), "int8") for _ in range(2))
    acc = batch_matmul_accumulate(q.swapaxes(1, 2), k.transpose(0, 2, 3, 1))
    output, want = outputs(rng, acc, Shape(result=INTEGERS))
    view = Operand(dtype="int8", zero_point=0, pitch=heads * depth, steps=(tokens * heads * depth, depth))
    spec = BatchMatmulSpec(
        batches=(2, heads), rows=tokens, columns=tokens, depth=depth, a=view, b=view, b_is_transposed=True, output=output
    )
    assert differing([((spec, (q, k), want), partial(batch_matmul, isa=isa)) for isa in (SM61, SM75, SM80)]) == []


@pytest.mark.parametrize("isa", [SM61, SM80], ids=lambda isa: isa.name)
@pytest.mark.parametrize("result_bytes", [1, 4])
def test_words_of_a_transposing_store_lie_in_different_banks(isa, result_bytes):
    for tiling in tilings(Product(rows=1, columns=1, depth=1, depths=(64,)), isa):
        lying = np.argsort(lying_columns(tiling, isa, result_bytes))  # the tile's row of each column
        chunk_at = np.argsort(swizzle(tiling), 1)
        flip = 1 if isa.matrix_k else tiling.span(isa, result_bytes) % 16
        unit = np.arange(32)
        quad, columns = unit % 16, unit // 16 * 16
        for number in range(16):
            row = lying[(columns + np.where(unit // 16 % 2, number ^ flip, number)) % tiling.tile[1]]
            bank = (row * 64 + chunk_at[row, quad // 4] * 16 + quad % 4 * 4) // 4 % 32
            assert len(set(bank[: 32 if tiling.tile[1] > 16 else 16].tolist())) == (32 if tiling.tile[1] > 16 else 16), tiling


@pytest.mark.parametrize("check", ["races", "addresses"])
def test_threads_neither_race_nor_leave_their_memory(rng, check):
    cases = [
        (case(rng, size, ((2,), (1,)), ("int8", "uint8"), (5, 9), transposed, INTEGERS), partial(batch_matmul, isa=isa))
        for size in ((17, 40, 130), (20, 33, 16))
        for transposed in (False, True)
        for isa in (SM75, SM80)
    ]
    assert differing(cases, check=check, seed=5) == []


@pytest.mark.parametrize("isa", [SM61, SM75, SM80, SM90], ids=lambda isa: isa.name)
def test_attention_fits_into_registers(rng, isa):
    either = [case(rng, (128, 128, 64), ((2,), (2,)), ("uint8", "int8"), (3, 5), is_it, INTEGERS)[0] for is_it in (False, True)]
    product = Product(rows=1, columns=1, depth=1, depths=(64,), has_sums=True)
    # As it lies and transposed: in turn, and the other way around from one ISA to the next.
    tiles = list(enumerate(list(tilings(product, isa))[::3], isa in (SM61, SM80)))
    kernels = [gemm_batch_matmul(either[number % 2], isa, tiling)[0].kernel for number, tiling in tiles]
    usages = Unit(kernels, isa).usage
    for (_, tiling), kernel in zip(tiles, kernels, strict=True):
        assert usages[kernel.symbol].spill_bytes == 0, tiling
        assert usages[kernel.symbol].registers <= registers(tiling, product, isa), tiling
    assert best_tiling(Product(rows=128, columns=128, depth=64, groups=12, can_split=False), isa)[0].splits == 1
