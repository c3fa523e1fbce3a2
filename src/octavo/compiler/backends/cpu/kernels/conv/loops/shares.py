"""Which rows and panels each thread takes of a layer: shares that end together, and little read twice. Plain numbers, no TIR."""

from __future__ import annotations

from .......runtime.shapes import largest, smallest
from .......runtime.size import is_open

COPY_BYTES = 16
"""Bytes a cycle that a core takes from beyond its own caches, about."""

MEMORY_BYTES = 6
"""Bytes a cycle that a core takes from memory, about: weights of a network come from there."""


BLOCK_ROWS = 0.05
"""What starting a block costs, in rows."""


def chunk_bounds(count: int, chunks: int) -> list[tuple[int, int]]:
    """Return [first; last) of each chunk of range(count), as the kernels cut it."""
    return [(chunk * count // chunks, (chunk + 1) * count // chunks) for chunk in range(chunks)]


def longest_share(total: int, block: int, images: int, chunks: int) -> int:
    """Return the most rows that one of the chunks has, when each image of `total` rows is cut into blocks of `block`."""
    blocks = -(-total // block)
    sizes = [min(block, total - index * block) for index in range(blocks)] * images
    return max(sum(sizes[first:last]) for first, last in chunk_bounds(len(sizes), chunks))


def balanced_block(total: int, most: int, images: int, chunks: int) -> int:
    """Return the rows of a block, `most` at most, that give the shortest longest share in few blocks.

    Parameters
    ----------
    total
        Rows of one image.
    most
        Rows that one block may have.
    images
        Images, whose blocks follow each other.
    chunks
        Chunks that the blocks of all images are cut into.

    Where a number is open, each image has as many blocks as chunks, if it has the rows.
    """
    if is_open(total) or is_open(most) or is_open(images):
        count = largest((1, -(-total // most), smallest((chunks, total))))
        return -(-total // count)
    # Blocks of one size: the last is no shorter than it must be.
    sizes = dict.fromkeys(-(-total // blocks) for blocks in range(-(-total // min(most, total)), total + 1))
    return min(sizes, key=lambda block: longest_share(total, block, images, chunks) + BLOCK_ROWS * -(-total // block))
