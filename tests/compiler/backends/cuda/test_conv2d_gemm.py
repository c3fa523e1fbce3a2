"""Convolutions by tiles, emulated: the oracle's integers for every tile shape, size, padding and end."""

from functools import partial

import numpy as np
import pytest
from allpairspy import AllPairs
from cuda_conv2d_cases import SM61, SM75, SM80, SM90, Shape, conv2d_case, differing

from octavo.compiler.backends.cuda.isa import Isa
from octavo.compiler.backends.cuda.kernels.conv.conv2d_gemm import gemm_conv2d
from octavo.compiler.backends.cuda.kernels.matmuls.gemm import Tiling, lying_columns, swizzle
from octavo.compiler.backends.cuda.kernels.matmuls.output import FUNCTIONS, FUSED_FLOATS, INTEGERS, STEPWISE_FLOATS, SUMS
from octavo.compiler.backends.cuda.kernels.matmuls.tile_choice import Product, tilings

WINDOWS = (
    {"channels": (32, 24), "size": (5, 9)},
    {"channels": (3, 10), "kernel": (3, 3), "strides": (2, 2), "padding": (0, 1, 1, 1)},
    {"channels": (16, 16), "kernel": (3, 3), "padding": (1, 1, 1, 1)},
    {"channels": (64, 40), "kernel": (3, 3), "padding": (2, 2, 2, 2), "dilation": (2, 2), "size": (6, 5)},
    {"channels": (24, 33), "kernel": (2, 3), "strides": (1, 2), "padding": (1, 0, 0, 1), "batch": 2},
    {"channels": (20, 17), "strides": (2, 1), "batch": 3},
    {"channels": (64, 48), "kernel": (3, 3), "groups": 2, "padding": (1, 1, 1, 1)},
    {"channels": (12, 6), "kernel": (1, 5), "groups": 3, "padding": (0, 2, 0, 2)},
    {"channels": (200, 5), "size": (1, 1)},
    {"channels": (130, 129), "size": (1, 3)},
    {"channels": (3, 16), "kernel": (7, 7), "strides": (2, 2), "padding": (3, 3, 3, 3)},
    {"channels": (3, 9), "kernel": (3, 3), "dilation": (1, 2), "padding": (2, 1, 1, 2)},
    {"channels": (6, 8), "kernel": (3, 2), "groups": 2, "padding": (1, 1, 1, 0)},
)
RESULTS = (
    (INTEGERS, "int8", False),
    (INTEGERS, "uint8", True),
    (FUSED_FLOATS, "", False),
    (STEPWISE_FLOATS, "", False),
    (SUMS, "", False),
    (FUNCTIONS, "int8", False),
)


def tiles_of(isa: Isa) -> list[Tiling]:
    """Return each shape of a tile with every depth; of the newest architecture what four warps multiply together alone."""
    found = list(tilings(Product(rows=1, columns=1, depth=1), isa))
    if isa.warp_groups:
        return [tiling for tiling in found if tiling.warp_groups]
    return found[:: 2 if isa.asynchronous else 1]


def ends(dtype: str) -> tuple[int, ...]:
    return (-128, 0, 127) if dtype == "int8" else (0, 131, 255)


