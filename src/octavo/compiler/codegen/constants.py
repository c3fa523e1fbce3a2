"""The constants of a program in one block of memory. Knows arrays, no IR."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...runtime.huge_pages import empty_bytes
from ...runtime.memory import align

_COMPARED = 1024
"""How many of an array's first and last bytes are compared before all are."""


class Constants:
    """Where constants lie: each at a multiple of 64 bytes, and once those of the same bytes."""

    def __init__(self) -> None:
        self.size = 0
        self._placed: list[tuple[npt.NDArray[np.uint8], int]] = []
        self._alike: dict[tuple[int, bytes], list[int]] = {}

    def place(self, array: npt.NDArray[Any]) -> int:
        """Return where an array's bytes lie; they are added where no other has the same."""
        data = array.reshape(-1).view(np.uint8)
        alike = self._alike.setdefault((data.size, data[:_COMPARED].tobytes() + data[-_COMPARED:].tobytes()), [])
        for number in alike:
            other, offset = self._placed[number]
            if other.ctypes.data == data.ctypes.data or np.array_equal(other, data):
                return offset
        alike.append(len(self._placed))
        self._placed.append((data, self.size))
        self.size += align(data.size)
        return self._placed[-1][1]

    def blob(self) -> npt.NDArray[np.uint8]:
        """Return the bytes of all, in memory from which they can be used."""
        blob: npt.NDArray[Any] = np.from_dlpack(empty_bytes(max(self.size, 1)))
        end = 0
        for data, offset in self._placed:
            blob[end:offset] = 0
            end = offset + data.size
            blob[offset:end] = data
        blob[end:] = 0
        return blob
