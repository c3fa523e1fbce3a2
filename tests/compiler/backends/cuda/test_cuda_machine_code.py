"""What kernels by tiles are compiled to: no spills, registers as their choice assumes, matrix products in the inner loop."""

import re
from dataclasses import replace

import numpy as np
import pytest
from cuda_conv2d_cases import SM61, SM75, SM80, SM90, Shape, conv2d_case
from cuda_units import Unit
from emulated_ops import integers, output, tensor

from cuda_loops import dense_spec, instructions, product_loop, products_of, row_of, table, text_of
from octavo.compiler.backends.cuda.compiler import compile_kernels
from octavo.compiler.backends.cuda.isa import Isa
from octavo.compiler.backends.cuda.kernels.conv.conv2d import conv2d, product_of
from octavo.compiler.backends.cuda.kernels.conv.conv2d_dot import dot_conv2d
from octavo.compiler.backends.cuda.kernels.conv.conv2d_gemm import gemm_conv2d
from octavo.compiler.backends.cuda.kernels.conv.depthwise import depthwise_conv2d
from octavo.compiler.backends.cuda.kernels.elementwise.pair import sum_of
from octavo.compiler.backends.cuda.kernels.matmuls.gemm import Tiling
from octavo.compiler.backends.cuda.kernels.matmuls.tail import Tail
from octavo.compiler.backends.cuda.kernels.matmuls.tile_choice import registers, tilings

WINDOW = Shape(size=(14, 14), channels=(128, 256), kernel=(3, 3), padding=(1, 1, 1, 1), x_zero_point=-128)
FIRST = Shape(size=(16, 16), channels=(3, 64), kernel=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1))


def some_tilings(spec, isa: Isa) -> list[Tiling]:
    """Return each shape of a tile once, its depths in turn."""
    by_shape: dict[tuple[int, int, tuple[int, int]], list[Tiling]] = {}
    for tiling in tilings(product_of(spec), isa):
        by_shape.setdefault((*tiling.tile[:2], tiling.warps), []).append(tiling)
    return [found[number % len(found)] for number, found in enumerate(by_shape.values())]


def products_of_a_turn(tiling: Tiling, isa: Isa) -> int:
    """Return the instructions that one turn of a warp must have."""
    (rows, columns), depth = tiling.warp, tiling.tile[2]
    if tiling.warp_groups:
        return rows * columns * depth // (16 * 128 * 32)
    if not isa.matrix_k:  # the inner loop takes 16 of the depth
        return rows * columns * 16 // 128
    return rows * columns * depth // (16 * 8 * 32) * (1 if isa.matrix_k == 32 else 4)


@pytest.mark.parametrize("isa", [SM61, SM75, SM80, SM90], ids=lambda isa: isa.name)
def test_a_tile_fits_as_assumed_and_multiplies_in_its_loop(rng, tmp_path, isa):
    # Tiles with one window and the other in turn, the other way around from one ISA to the next.
    specs = [conv2d_case(rng, shape).spec for shape in ((WINDOW, FIRST) if isa in (SM61, SM80) else (FIRST, WINDOW))]
    drawn = [(spec, tiling) for start, spec in enumerate(specs) for tiling in some_tilings(spec, isa)[start::2]]
    kernels = [gemm_conv2d(spec, isa, tiling)[0].kernel for spec, tiling in drawn]
    unit = Unit(kernels, isa, tmp_path)
    for (spec, tiling), kernel in zip(drawn, kernels, strict=True):
        usage, text = unit.usage[kernel.symbol], unit.texts[kernel.symbol]
        assert usage.spill_bytes == usage.stack_bytes == 0, tiling
        assert usage.registers <= registers(tiling, product_of(spec), isa), tiling
        assert kernel.shared_bytes <= isa.shared_bytes_of_block
        loop = product_loop(text)
        assert products_of(loop) == products_of_a_turn(tiling, isa), tiling
        if isa.asynchronous and spec.in_channels == WINDOW.channels[0]:
            names = {each.split()[0].split(".")[0] for each in loop}
            assert {"LDGSTS", "IGMMA"} <= names if tiling.warp_groups else {"LDGSTS", "LDSM", "IMMA"} <= names
            assert not {"LDG", "STS", "LDL", "STL"} & names, tiling
        if isa.matrix_k and tiling.warp[1] >= 64:
            assert "STG.E.128" in text, "results leave in runs of 16 bytes"


@pytest.mark.parametrize("isa", [SM61, SM80], ids=lambda isa: isa.name)
def test_a_kernel_among_others_is_compiled_to_what_it_is_alone(rng, tmp_path, isa):
    spec = conv2d_case(rng, FIRST).spec
    kernels = [gemm_conv2d(spec, isa, tiling)[0].kernel for tiling in some_tilings(spec, isa)[:2]]
    (alone,) = compile_kernels(kernels[1:], isa)
    unit = Unit(kernels, isa, tmp_path)
    assert unit.usage[kernels[1].symbol] == alone.usage[kernels[1].symbol]
    texts = [unit.texts[kernels[1].symbol], text_of(kernels[1], alone, isa, tmp_path)]
    assert len({"\n".join(re.sub(r"\$?L_\w+", "L", each) for each in instructions(text)) for text in texts}) == 1


@pytest.mark.parametrize("isa", [SM61, SM75, SM80, SM90], ids=lambda isa: isa.name)
def test_nothing_is_spilled_to_hold_more_blocks(isa):
    kernels = [conv2d(dense_spec(*sizes), isa)[0].kernel for sizes in ((49, 160, 960), (49, 960, 320))]
    assert {usage.spill_bytes for usage in Unit(kernels, isa).usage.values()} == {0}


