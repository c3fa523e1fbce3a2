"""Weights of 2 to 4 bits in blocks as the kernels read them: one stream of bytes, block by block of each tile of columns.

A tile is some vectors of 16 columns; a block of it has, in this order,

    weights     [groups of inputs][vectors][words of a group][16 columns][4 bytes]: a byte of a word has some bits of every fourth
                input, the first in its lowest bits. A group of 4 bits is a word of 8 inputs, one of 2 bits a word of 16; one of 3
                bits has 32 inputs: two words of their low two bits, and one of their highest
    scales      [vectors][16], float32 or float16
    zero points [vectors][16] uint8, where blocks have their own

Columns behind the last one are 0. The last tile has the vectors that are left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LANES = 16
GROUP_INPUTS = {2: 16, 3: 32, 4: 8}
"""Inputs of a group, by bits."""
GROUP_WORDS = {2: 1, 3: 3, 4: 1}
"""Words of a group: vectors of 64 bytes for 16 columns."""
WORD_BYTES = 4 * LANES


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockLayout:
    """Where a block's parts lie, in bytes.

    Parameters
    ----------
    block
        Inputs of a block: groups of them.
    bits
        Of a weight: 2, 3 or 4.
    has_half_scales
        Whether scales are float16.
    """

    block: int
    bits: int
    has_half_scales: bool
    has_zero_points: bool

    @property
    def scale_bytes(self) -> int:
        """Of a column."""
        return 2 if self.has_half_scales else 4

    def scales(self, vectors: int) -> int:
        """Return where the scales of a tile of so many vectors start."""
        return vectors * LANES * self.block * self.bits // 8

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


def _words(fours: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """Return the words of groups [blocks, groups, fours of inputs, 4, ...] as [words, blocks, groups, 4, ...]."""

    def packed(values: npt.NDArray[np.uint8], width: int) -> npt.NDArray[np.uint8]:
        word = np.zeros_like(values[:, :, 0])
        for place in range(values.shape[2]):
            word |= values[:, :, place] << np.uint8(width * place)
        return word

    if bits != 3:
        return packed(fours, bits)[np.newaxis]
    low = fours & np.uint8(3)
    return np.stack([packed(low[:, :, :4], 2), packed(low[:, :, 4:], 2), packed(fours >> np.uint8(2), 1)])


def stored_bits(
    weight: npt.NDArray[np.uint8], zero_point: npt.NDArray[np.int32], block: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32], int]:
    """Return weights and zero points in [0; 15] moved down to where fewest bits hold them, and these."""
    low = min(int(weight.min()), int(zero_point.min()))
    span = int(weight.max()) - low
    bits = next((each for each in (2, 3) if span < 1 << each and block % GROUP_INPUTS[each] == 0), 4)
    if bits == 4:
        return weight, zero_point, bits
    return (weight - low).astype(np.uint8), (zero_point - low).astype(np.int32), bits


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
    inputs = GROUP_INPUTS[layout.bits]
    shape = blocks, layout.block // inputs, inputs // 4, 4, -1, vectors, LANES
    words = _words(weight.astype(np.uint8).reshape(shape), layout.bits)  # words, blocks, groups, bytes, tiles, vectors, columns
    tiles = words.shape[4]
    parts = [np.ascontiguousarray(words.transpose(4, 1, 2, 5, 0, 6, 3)).reshape(tiles, blocks, -1)]
    of_scales = scale.astype("<f2" if layout.has_half_scales else "<f4")
    for values in (of_scales, *([zero_point.astype(np.uint8)] if layout.has_zero_points else [])):
        by_tile = np.ascontiguousarray(values.reshape(blocks, tiles, tile).transpose(1, 0, 2))
        parts.append(by_tile.view(np.uint8).reshape(tiles, blocks, -1))
    return np.concatenate(parts, axis=2)
