"""Files as memory: large ones are mapped, so that their pages are read when they are used, and shared by all who map them.

What is mapped must stay as it is while it is in use: a file that is written anew under its name (as Octavo does) leaves the old
one to those who map it; one that is cut short in place takes memory away from them.
"""

from __future__ import annotations

import mmap
import os
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import tvm

from .memory import ALIGNMENT
from .tensors import shares_dtype, tensor_from

MAPPED_BYTES = 64 << 20
"""Files of so many bytes are mapped; smaller ones are read, and may change as soon as that is done."""


def contents(file: BinaryIO) -> bytes | mmap.mmap:
    """Return the bytes of an open file."""
    if os.fstat(file.fileno()).st_size < MAPPED_BYTES:
        return file.read()
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # writable, which TVM's tensors are, though nobody writes


class MappedBytes:
    """Some bytes of a file's contents, or of any buffer.

    Parameters
    ----------
    buffer
        What `contents` returned.
    offset, length
        Which of its bytes.
    """

    def __init__(self, buffer: Any, offset: int, length: int) -> None:
        self._buffer, self._offset = buffer, offset
        self._values: npt.NDArray[np.uint8] = np.frombuffer(buffer, np.uint8, length, offset)

    @property
    def values(self) -> npt.NDArray[np.uint8]:
        """The bytes, to be read."""
        return self._values

    def align(self) -> npt.NDArray[np.uint8]:
        """Return the bytes at an address that kernels take: the file's own, or a copy where these lie elsewhere.

        The copy is kept in their place, and what the system read of the file to make it is given back.
        """
        if can_share(self._values):
            return self._values
        copied: npt.NDArray[Any] = np.from_dlpack(tensor_from(self._values))
        self._values = copied
        buffer, self._buffer = self._buffer, None
        if isinstance(buffer, mmap.mmap):
            first = -(-self._offset // mmap.PAGESIZE) * mmap.PAGESIZE
            last = (self._offset + copied.size) // mmap.PAGESIZE * mmap.PAGESIZE
            if last > first:
                buffer.madvise(mmap.MADV_DONTNEED, first, last - first)
        return copied


def can_share(array: npt.NDArray[Any]) -> bool:
    """Whether a tensor may lie on an array's own memory."""
    dense = array.size > 0 and array.flags.c_contiguous and array.flags.writeable
    return dense and array.ctypes.data % ALIGNMENT == 0 and shares_dtype(array.dtype)


def shared_tensor(array: npt.NDArray[Any]) -> Any:
    """Return a TVM tensor of an array's values: on its own memory where that can be, so nobody may write to either."""
    return tvm.runtime.from_dlpack(array) if can_share(array) else tensor_from(array)
