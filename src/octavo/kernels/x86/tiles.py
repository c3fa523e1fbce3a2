"""Choice of the register tile by a small model of the core: how many pixels by how many vectors of 16 channels.

It estimates cycles, it emits nothing. The constants were fitted on a core with one 512-bit vpdpbusd a cycle; those of narrower
cores count instructions, three of 256 bits a cycle.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..isa import AVX2, AVX512_VNNI, AVX_VNNI
from .epilogue import groups_of
from .vector import LANES

LATENCY = 4  # cycles of vpdpbusd: fewer independent accumulators than this wait for each other
NARROW_CYCLES = {4: 1.9, 2: 2.4, 1: 3.9}  # to initialise, requantize and store one accumulator register of a group of 4, 2, 1
TILE_CYCLES = 3.0  # loops and addresses of one tile; the rest of its start and end overlaps its neighbours


@dataclass(frozen=True, kw_only=True, slots=True)
class Core:
    """What a tile is chosen for. A vector has 16 int32 lanes: one register of 512 bits or two of 256.

    Parameters
    ----------
    accumulators
        Vectors: more of them gain nothing.
    registers
        Vectors of accumulators and of one step's weights, beside the activation: beyond that, accumulators are spilled.
    weight_vectors
        Vectors that the weights of one vector take up.
    product_cycles, weight_cycles, activation_cycles
        Of each product of a vector, and to prepare a vector of weights and the activation of a pixel in each step.
    """

    accumulators: int
    registers: int
    weight_vectors: int = 1
    product_cycles: float = 1.0
    weight_cycles: float = 0.0
    activation_cycles: float = 0.0

    def most_pixels(self, vectors: int) -> int:
        """Return how many pixels fit beside the weights of `vectors`, 0 if the weights alone are too many."""
        return max(0, min(self.accumulators, self.registers - vectors * self.weight_vectors)) // vectors

    def step_cycles(self, pixels: int, vectors: int) -> float:
        """Estimate the cycles of the arithmetic of one step."""
        return pixels * vectors * self.product_cycles + vectors * self.weight_cycles + pixels * self.activation_cycles


CORES = {
    AVX512_VNNI: Core(accumulators=24, registers=31),
    AVX_VNNI: Core(accumulators=7, registers=7),
    # Weights and activations are widened to words, even and odd bytes apart: two multiplications and two sums a register.
    AVX2: Core(accumulators=6, registers=6, weight_vectors=2, product_cycles=8 / 3, weight_cycles=2.0, activation_cycles=1.0),
}
"""By ISA."""


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


def tile_cycles(pixels: int, vectors: int, steps: int, core: Core = CORES[AVX512_VNNI]) -> float:
    """Estimate the cycles of one tile over `steps` 4-byte steps: products, or loads, or the latency, whichever is longest."""
    loads = vectors + 0.5 * pixels
    step = max(core.step_cycles(pixels, vectors), loads, LATENCY)
    narrow = pixels * sum(group * NARROW_CYCLES[group] for group in groups_of(vectors))
    return steps * step + narrow + TILE_CYCLES


def layer_cycles(tile: Tile, *, rows: int, columns: int, channels: int, steps: int, core: Core = CORES[AVX512_VNNI]) -> float:
    """Estimate the cycles of all tiles of one image and group, tails included."""
    total = 0.0
    whole, rest = divmod(-(-channels // LANES), tile.vectors)
    for vectors, panels in ((tile.vectors, whole), (rest, 1)):
        for height, row_tiles in ((tile.rows, rows // tile.rows), (rows % tile.rows, 1)):
            for width, column_tiles in ((tile.columns, columns // tile.columns), (columns % tile.columns, 1)):
                if height and width and vectors:
                    total += panels * row_tiles * column_tiles * tile_cycles(height * width, vectors, steps, core)
    return total


def choose_tile(*, rows: int, columns: int, channels: int, steps: int, core: Core = CORES[AVX512_VNNI]) -> Tile:
    """Return the tile with the fewest estimated cycles for an output of rows x columns pixels by `channels`.

    Parameters
    ----------
    rows, columns
        Output pixels of one image.
    channels
        Output channels of one group.
    steps
        4-byte steps of the reduction.
    core
        Whose registers it must fit.
    """
    best: tuple[float, Tile] | None = None
    for vectors in range(1, min(8, -(-channels // LANES)) + 1):
        most = core.most_pixels(vectors)
        for width in range(1, min(columns, most) + 1):
            for height in range(1, min(rows, most // width) + 1):
                tile = Tile(rows=height, columns=width, vectors=vectors)
                cycles = layer_cycles(tile, rows=rows, columns=columns, channels=channels, steps=steps, core=core)
                if best is None or cycles < best[0]:
                    best = (cycles, tile)
    assert best is not None, "an output has at least one pixel and one channel"
    return best[1]
