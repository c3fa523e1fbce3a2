"""Taps in the padding: which they are, and that the tiles of a row leave out those and no others."""

from itertools import product

import pytest

from octavo.compiler.backends.cpu.kernels import Conv2dSpec
from octavo.compiler.backends.cpu.kernels.conv.loops.borders import Borders, Taps
from octavo.ir.composites.outputs import Output

AXES = [
    Taps(count=count, stride=stride, dilation=dilation, before=before, extent=extent, outputs=(room - 1) // stride + 1)
    for count, stride, dilation, before, extent, after in product((1, 2, 5), (1, 3), (1, 2), (0, 2, 4), (1, 3, 7), (0, 3))
    if (room := extent + before + after - dilation * (count - 1)) > 0
]


def read(taps: Taps, output: int) -> list[int]:
    """The taps that read inputs, by definition."""
    reads = (output * taps.stride - taps.before + tap * taps.dilation for tap in range(taps.count))
    return [tap for tap, index in enumerate(reads) if 0 <= index < taps.extent]


def test_the_taps_of_an_output_are_those_inside_the_image() -> None:
    assert len(AXES) > 100
    for taps in AXES:
        for output in range(taps.outputs):
            assert list(range(*taps.interior(output))) == read(taps, output), (taps, output)
        assert taps.are_all_interior == all(len(read(taps, output)) == taps.count for output in range(taps.outputs)), taps


@pytest.mark.parametrize("width", [1, 2, 3, 6])
def test_tiles_cover_each_column_and_its_taps_once(width: int) -> None:
    for taps in AXES:
        borders = Borders(rows=AXES[0], columns=taps, tap_steps=4)
        covered: dict[int, list[int]] = {}
        for tiles in borders.column_tiles(width):
            for first in range(tiles.first, tiles.first + tiles.count * width, width):
                for column in range(tiles.width):
                    runs = [run for run in tiles.runs if column in run.columns]
                    covered[first + column] = [tap for run in runs for tap in range(run.first, run.last)]
        assert covered == {output: read(taps, output) for output in range(taps.outputs)}, taps


def spec(**changes: object) -> Conv2dSpec:
    base: dict[str, object] = {"batch": 1, "in_height": 7, "in_width": 7, "in_channels": 8, "out_channels": 8, "kernel": (3, 3)}
    return Conv2dSpec(**{**base, "padding": (1, 1, 1, 1), "input_zero_point": 0, "output": Output(zero_point=0), **changes})


def test_padding_counts_where_it_holds_something() -> None:
    assert Borders.of(spec(input_zero_point=1), 8, 4) is None
    assert Borders.of(spec(padding=(0, 0, 0, 0)), 8, 4) is None
    borders = Borders.of(spec(), 8, 4)
    assert borders is not None
    assert borders.tap_steps == 2
    uneven = Borders.of(spec(in_channels=3), 3, 4)
    assert uneven is not None
    assert uneven.tap_steps is None
    assert [run.columns for tiles in uneven.column_tiles(7) for run in tiles.runs] == [tuple(range(7))]
    assert Borders.of(spec(in_channels=3, padding=(0, 1, 0, 1)), 3, 4) is None, "no row tap is outside, and columns stay together"