def sweep(rng, isa: Isa):
    """Return cases with every pair of tiling, window, zero points, and result."""
    tiles = tiles_of(isa)
    drawn = AllPairs([tiles, WINDOWS, ("int8", "uint8"), (0, 1, 2), (False, True), RESULTS, (False, True)])
    kept = list(drawn)
    if len(kept) > 48:  # pairs of a tiling with a window are the most: each tiling stays, with windows in turn
        kept = kept[:: len(kept) // 48]
    for tiling, window, dtype, end, weight_zero_points, (result, result_dtype, real_bias), extremes in kept:
        shape = Shape(
            **window,
            dtype=dtype,
            x_zero_point=ends(dtype)[end],
            weight_zero_points=weight_zero_points and not tiling.warp_groups,
            result=result,
            result_dtype=result_dtype,
            real_bias=real_bias,
            extremes=extremes,
        )
        yield conv2d_case(rng, shape), partial(gemm_conv2d, isa=isa, tiling=tiling)


@pytest.mark.parametrize("isa", [SM61, SM75, SM80, SM90], ids=lambda isa: isa.name)
def test_every_tile_gives_the_oracles_integers(rng, isa):
    assert differing(list(sweep(rng, isa))) == []


SMALL = {61: Tiling(tile=(16, 64, 32), warps=(1, 4), stages=2), 75: Tiling(tile=(32, 32, 64), warps=(2, 2), stages=2)}
SMALL |= {80: Tiling(tile=(32, 32, 64), warps=(2, 2), stages=3), 90: Tiling(tile=(16, 64, 128), warps=(1, 4), stages=4)}


@pytest.mark.parametrize("splits", [2, 3])
def test_splits_add_up(rng, splits):
    cases = []
    for isa in (SM61, SM75, SM80, SM90):
        small = SMALL[isa.capability]
        tiling = Tiling(tile=small.tile, warps=small.warps, stages=small.stages, splits=splits)
        for result, dtype, real_bias in (*RESULTS[:3], RESULTS[-1]):
            shape = Shape(
                channels=(70, 36),
                kernel=(3, 3),
                padding=(1, 1, 1, 1),
                weight_zero_points=True,
                result=result,
                result_dtype=dtype,
                real_bias=real_bias,
            )
            cases.append((conv2d_case(rng, shape), partial(gemm_conv2d, isa=isa, tiling=tiling)))
    assert differing(cases) == []


def checked_cases(rng):
    """Return a few convolutions that take every path into shared memory."""
    shapes = (
        Shape(channels=(16, 33), kernel=(3, 3), padding=(1, 1, 1, 1), size=(4, 6), x_zero_point=-128),
        Shape(channels=(3, 10), kernel=(3, 3), padding=(1, 1, 1, 1), size=(5, 5), x_zero_point=0, weight_zero_points=True),
        Shape(channels=(200, 40), size=(1, 35), result=SUMS),
    )
    cases = [
        (conv2d_case(rng, shape), partial(gemm_conv2d, isa=isa, tiling=SMALL[isa.capability]))
        for shape in shapes
        for isa in (SM61, SM75, SM80, SM90)
    ]
    together = Tiling(tile=(64, 128, 32), warps=(4, 1), stages=3, warp_groups=True)
    return [*cases, *((conv2d_case(rng, shape), partial(gemm_conv2d, isa=SM90, tiling=together)) for shape in shapes[::2])]


@pytest.mark.parametrize("check", ["races", "addresses"])
def test_threads_neither_race_nor_leave_their_memory(rng, check):
    assert differing(checked_cases(rng), check=check, seed=5) == []


def banks(addresses: np.ndarray) -> list[int]:
    """Return how many different groups of four banks each run of eight 16-byte accesses touches: 8 is free of conflicts."""
    return [len(set(run)) for run in (addresses // 16 % 8).reshape(-1, 8).tolist()]


@pytest.mark.parametrize("depth", [32, 64, 128])
def test_no_two_rows_of_a_matrix_share_banks(depth):
    tiling = Tiling(tile=(64, 64, depth), warps=(2, 2), stages=2)
    chunks, rows = depth // 16, np.arange(64)
    place = np.argsort(swizzle(tiling), 1)  # of each chunk in its row
    at = rows[:, None] * depth + place * 16
    assert sorted(at.ravel().tolist()) == list(range(0, 64 * depth, 16))
    for chunk in range(chunks):  # ldmatrix: eight rows, one chunk
        assert set(banks(at[:, chunk])) == {8}
    thread = np.arange(128)  # stores: neighbouring threads have neighbouring chunks of a row
    for first in range(0, 64, 128 // chunks):
        assert set(banks(at[first + thread // chunks, thread % chunks])) == {8}
    assert set(banks(rows * depth)) != {8}, "without a swizzle they do"


@pytest.mark.parametrize("isa", [SM61, SM80], ids=lambda isa: isa.name)
@pytest.mark.parametrize("result_bytes", [1, 4])
def test_columns_of_a_lane_are_neighbours(isa, result_bytes):
    for tiling in tilings(Product(rows=1, columns=1, depth=1), isa):
        columns = lying_columns(tiling, isa, result_bytes)
        assert sorted(columns.tolist()) == list(range(tiling.tile[1]))
