"""One block of memory for a large program's constants: what packs weights writes them to where they will lie.

Packed weights that lie by themselves would be in memory twice once the program has all its constants in one block.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import numpy.typing as npt

from ..runtime.huge_pages import empty_bytes
from ..runtime.mapped import MAPPED_BYTES, empty_array, forget_pages
from ..runtime.memory import align

_READ = 64 << 20
"""Bytes that are packed until what was read of mapped files for them is given back."""


class ConstantBlock:
    """Memory that arrays are taken of, one behind the other.

    Parameters
    ----------
    capacity
        Bytes of address space; memory becomes of them what is written to.
    """

    def __init__(self, capacity: int) -> None:
        self._memory: npt.NDArray[np.uint8] = np.from_dlpack(empty_bytes(capacity))
        self._given_back = 0
        self.size = 0

    def take(self, size: int) -> npt.NDArray[np.uint8] | None:
        """Return so many bytes, at a multiple of 64; None where there is no room for them."""
        start, end = self.size, self.size + align(size)
        if end > self._memory.size:
            return None
        self.size = end
        if end - self._given_back > _READ:
            self._given_back = end
            forget_pages()
        return self._memory[start : start + size]

    def offset_of(self, data: npt.NDArray[np.uint8]) -> int | None:
        """Return where bytes lie in the block; None of others."""
        offset = data.ctypes.data - self._memory.ctypes.data
        return offset if offset >= 0 and offset + data.size <= self.size else None

    def taken(self) -> npt.NDArray[np.uint8]:
        """Return all bytes that were taken."""
        return self._memory[: self.size]


_CURRENT: ContextVar[ConstantBlock | None] = ContextVar("constant_block", default=None)


@contextmanager
def constant_block(weights: int) -> Generator[None]:
    """Have a block for the constants of what is lowered and generated within, where so many bytes of weights are worth it."""
    # Weights may be packed more than once, for kernels of several shapes: address space costs nothing.
    token = _CURRENT.set(ConstantBlock(2 * weights) if weights >= MAPPED_BYTES else None)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_block() -> ConstantBlock | None:
    """Return the block that there is."""
    return _CURRENT.get()


def packed_array(size: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return a one-dimensional array for packed weights, in the block where there is one; its values are arbitrary."""
    block, dtype = _CURRENT.get(), np.dtype(dtype)
    data = None if block is None else block.take(size * dtype.itemsize)
    return empty_array(size, dtype) if data is None else data.view(dtype)
