"""Faults planted in the kernels' source, one at a time: each changes a result that the sweeps look at, or a check finds it."""

import shutil
from dataclasses import dataclass, replace
from functools import partial

import pytest
from cuda_conv2d_cases import SM61, SM75, SM80, SM90, Shape, conv2d_case, differing
from cuda_emulator import Check

from octavo.compiler.backends.cuda.compiler import DEVICE
from octavo.compiler.backends.cuda.kernels.conv.conv2d_gemm import gemm_conv2d
from octavo.compiler.backends.cuda.kernels.matmuls.gemm import Tiling
from octavo.errors import ExecutableError

WINDOW = Shape(size=(5, 7), channels=(16, 40), kernel=(3, 3), padding=(1, 1, 1, 1), x_zero_point=-100)
DEEP = Shape(size=(5, 7), channels=(64, 40), kernel=(3, 3), padding=(1, 1, 1, 1), x_zero_point=-100)
ZERO_POINTS = Shape(size=(1, 33), channels=(40, 33), weight_zero_points=True, dtype="uint8", x_zero_point=131)
BYTES = Shape(size=(6, 6), channels=(3, 16), kernel=(3, 3), padding=(1, 1, 1, 1), weight_zero_points=True)
TILES = {
    SM61: Tiling(tile=(32, 32, 32), warps=(2, 2), stages=2),
    SM75: Tiling(tile=(32, 32, 32), warps=(2, 2), stages=2),
    SM80: Tiling(tile=(32, 32, 32), warps=(2, 2), stages=3),
    SM90: Tiling(tile=(64, 128, 64), warps=(4, 1), stages=3, warp_groups=True),
}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A change of one file, and where it is looked for."""

    name: str
    file: str
    old: str
    new: str
    shape: Shape = WINDOW
    splits: int = 1
    isa: object = SM80
    check: Check = "none"
    places: int = 1


FAULTS = (
    Fault(name="matrices of B in the wrong order", file="gemm.cuh", old="lane % 8 + lane / 16 * 8", new="lane % 16"),
    Fault(name="lanes of A swapped", file="gemm.cuh", old="first_row + lane % 16, 2", new="first_row + (lane ^ 1) % 16, 2"),
    Fault(name="halves of A's depth swapped", file="gemm.cuh", old="2 * k + lane / 16)", new="2 * k + 1 - lane / 16)"),
    Fault(name="parts of A swapped", file="mma.cuh", old="sums + 2, a[1], b[0]", new="sums + 2, a[2], b[0]", isa=SM75),
    Fault(
        name="rows of a lane's sums swapped", file="gemm.cuh", old="row % 2 * 2 + i % 2];", new="i % 2 * 2 + row % 2];", places=2
    ),
    Fault(name="columns of a lane shifted", file="gemm.cuh", old="lane % 4 * span", new="(lane + 1) % 4 * span", places=2),
    Fault(name="a swizzle of another row", file="gemm.cuh", old="row * chunks / 8 %", new="(row + 4) * chunks / 8 %"),
    Fault(name="no swizzle", file="gemm.cuh", old="^ row * chunks / 8 % chunks", new="", check="none"),
    Fault(name="zeros for the zero point", file="rows.cuh", old="G::has_padding && G::zero_point != 0", new="false"),
    Fault(
        name="zeros for the zero point, loaded",
        file="rows.cuh",
        old="packed(G::zero_point, G::zero",
        new="packed(0, G::zero",
        isa=SM75,
    ),
    Fault(name="a tap's column for its row", file="rows.cuh", old="1u << r | 0x10000u", new="1u << s | 0x10000u"),
    Fault(
        name="columns of bits swapped",
        file="rows.cuh",
        old="first + s * G::dilation_width)",
        new="first - s * G::dilation_width)",
    ),
    Fault(name="bytes in another order", file="rows.cuh", old="<< j % 4 * 8", new="<< (3 - j % 4) * 8", shape=BYTES),
    Fault(
        name="zero point behind the last tap",
        file="rows.cuh",
        old="first + j >= run) ? 0 : G::",
        new="false) ? 0 : G::",
        shape=BYTES,
    ),
    Fault(name="no sums of rows", file="gemm.cuh", old="sum -= points[v] * core.row_sum(i);", new=";", shape=ZERO_POINTS),
    Fault(
        name="sums of other rows",
        file="gemm.cuh",
        old="sums_of_rows[row / 2][row % 2 * 2]",
        new="sums_of_rows[row / 2][0]",
        shape=ZERO_POINTS,
    ),
    Fault(
        name="operands taken as signed",
        file="gemm.cuh",
        old="using X = typename P::X;\n    using W",
        new="using X = int8;\n    using W",
        shape=ZERO_POINTS,
    ),
    Fault(
        name="another lane's column",
        file="gemm.cuh",
        old="j * 8 + lane % 8, chunk",
        new="j * 8 + (lane ^ 1) % 8, chunk",
        isa=SM61,
    ),
    Fault(name="the bias in every split", file="conv2d_gemm.cuh", old="blockIdx.z == 0", new="true", splits=2),
    Fault(
        name="the last split left out", file="conv2d_gemm.cuh", old="split < P::splits;", new="split < P::splits - 1;", splits=2
    ),
    Fault(name="splits that overlap", file="conv2d_gemm.cuh", old="blockIdx.z * split;", new="blockIdx.z;", splits=2),
    Fault(name="waits for one group too few", file="gemm.cuh", old="wait_copies<ahead - 1>", new="wait_copies<ahead>"),
    Fault(name="waits for nothing", file="gemm.cuh", old="if constexpr (asynchronous) wait_copies<ahead - 1>();", new=""),
    Fault(
        name="closes no group",
        file="gemm.cuh",
        old="issue(number + ahead, filled);\n      commit_copies();",
        new="issue(number + ahead, filled);",
    ),
    Fault(name="no barrier", file="gemm.cuh", old="    __syncthreads();\n", new="", check="races"),
    Fault(name="no barrier, loaded", file="gemm.cuh", old="    __syncthreads();\n", new="", check="races", isa=SM75),
    Fault(name="fills the stage that is read", file="gemm.cuh", old="filled = ahead;", new="filled = 0;"),
    Fault(name="a stage too few", file="gemm.cuh", old="filled + 1 == stages ?", new="filled + 2 == stages ?", check="races"),
    Fault(name="reads behind the last pixel", file="rows.cuh", old="G::pixels - 1)", new="G::pixels)", check="addresses"),
    Fault(
        name="writes behind the last pixel",
        file="gemm.cuh",
        old="row >= results.rows",
        new="row > results.rows",
        check="addresses",
    ),
    Fault(name="writes behind the last channel", file="gemm.cuh", old="if (column + v < results.columns)", new=""),
    Fault(name="a swizzle of half the width", file="wgmma.cuh", old="width == 128 ? 1 : width == 64 ? 2 : 3", new="3", isa=SM90),
    Fault(
        name="rows of a matrix too near", file="wgmma.cuh", old="(8 * width / 16) << 32", new="(4 * width / 16) << 32", isa=SM90
    ),
    Fault(
        name="one part of the depth twice",
        file="gemm.cuh",
        old="matrix_descriptor<P::tile_k>(b + k)",
        new="matrix_descriptor<P::tile_k>(b)",
        isa=SM90,
    ),
    Fault(name="the last products not waited for", file="gemm.cuh", old="  core.complete();\n", new="", isa=SM90),
    Fault(
        name="fills what products still read",
        file="gemm.cuh",
        old="spans = group_n / (4 * span), stages_read = 1",
        new="spans = group_n / (4 * span), stages_read = 0",
        shape=DEEP,
        isa=SM90,
    ),
    Fault(
        name="rounds half up",
        file="base.cuh",
        old="__fadd_rn(bounded, magic)",
        new="__fadd_rn(float(int(bounded + 0.5f)), magic)",
    ),
    Fault(
        name="forgets the real bias",
        file="epilogue.cuh",
        old="P::has_real_bias ? __fmaf",
        new="!P::has_real_bias ? __fmaf",
        shape=replace(WINDOW, real_bias=True),
    ),
)


def found(fault: Fault, device, rng) -> bool:
    case = conv2d_case(rng, fault.shape)
    tiling = replace(TILES[fault.isa], splits=fault.splits)
    try:
        return bool(
            differing([(case, partial(gemm_conv2d, isa=fault.isa, tiling=tiling))], check=fault.check, device=device, seed=9)
        )
    except ExecutableError:
        return True


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "_"))
def test_a_planted_fault_is_found(rng, tmp_path, fault):
    device = tmp_path / "device"
    shutil.copytree(DEVICE, device)
    file = device / fault.file
    text = file.read_text()
    assert text.count(fault.old) == fault.places, "the fault is to be planted there"
    file.write_text(text.replace(fault.old, fault.new))
    assert found(fault, device, rng)


@pytest.mark.parametrize("shape", [WINDOW, ZERO_POINTS, BYTES], ids=["window", "zero_points", "bytes"])
def test_without_a_fault_nothing_is_found(rng, shape):
    isas = [isa for isa in TILES if isa is not SM90 or not shape.weight_zero_points]
    cases = [(conv2d_case(rng, shape), partial(gemm_conv2d, isa=isa, tiling=TILES[isa])) for isa in isas]
    if shape is WINDOW:
        cases.append((conv2d_case(rng, shape), partial(gemm_conv2d, isa=SM80, tiling=replace(TILES[SM80], splits=2))))
    assert differing(cases, seed=9) == []