@pytest.mark.parametrize("isa", [SM75, SM80, SM90], ids=lambda isa: isa.name)
def test_large_products_multiply_most_of_the_time(isa):
    # A tensor core is busy for 4 clocks or more with each, so that a quarter of what is issued keeps it so; for 64 with one of
    # four warps together.
    row = row_of("dense", "", dense_spec(2048, 1024, 4096), 1, isa)
    assert row.spill_bytes == 0
    assert row.share > (1 / 64 if isa.warp_groups else 1 / 4)
    assert f"| {row.instructions} | {row.products} |" in table([row])


def test_the_loop_that_multiplies_is_found():
    text = "\n".join(
        [
            ".L_x_0:",
            "        /*0000*/                   MOV R1, R2 ;",
            ".L_x_1:",
            "        /*0010*/                   IMMA.16832.S8.S8 R4, R8.ROW, R12.COL, R4 ;",
            "        /*0020*/               @P0 BRA `(.L_x_1) ;",
            "        /*0030*/              @!P1 BRA `(.L_x_0) ;",
        ]
    )
    assert [each.split()[0] for each in product_loop(text)] == ["IMMA.16832.S8.S8", "BRA"]
    assert product_loop("$L__BB0_1:\n\tdp4a.s32.s32 %r1, %r2, %r3, %r1;\n\t@%p1 bra $L__BB0_1;\n")[0].startswith("dp4a")
    unrolled = product_loop("\tld.global.u32 %r2, [%rd1];\n\tdp4a.s32.s32 %r1, %r2, %r3, %r1;\n")
    assert [each.split()[0] for each in unrolled] == ["ld.global.u32", "dp4a.s32.s32"]
    assert np.isclose(products_of(["IMMA.8816.S8.S8 R1", "IADD3 R1"]), 1)


def residual(spec, *, table):
    """Return a layer with a sum behind it, and a table behind that."""
    a, b = (tensor(name, (1,), "int8", scale, zero_point) for name, scale, zero_point in (("a", 0.05, 3), ("b", 0.07, -4)))
    y = output((1,), "int8", 0.09, 5)
    tail = Tail().with_pair(sum_of("half_even", a, b, y), "int8", is_first_operand=True)
    tail = tail.with_table(integers((256,), "int8"), "int8", "lookup") if table else tail
    return replace(spec, output=spec.output.followed_by(tail, "int8"))


@pytest.mark.parametrize("isa", [SM75, SM80, SM90], ids=lambda isa: isa.name)
def test_a_sum_behind_a_product_fits_as_assumed(rng, isa):
    spec = conv2d_case(rng, Shape(size=(14, 14), channels=(64, 256), x_zero_point=-128)).spec
    # Of three tiles one has a table behind the sum, one has none, and one is left to the other ISAs.
    turn = (SM75, SM80, SM90).index(isa)
    tiles = [((number + turn) % 3, tiling) for number, tiling in enumerate(some_tilings(spec, isa)) if (number + turn) % 3 < 2]
    kernels = [gemm_conv2d(residual(spec, table=bool(table)), isa, tiling)[0].kernel for table, tiling in tiles]
    usages = Unit(kernels, isa).usage
    for (_, tiling), kernel in zip(tiles, kernels, strict=True):
        usage = usages[kernel.symbol]
        assert usage.spill_bytes == usage.stack_bytes == 0, tiling
        assumed = registers(tiling, product_of(spec), isa)
        assert blocks_of(usage.registers, tiling, isa) >= blocks_of(assumed, tiling, isa), tiling


@pytest.mark.parametrize("isa", [SM61, SM75, SM80, SM90], ids=lambda isa: isa.name)
def test_a_sum_behind_a_product_without_tiles_spills_nothing(rng, isa):
    grouped = conv2d_case(rng, Shape(channels=(20, 10), kernel=(3, 3), groups=2)).spec
    each_channel = conv2d_case(rng, Shape(channels=(16, 16), kernel=(3, 3), groups=16)).spec
    specs = [grouped, each_channel, *(residual(spec, table=True) for spec in (grouped, each_channel))]
    calls = [*(dot_conv2d(spec, isa)[0] for spec in specs[::2]), *(depthwise_conv2d(spec, isa)[0] for spec in specs[1::2])]
    usages = Unit([call.kernel for call in calls], isa).usage
    assert {(usage.spill_bytes, usage.stack_bytes) for usage in usages.values()} == {(0, 0)}


def blocks_of(count, tiling, isa):
    """Return the blocks that a multiprocessor has registers for; it gives them out by eights, to whole warps."""
    return isa.registers // (-(-count // 8) * 8 * tiling.threads)


@pytest.mark.parametrize("isa", [SM75, SM80, SM90], ids=lambda isa: isa.name)
def test_what_a_sum_reads_comes_in_runs_of_16_bytes(rng, tmp_path, isa):
    spec = conv2d_case(rng, Shape(size=(14, 14), channels=(64, 256), x_zero_point=-128)).spec
    tiling = Tiling(tile=(128, 128, 64), warps=(2, 2), stages=3 if isa.asynchronous else 2)
    kernels = [gemm_conv2d(each, isa, tiling)[0].kernel for each in (spec, residual(spec, table=False))]
    unit = Unit(kernels, isa, tmp_path)
    texts = [unit.texts[kernel.symbol] for kernel in kernels]
    plain, fused = ([line.count("LDG.E.128") for line in text.splitlines()] for text in texts)
    assert sum(fused) == sum(plain) + 64 * 64 // 32 // 16
    assert texts[1].count("I2F") == texts[0].count("I2F") == 64 * 64 // 32
    assert "LDG.E.U8" not in texts[1]
