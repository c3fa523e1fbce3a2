"""Choice of the register tile by a small model of the core: how many pixels by how many vectors of 16 channels.

It estimates cycles, it emits nothing. The constants were fitted on a core with one 512-bit vpdpbusd a cycle.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count

from ...language.lane_order import LANES, groups_of
from .borders import Borders, ColumnTiles

LATENCY = 4  # cycles of vpdpbusd: fewer independent accumulators than this wait for each other
NARROW_CYCLES = {4: 1.9, 2: 2.4, 1: 3.9}  # to initialise, requantize and store one accumulator register of a group of 4, 2, 1
TILE_CYCLES = 3.0  # loops and addresses of one tile; the rest of its start and end overlaps its neighbours
MAX_PIXELS = 22  # by one vector: with more, the constants of requantizing find no registers beside the accumulators
VECTOR_BYTES = 4 * LANES  # of weights, of one step
RUN_CYCLES = 8.0  # to enter and leave one loop over steps, where taps in the padding are left out


@dataclass(frozen=True, kw_only=True, slots=True)
class Core:
    """What a tile is chosen for. A vector has 16 int32 lanes: one register of 512 bits or two of 256.

    Parameters
    ----------
    accumulators
        Vectors: more of them gain nothing.
    registers
        Vectors of accumulators and of one step's weights, beside the activation: beyond that, accumulators are spilled.
    product_cycles, weight_cycles, activation_cycles
        Of each product of a vector, and to prepare a vector of weights and the activation of a pixel in each step.
    end_factor
        How much longer than with 512 bits it takes to initialise, requantize and store accumulators.
    near_bytes
        Of a panel's weights that the first-level cache holds beside pixels.
    far_cycles
        In each step, of each vector of weights of a panel that has more.
    unsplit_bytes
        Of a panel's weights: with more, all tiles of a block take a part of `near_bytes` before any takes the next one.
    far_block_bytes
        Of the input that one block reads for every panel where all weights lie far; None for the default of the loops.
    """

    accumulators: int
    registers: int
    product_cycles: float = 1.0
    weight_cycles: float = 0.0
    activation_cycles: float = 0.0
    end_factor: float = 1.0
    near_bytes: float = math.inf
    far_cycles: float = 0.0
    unsplit_bytes: float = math.inf
    far_block_bytes: int | None = None

    def most_pixels(self, vectors: int) -> int:
        """Return how many pixels fit beside the weights of `vectors`, 0 if the weights alone are too many."""
        accumulators = self.accumulators if vectors > 1 else min(self.accumulators, MAX_PIXELS)
        return max(0, min(accumulators, self.registers - vectors)) // vectors

    def step_cycles(self, pixels: int, vectors: int) -> float:
        """Estimate the cycles of the arithmetic of one step."""
        return pixels * vectors * self.product_cycles + vectors * self.weight_cycles + pixels * self.activation_cycles

    def waiting_cycles(self, steps: int, vectors: int) -> float:
        """Estimate the cycles by which weights from beyond the first-level cache delay a step."""
        return vectors * self.far_cycles if steps * vectors * VECTOR_BYTES > self.near_bytes else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """`rows` x `columns` output pixels by `vectors` vectors of 16 output channels, all in registers."""

    rows: int
    columns: int
    vectors: int

    @property
    def pixels(self) -> int:
        """Number of pixels."""
        return self.rows * self.columns

    def __str__(self) -> str:
        """Return pixels x vectors, as kernels are named."""
        return f"{self.pixels}x{self.vectors}"


def step_cycles(pixels: int, vectors: int, core: Core) -> float:
    """Estimate the cycles of one step: products, or loads, or the latency, whichever is longest."""
    return max(core.step_cycles(pixels, vectors), vectors + 0.5 * pixels, LATENCY)


def end_cycles(pixels: int, vectors: int, core: Core) -> float:
    """Estimate the cycles of a tile beside its steps."""
    return pixels * _narrow_cycles(vectors) * core.end_factor + TILE_CYCLES


@cache
def _narrow_cycles(vectors: int) -> float:
    return sum(group * NARROW_CYCLES[group] for group in groups_of(vectors))


def layer_cycles(
    tile: Tile,
    *,
    rows: int,
    columns: int,
    channels: int,
    steps: int,
    borders: Borders | None = None,
    runs: int = 0,
    core: Core,
) -> float:
    """Estimate the cycles of all tiles of one image and group, tails included; `borders` leave taps out.

    Each tile enters `runs` loops over steps; those that `borders` has are counted apart.
    """
    total = 0.0
    full, rest = divmod(-(-channels // LANES), tile.vectors)
    for vectors, panels in ((tile.vectors, full), (rest, 1)):
        if not vectors or not panels:
            continue
        if borders is not None:
            total += panels * _bordered_cycles(tile, vectors, rows, steps, borders, core)
            continue
        for height, row_tiles in ((tile.rows, rows // tile.rows), (rows % tile.rows, 1)):
            for width, column_tiles in ((tile.columns, columns // tile.columns), (columns % tile.columns, 1)):
                if height and width:
                    pixels = height * width
                    step = step_cycles(pixels, vectors, core) + core.waiting_cycles(steps, vectors)
                    cycles = steps * step + end_cycles(pixels, vectors, core) + runs * RUN_CYCLES
                    total += panels * row_tiles * column_tiles * cycles
    return total


def _bordered_cycles(tile: Tile, vectors: int, rows: int, steps: int, borders: Borders, core: Core) -> float:
    """Estimate the cycles of all tiles of one panel where taps in the padding are left out."""
    tap_steps = borders.tap_steps or steps / (borders.rows.count * borders.columns.count)
    total, waiting = 0.0, core.waiting_cycles(steps, vectors)
    left = rows % tile.rows
    for first, height, row_tiles in ((0, tile.rows, rows // tile.rows), (rows - left, left, 1)):
        if not height:
            continue
        row_taps = _row_taps(borders, first, height, row_tiles)
        for tiles in _column_tiles(borders, tile.columns):
            row_tap = sum(
                (run.last - run.first) * tap_steps * (step_cycles(height * len(run.columns), vectors, core) + waiting)
                + RUN_CYCLES
                for run in tiles.runs
            )
            total += tiles.count * (row_taps * row_tap + row_tiles * end_cycles(height * tiles.width, vectors, core))
    return total


@cache
def _row_taps(borders: Borders, first: int, height: int, count: int) -> int:
    """Count the row taps of `count` tiles of `height` rows, from row `first` on."""
    return sum(borders.rows.read_by(row, height) for row in range(first, first + count * height, height))


@cache
def _column_tiles(borders: Borders, width: int) -> list[ColumnTiles]:
    return borders.column_tiles(width)


def choose_tile(*, rows: int, columns: int, channels: int, steps: int, core: Core, borders: Borders | None = None) -> Tile:
    """Return the tile with the fewest estimated cycles: the first of `ranked_tiles`."""
    return ranked_tiles(rows=rows, columns=columns, channels=channels, steps=steps, borders=borders, core=core)[0][1]


def ranked_tiles(
    *, rows: int, columns: int, channels: int, steps: int, core: Core, borders: Borders | None = None, runs: int = 0
) -> list[tuple[float, Tile]]:
    """Return every tile for an output of rows x columns pixels by `channels` with its estimated cycles, fewest first.

    Parameters
    ----------
    rows, columns
        Output pixels of one image.
    channels
        Output channels of one group.
    steps
        Steps of the reduction, of 4 bytes or 2 words.
    borders
        Which of its taps are left out where they lie in the padding; None where none are.
    runs
        Loops over steps that each tile enters, where it learns when it runs which taps it reads.
    core
        Whose registers it must fit.
    """
    ranked: list[tuple[float, Tile]] = []
    for vectors in range(1, min(8, -(-channels // LANES)) + 1):
        most = core.most_pixels(vectors)
        for width in range(1, min(columns, most) + 1):
            for height in range(1, min(rows, most // width) + 1):
                tile = Tile(rows=height, columns=width, vectors=vectors)
                cycles = layer_cycles(
                    tile, rows=rows, columns=columns, channels=channels, steps=steps, borders=borders, runs=runs, core=core
                )
                ranked.append((cycles, tile))
    assert ranked, "an output has at least one pixel and one channel"
    return sorted(ranked, key=lambda each: each[0])


def varied(ranked: Sequence[Tile]) -> list[Tile]:
    """Return the tiles in another order: the best of each number of vectors first, then the second best of each, ..."""
    numbers = defaultdict[int, Iterator[int]](count)
    places = [next(numbers[tile.vectors]) for tile in ranked]
    return [ranked[index] for index in sorted(range(len(ranked)), key=places.__getitem__)]
