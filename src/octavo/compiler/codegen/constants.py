"""The constants of a program in one block of memory. Knows arrays, no IR."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...runtime.huge_pages import empty_bytes
from ...runtime.memory import align
from ..constant_block import ConstantBlock, current_block

_COMPARED = 1024
"""How many of an array's first and last bytes are compared before all are."""
_UNUSED_SHARE = 1 / 16
"""Of a block's bytes: with more of them that are no constants these are copied to one without."""


class Constants:
    """Arrays of bytes, those of the same bytes once."""

    def __init__(self) -> None:
        self._arrays: list[npt.NDArray[np.uint8]] = []
        self._alike: dict[tuple[int, bytes], list[int]] = {}

    def add(self, array: npt.NDArray[Any]) -> int:
        """Return the number of an array's bytes; they are added where no other has the same."""
        data = array.reshape(-1).view(np.uint8)
        alike = self._alike.setdefault((data.size, data[:_COMPARED].tobytes() + data[-_COMPARED:].tobytes()), [])
        for number in alike:
            other = self._arrays[number]
            if other.ctypes.data == data.ctypes.data or np.array_equal(other, data):
                return number
        alike.append(len(self._arrays))
        self._arrays.append(data)
        return len(self._arrays) - 1

    def placed(self) -> PlacedConstants:
        """Return all of them, each at a multiple of 64 bytes."""
        block = current_block()
        found = None if block is None else self._in_block(block)
        return found or self._one_by_one()

    def _in_block(self, block: ConstantBlock) -> PlacedConstants | None:
        """Return them in the block that some were packed into, and the others behind these; None where that can't be."""
        offsets = [block.offset_of(data) for data in self._arrays]
        used = sum(align(data.size) for data, offset in zip(self._arrays, offsets, strict=True) if offset is not None)
        if block.size - used > _UNUSED_SHARE * block.size:
            return None
        for number, data in enumerate(self._arrays):
            if offsets[number] is None:
                taken = block.take(data.size)
                if taken is None:
                    return None
                taken[:] = data
                offsets[number] = block.offset_of(taken)
        return PlacedConstants([offset for offset in offsets if offset is not None], block.taken()) if block.size else None

    def _one_by_one(self) -> PlacedConstants:
        offsets, size = list[int](), 0
        for data in self._arrays:
            offsets.append(size)
            size += align(data.size)
        blob: npt.NDArray[Any] = np.from_dlpack(empty_bytes(max(size, 1)))
        end = 0
        for data, offset in zip(self._arrays, offsets, strict=True):
            blob[end:offset] = 0
            end = offset + data.size
            blob[offset:end] = data
        blob[end:] = 0
        return PlacedConstants(offsets, blob)


class PlacedConstants:
    """Where constants lie, by their numbers, and the bytes of all in memory from which they can be used."""

    def __init__(self, offsets: list[int], blob: npt.NDArray[np.uint8]) -> None:
        self.offsets, self.blob = offsets, blob
