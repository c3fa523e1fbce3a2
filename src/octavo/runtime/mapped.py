"""Files as memory: large ones are mapped, so that their pages are read when they are used, and shared by all who map them.

What is mapped must stay as it is while it is in use: a file that is written anew under its name (as Octavo does) leaves the old
one to those who map it; one that is cut short in place takes memory away from them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO
from weakref import WeakSet, WeakValueDictionary

import numpy as np
import numpy.typing as npt
import tvm_ffi

from .memory import ALIGNMENT
from .tensors import empty_tensor, shares_dtype, tensor_from, values_of

MAPPED_BYTES = 64 << 20
"""Files of so many bytes are mapped; smaller ones are read, and may change as soon as that is done."""
SHARED_BYTES = 1 << 20
"""Arrays of so many bytes are shared by tensors; smaller ones are sooner copied, and may change."""
_from_dlpack: Any = tvm_ffi.from_dlpack  # TVM's own function of this name takes multiples of 64 alone
_MAPPINGS: WeakSet[mmap.mmap] = WeakSet()
_OTHERS: WeakValueDictionary[int, npt.NDArray[Any]] = WeakValueDictionary()
"""Arrays of memory that others made, by their addresses."""
_PAGES = Path("/proc/self/pagemap")
_PRESENT, _SWAPPED, _OF_FILE = (np.uint64(1 << bit) for bit in (63, 62, 61))
"""Of the system's 64 bits for each page: whether it is in memory, or swapped out, and whether it is one of a file."""


def contents(file: BinaryIO) -> bytes | mmap.mmap:
    """Return the bytes of an open file."""
    if os.fstat(file.fileno()).st_size < MAPPED_BYTES:
        return file.read()
    made = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # writable, which TVM's tensors are, though nobody writes
    _MAPPINGS.add(made)
    return made


def forget_pages() -> None:
    """Give back the memory into which pages of mapped files were read: what is used again is read again."""
    for each in list(_MAPPINGS):
        each.madvise(mmap.MADV_DONTNEED)
    for array in list(_OTHERS.values()):
        _forget_pages_of(array)


class Pages:
    """Counts what is read of files, and gives its pages back once they are many: to read them anew takes little from a cache."""

    def __init__(self) -> None:
        self._bytes = 0

    def read(self, count: int) -> None:
        """Count bytes that were read; several threads may."""
        self._bytes += count
        if self._bytes > MAPPED_BYTES:
            self._bytes = 0
            forget_pages()


def may_be_mapped(array: npt.NDArray[Any]) -> None:
    """Let `forget_pages` give back what of an array lies in a file that others mapped, and nobody wrote to."""
    if array.nbytes >= SHARED_BYTES and array.flags.c_contiguous:
        _OTHERS.setdefault(array.ctypes.data, array)  # another one there may go sooner


def _forget_pages_of(array: npt.NDArray[Any]) -> None:
    first = -(-array.ctypes.data // mmap.PAGESIZE)
    count = (array.ctypes.data + array.nbytes) // mmap.PAGESIZE - first
    advise = _madvise()
    if count <= 0 or advise is None:
        return
    with _PAGES.open("rb", buffering=0) as file:
        file.seek(first * _PRESENT.itemsize)
        pages = np.frombuffer(file.read(count * _PRESENT.itemsize), np.uint64)
    there = pages & _PRESENT != 0
    # A page that was written to is no longer the file's, and can't be read from there again.
    if pages.size == count and there.any() and not (pages & _SWAPPED).any() and (pages[there] & _OF_FILE != 0).all():
        advise(ctypes.c_void_p(first * mmap.PAGESIZE), ctypes.c_size_t(count * mmap.PAGESIZE), mmap.MADV_DONTNEED)


@cache
def _madvise() -> Any:
    """Return the system's own function, which takes any address; None where nothing says what a page is of."""
    return getattr(ctypes.CDLL(None), "madvise", None) if os.access(_PAGES, os.R_OK) else None


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

    def align(self, alignment: int) -> npt.NDArray[np.uint8]:
        """Return the bytes at an address that is a multiple: the file's own, or a copy where these lie elsewhere.

        The copy is kept in their place, and what the system read of the file to make it is given back.
        """
        if can_share(self._values, alignment):
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


def can_share(array: npt.NDArray[Any], alignment: int = ALIGNMENT) -> bool:
    """Whether a tensor may lie on an array's own memory."""
    dense = array.size > 0 and array.flags.c_contiguous
    return dense and array.ctypes.data % alignment == 0 and shares_dtype(array.dtype)


def shared_tensor(array: npt.NDArray[Any], *, runs: bool = False) -> Any:
    """Return a TVM tensor of an array's values, for nobody to write to: of a large one on its own memory where that can be.

    Parameters
    ----------
    runs
        Whether kernels may read it, which take no other addresses than multiples of 64. Where weights are packed first, what lies
        in a file at other multiples of its elements' size is shared as well.
    """
    if array.nbytes < SHARED_BYTES or not can_share(array, ALIGNMENT if runs else array.itemsize):
        return tensor_from(array)
    return _from_dlpack(array if array.flags.writeable else np.asarray(_Writable(array)), require_contiguous=True)


def runs_on(tensor: Any) -> bool:
    """Whether kernels can read a tensor where it lies."""
    return int(tensor.data_ptr()) % ALIGNMENT == 0


class _Writable:
    """An array's memory as DLPack takes it, which knows none that is read-only."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.array = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def shared_array(tensor: Any) -> npt.NDArray[Any]:
    """Return an array of a TVM tensor's values, for nobody to write to: of a large one on its own memory where that can be."""
    values = values_of(tensor)
    return values if values.nbytes >= SHARED_BYTES else values.copy()


def empty_array(size: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return a one-dimensional array that tensors can share; its values are arbitrary."""
    return np.from_dlpack(empty_tensor((size,), str(np.dtype(dtype))))
