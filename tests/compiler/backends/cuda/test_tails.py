"""Sums and tables in the kernels of products, emulated: the oracles' integers for every core, end, dtype and order of ops."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import pytest
from allpairspy import AllPairs
from cuda_conv2d_cases import SM61, SM75, SM80, SM90, Job, Shape, conv2d_case
from cuda_tail_cases import TAILS, followed
from emulated_ops import few_at_a_time
from test_batch_matmul_gemm import case as matrices

from octavo.compiler.backends.cuda.compiler import DEVICE
from octavo.compiler.backends.cuda.kernels.conv.conv2d_dot import dot_conv2d
from octavo.compiler.backends.cuda.kernels.conv.conv2d_gemm import gemm_conv2d
from octavo.compiler.backends.cuda.kernels.conv.depthwise import depthwise_conv2d
from octavo.compiler.backends.cuda.kernels.matmuls.batch_matmul import batch_matmul
from octavo.compiler.backends.cuda.kernels.matmuls.gemm import Tiling
from octavo.compiler.backends.cuda.kernels.matmuls.output import FUNCTIONS, INTEGERS
from octavo.errors import ExecutableError

TOGETHER = Tiling(tile=(64, 128, 32), warps=(4, 1), stages=3, warp_groups=True)
CORES = (
    (SM61, Tiling(tile=(32, 64, 32), warps=(2, 2), stages=2)),
    (SM61, Tiling(tile=(64, 64, 32), warps=(2, 2), stages=2)),
    (SM75, Tiling(tile=(64, 64, 32), warps=(2, 2), stages=2)),
    (SM75, Tiling(tile=(32, 32, 64), warps=(2, 2), stages=2)),
    (SM80, Tiling(tile=(64, 128, 32), warps=(2, 2), stages=3)),
    (SM80, Tiling(tile=(16, 64, 64), warps=(1, 4), stages=4)),
    (SM90, TOGETHER),
    (SM90, replace(TOGETHER, tile=(128, 256, 64), warps=(8, 2))),
)
"""DP4A, m8n8k16, m16n8k32, and four warps together: runs of 4, 8 and 16 columns."""

SIZES = (
    {"channels": (32, 64), "size": (5, 9)},
    {"channels": (16, 36), "kernel": (3, 3), "padding": (1, 1, 1, 1), "batch": 2},
    {"channels": (24, 33), "size": (3, 5)},
    {"channels": (20, 10), "strides": (2, 1)},
    {"channels": (64, 48), "kernel": (3, 3), "groups": 2, "padding": (1, 1, 1, 1)},
    {"channels": (130, 129), "size": (1, 3)},
    {"channels": (32, 40), "size": (7, 11)},
)
DEPTHWISE = (
    {"channels": (8, 8), "groups": 8, "size": (5, 7)},
    {"channels": (6, 6), "groups": 6, "size": (4, 9), "strides": (2, 1)},
    {"channels": (5, 15), "groups": 5, "size": (6, 5)},
)


@dataclass(frozen=True)
class TailCase:
    calls: Sequence
    inputs: Sequence[np.ndarray]
    want: np.ndarray


def tail_case(rng, shape, steps, builder):
    case = conv2d_case(rng, shape)
    output, beside, want = followed(rng, case.spec.output, case.want, steps)
    return TailCase(builder(replace(case.spec, output=output)), [case.x, beside], want)


def differing(cases, **options):
    job = Job()
    for case in cases:
        job.add(case.calls, case.inputs, case.want)
    found = job.run(**options)
    return [number for number, case in enumerate(cases) if found[number].tobytes() != case.want.tobytes()]


def drawn_shape(window, dtype, zero_points, real_bias):
    own = {"dtype": dtype, "x_zero_point": 5, "result_dtype": dtype, "weight_zero_points": zero_points}
    ending = {"real_bias": True} if real_bias else {"result": FUNCTIONS} if window["channels"][1] % 8 else {}
    return Shape(**{**window, **own, **ending})


def sweep(rng):
    drawn = AllPairs([CORES, TAILS, SIZES, ("int8", "uint8"), (False, True), (False, True), (1, 1, 2)])
    for (isa, tiling), steps, window, dtype, zero_points, real_bias, splits in drawn:
        shape = drawn_shape(window, dtype, zero_points and not tiling.warp_groups, real_bias)
        deep = shape.channels[0] // shape.groups * shape.kernel[0] * shape.kernel[1] > tiling.tile[2]
        cut = replace(tiling, splits=splits if deep else 1)
        yield tail_case(rng, shape, steps, partial(gemm_conv2d, isa=isa, tiling=cut))


def test_every_core_gives_the_oracles_integers(rng):
    cases = list(sweep(rng))
    assert {len(case.calls) for case in cases} == {1, 2}
    assert differing(cases) == []


def others(rng):
    for number, steps in enumerate(TAILS):
        dtype, flag = ("int8", "uint8")[number % 2], number % 3 == 0
        yield tail_case(rng, drawn_shape(SIZES[number % 7], dtype, flag, not flag), steps, partial(dot_conv2d, isa=SM61))
        window = {"kernel": (3, 3), "padding": (1, 1, 1, 1), **DEPTHWISE[number % 3]}
        build = partial(depthwise_conv2d, isa=SM80, pixels=(1, 2, 4)[number % 3])
        yield tail_case(rng, drawn_shape(window, dtype, flag, not flag), steps, build)


def test_kernels_without_tiles_give_the_oracles_integers(rng):
    assert differing(list(others(rng))) == []


def variables(rng):
    """Products of two variables: several batches, ragged ends, b either way around."""
    for number, steps in enumerate(TAILS):
        size = ((33, 48, 64), (5, 7, 9), (17, 40, 130))[number % 3]
        pair = (("int8", "uint8"), ("uint8", "int8"))[number % 2]
        points = (0, 0) if number % 4 else (5, 9)
        spec, operands, want = matrices(rng, size, ((2,), (1,)), pair, points, number % 2 == 0, INTEGERS)
        output, beside, want = followed(rng, spec.output, want, steps)
        isa = (SM61, SM75, SM80, SM90)[number % 4]
        yield TailCase(batch_matmul(replace(spec, output=output), isa), [*operands, beside], want)


def test_products_of_variables_give_the_oracles_integers(rng):
    assert differing(list(variables(rng))) == []


@pytest.mark.parametrize("check", ["races", "addresses"])
def test_threads_neither_race_nor_leave_their_memory(rng, check):
    cases = list(sweep(rng))[::9] + list(others(rng))[::4] + list(variables(rng))[::4]
    assert differing(cases, check=check, seed=3) == []


FAULTS = [
    ("tail.cuh", "T::is_first_operand ?", "true ?", "tiles"),
    ("tail.cuh", "(T::has_first ? 256 : 0)", "0", "tiles"),
    ("tail.cuh", "T::first_is_signed ? int(int8(entry)) : int(entry)", "int(entry)", "tiles"),
    ("epilogue.cuh", "tail.of(integer(acc, channel), beside)", "integer(acc, channel)", "tiles"),
    ("gemm.cuh", "beside[loads_all ? i : 0].get(v)", "beside[0].get(v)", "tiles"),
    ("gemm.cuh", "read[v / P::store].get(v % P::store)", "read[0].get(v % P::store)", "tiles"),
    ("gemm.cuh", "if (row < results.rows && column + i * P::store < results.columns) read", "read", "addresses"),
    ("conv2d_gemm.cuh", "Results<P>{y + at, beside + at", "Results<P>{y + at, beside", "tiles"),
    ("conv2d_gemm.cuh", "Tail<P>::reads ? int(read.get(i)) : 0", "Tail<P>::reads ? int(read.get(0)) : 0", "tiles"),
    ("conv2d_dot.cuh", "int(beside[at])", "int(beside[channel + i])", "others"),
    ("depthwise.cuh", "int(read.get(i)) : int(beside[at + i])", "int(read.get(i)) : int(beside[at])", "others"),
    ("depthwise.cuh", "read.load(beside + at)", "read.load(beside + channel)", "others"),
    ("batch_matmul_gemm.cuh", "Results<P>{y + at, beside + at", "Results<P>{y + at, beside", "variables"),
    ("epilogue.cuh", "(P::real_rows - 1) * stride", "0 * stride", "functions"),
    (
        "epilogue.cuh",
        "P::function(real(acc, channel), real_bias + channel",
        "P::function(real(acc, channel), real_bias",
        "functions",
    ),
    ("gemm.cuh", "i * P::real_stride + column", "column", "functions"),
]
"""A file, what stands there and what is put in its place, and where it is looked for."""


@cache
def cases_of(where):
    """Return the cases among which a fault is looked for."""
    rng = np.random.default_rng(5)
    if where == "others":
        drawn = list(others(rng))
        return drawn[::2] + drawn[1::4]
    if where == "variables":
        return list(variables(rng))
    drawn = list(sweep(rng))
    return (
        [each for each in drawn if any(call.kernel.members for call in each.calls)][::3] if where == "functions" else drawn[::4]
    )


@pytest.mark.parametrize(("header", "there", "instead", "where"), FAULTS)
def test_a_planted_fault_is_found(tmp_path, header, there, instead, where):
    device = tmp_path / "device"
    shutil.copytree(DEVICE, device)
    text = (device / header).read_text()
    assert text.count(there) == 1, "the fault is to be planted there"
    (device / header).write_text(text.replace(there, instead))
    if where == "addresses":
        with pytest.raises(ExecutableError, match="overflow"):
            any(differing(few, device=device, check="addresses", seed=3) for few in few_at_a_time(cases_of("tiles")))
    else:
        assert any(differing(few, device=device) for few in few_at_a_time(cases_of(where)))
