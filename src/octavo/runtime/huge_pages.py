"""Memory for weights and intermediate tensors, in huge pages where the system grants them. Knows sizes alone.

The weights of a large network lie in more pages of 4 KiB than a core keeps the places of. Every call reads all of them, and must
look up the place of each page again, which takes longest in a virtual machine.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm

PAGE = 2 << 20
"""Bytes of a huge page, and of the smallest tensor that asks for some."""


def empty_bytes(size: int) -> Any:
    """Return a tvm tensor of uint8 (size,), aligned to a cache line; its values are arbitrary. MemoryError if there is none."""
    if size < PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return tvm.runtime.empty((max(size, 1),), "uint8")
    if size > machine_bytes():  # a system that grants more than it has ends the process later
        raise MemoryError(f"{size} bytes")
    try:
        memory = mmap.mmap(-1, size + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{size} bytes") from error
    with contextlib.suppress(OSError):  # it is advice: a kernel without huge pages has none to give
        memory.madvise(mmap.MADV_HUGEPAGE)
    full = np.frombuffer(memory, np.uint8)
    start = -full.ctypes.data % PAGE
    return tvm.runtime.from_dlpack(full[start : start + size])


def machine_bytes() -> int:
    """Return how much memory the machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def tensor_of(values: npt.NDArray[np.uint8]) -> Any:
    """Return a tvm tensor that holds a copy of one-dimensional values."""
    made = empty_bytes(values.size)
    np.from_dlpack(made)[: values.size] = values
    return made
