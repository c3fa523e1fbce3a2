"""Choice of the register tile by a small model of the core: how many pixels by how many vectors of 16 channels.

It estimates cycles, it emits nothing. The constants were fitted on a core with one 512-bit vpdpbusd a cycle.
"""

from __future__ import annotations

from dataclasses import dataclass

from .epilogue import groups_of
from .vector import LANES

ACCUMULATORS = 24  # registers: more of them gain nothing
REGISTERS = 31  # accumulators and one step's weights, beside the activation: beyond 32 in all, accumulators are spilled
LATENCY = 4  # cycles of vpdpbusd: fewer independent accumulators than this wait for each other
NARROW_CYCLES = {4: 1.9, 2: 2.4, 1: 3.9}  # to initialise, requantize and store one accumulator register of a group of 4, 2, 1
TILE_CYCLES = 3.0  # loops and addresses of one tile; the rest of its start and end overlaps its neighbours


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


def tile_cycles(pixels: int, vectors: int, steps: int) -> float:
    """Estimate the cycles of one tile over `steps` 4-byte steps: products, or loads, or the latency, whichever is longest."""
    loads = vectors + 0.5 * pixels
    step = max(pixels * vectors, loads, LATENCY)
    narrow = pixels * sum(group * NARROW_CYCLES[group] for group in groups_of(vectors))
    return steps * step + narrow + TILE_CYCLES


def layer_cycles(tile: Tile, *, rows: int, columns: int, channels: int, steps: int) -> float:
    """Estimate the cycles of all tiles of one image and group, tails included."""
    total = 0.0
    whole, rest = divmod(-(-channels // LANES), tile.vectors)
    for vectors, panels in ((tile.vectors, whole), (rest, 1)):
        for height, row_tiles in ((tile.rows, rows // tile.rows), (rows % tile.rows, 1)):
            for width, column_tiles in ((tile.columns, columns // tile.columns), (columns % tile.columns, 1)):
                if height and width and vectors:
                    total += panels * row_tiles * column_tiles * tile_cycles(height * width, vectors, steps)
    return total


def choose_tile(*, rows: int, columns: int, channels: int, steps: int) -> Tile:
    """Return the tile with the fewest estimated cycles for an output of rows x columns pixels by `channels`.

    Parameters
    ----------
    rows, columns
        Output pixels of one image.
    channels
        Output channels of one group.
    steps
        4-byte steps of the reduction.
    """
    best: tuple[float, Tile] | None = None
    for vectors in range(1, min(8, -(-channels // LANES)) + 1):
        most = min(ACCUMULATORS, REGISTERS - vectors) // vectors
        for width in range(1, min(columns, most) + 1):
            for height in range(1, min(rows, most // width) + 1):
                tile = Tile(rows=height, columns=width, vectors=vectors)
                cycles = layer_cycles(tile, rows=rows, columns=columns, channels=channels, steps=steps)
                if best is None or cycles < best[0]:
                    best = (cycles, tile)
    assert best is not None, "an output has at least one pixel and one channel"
    return best[1]
