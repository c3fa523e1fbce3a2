"""The tile that is chosen fits the registers, the image and the channels."""

import pytest

from octavo.compiler.backends.cpu.kernels import AVX2, AVX512_VNNI, AVX_VNNI
from octavo.compiler.backends.cpu.kernels.conv.loops.tiles import Core, Tile, choose_tile, layer_cycles, ranked_tiles
from octavo.compiler.backends.cpu.kernels.conv.x86.cores import CORES, FLOAT_256

SHAPES = [
    {"rows": rows, "columns": columns, "channels": channels, "steps": steps}
    for rows, columns in ((1, 1), (49, 1), (7, 7), (14, 14), (12544, 1), (5, 3))
    for channels in (1, 16, 24, 96, 144, 160, 256, 1000)
    for steps in (1, 4, 64, 576)
]


@pytest.mark.parametrize(("isa", "core"), [*CORES.items(), (AVX2, FLOAT_256)])
def test_the_chosen_tile_fits(isa: str, core: Core) -> None:
    width, registers = (1, 32) if isa == AVX512_VNNI else (2, 16)
    for shape in SHAPES:
        tile = choose_tile(**shape, core=core)
        assert 1 <= tile.rows <= shape["rows"], shape
        assert 1 <= tile.columns <= shape["columns"], shape
        assert tile.vectors <= -(-shape["channels"] // 16), shape
        kept = tile.pixels * tile.vectors + tile.vectors
        assert width * kept + 1 <= registers, f"{shape}: accumulators, weights and one activation fit the registers"


def test_no_smaller_tile_is_estimated_faster() -> None:
    shape = {"rows": 14, "columns": 14, "channels": 256, "steps": 576, "core": CORES[AVX512_VNNI]}
    best = layer_cycles(choose_tile(**shape), **shape)
    others = [Tile(rows=r, columns=c, vectors=v) for r in (1, 2, 3) for c in (1, 2, 4) for v in (1, 2)]
    assert all(best <= layer_cycles(tile, **shape) for tile in others)


def test_the_estimate_is_near_the_products_of_a_large_layer() -> None:
    shape = {"rows": 56, "columns": 56, "channels": 64, "steps": 144, "core": CORES[AVX512_VNNI]}
    products = 56 * 56 * 4 * 144  # one vpdpbusd a cycle
    assert products < layer_cycles(choose_tile(**shape), **shape) < 1.05 * products


def test_loops_that_a_tile_enters_are_shared_by_more_sums() -> None:
    shape = {"rows": 1, "columns": 64, "channels": 64, "core": CORES[AVX_VNNI]}
    for steps in (27, 144, 864, 2304):
        _, tile = ranked_tiles(**shape, steps=steps, runs=3)[0]
        assert str(tile) == "6x1", "2x2 are just as many sums as their latency takes cycles"
