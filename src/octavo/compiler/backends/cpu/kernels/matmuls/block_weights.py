"""4-bit weights in blocks as the kernels read them: one stream of bytes, block by block of each tile of columns.

A tile is some vectors of 16 columns; a block of it has, in this order,

    words       [block / 8][vectors][16 columns]: a word of 4 bytes has 8 inputs of a column, those of the low halves of its bytes
                first, so that both halves are bytes of 4 neighbours
    scales      [vectors][16], float32 or float16
    zero points [vectors][16] uint8, where blocks have their own

Columns behind the last one are 0. The last tile has the vectors that are left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LANES = 16
WORD = 8
"""Weights of a word."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockLayout:
    """Where a block's parts lie, in bytes.

    Parameters
    ----------
    block
        Inputs of a block.
    has_half_scales
        Whether scales are float16.
    """

    block: int
    has_half_scales: bool
    has_zero_points: bool

    @property
    def scale_bytes(self) -> int:
        """Of a column."""
        return 2 if self.has_half_scales else 4

    def scales(self, vectors: int) -> int:
        """Return where the scales of a tile of so many vectors start."""
        return vectors * LANES * self.block // 2

    def zero_points(self, vectors: int) -> int:
        """Return where its zero points start."""
        return self.scales(vectors) + vectors * LANES * self.scale_bytes

    def size(self, vectors: int) -> int:
        """Return the bytes of a block."""
        return self.zero_points(vectors) + (vectors * LANES if self.has_zero_points else 0)


def packed_blocks(
    layout: BlockLayout,
    weight: npt.NDArray[np.uint8],
    scale: npt.NDArray[np.float32],
    zero_point: npt.NDArray[np.int32],
    vectors: int,
) -> npt.NDArray[np.uint8]:
    """Return weights [inputs, outputs], scales and zero points [blocks, outputs] in tiles of so many vectors."""
    outputs, tile = weight.shape[1], vectors * LANES
    full = outputs // tile * tile
    parts = [_tiles(layout, weight[:, :full], scale[:, :full], zero_point[:, :full], vectors)] if full else []
    if outputs > full:
        left = -(-(outputs - full) // LANES)
        wide = [_padded(each[:, full:], left * LANES) for each in (weight, scale, zero_point)]
        parts.append(_tiles(layout, wide[0], wide[1], wide[2], left))
    return np.concatenate([part.reshape(-1) for part in parts])


def _padded(values: npt.NDArray[np.generic], columns: int) -> npt.NDArray[np.generic]:
    return np.pad(values, ((0, 0), (0, columns - values.shape[1])))


def _tiles(
    layout: BlockLayout,
    weight: npt.NDArray[np.generic],
    scale: npt.NDArray[np.generic],
    zero_point: npt.NDArray[np.generic],
    vectors: int,
) -> npt.NDArray[np.uint8]:
    """Return [tiles, blocks, bytes] of whole tiles."""
    blocks, tile = len(scale), vectors * LANES
    halves = weight.astype(np.uint8).reshape(blocks, layout.block // WORD, 2, WORD // 2, -1, tile)
    words = (halves[:, :, 0] | (halves[:, :, 1] << 4)).transpose(3, 0, 1, 4, 2)  # tiles, blocks, words, columns, bytes
    tiles = words.shape[0]
    parts = [np.ascontiguousarray(words).reshape(tiles, blocks, -1)]
    of_scales = scale.astype("<f2" if layout.has_half_scales else "<f4")
    for values in (of_scales, *([zero_point.astype(np.uint8)] if layout.has_zero_points else [])):
        by_tile = np.ascontiguousarray(values.reshape(blocks, tiles, tile).transpose(1, 0, 2))
        parts.append(by_tile.view(np.uint8).reshape(tiles, blocks, -1))
    return np.concatenate(parts, axis=2)
