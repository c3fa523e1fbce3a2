"""The C library's heap: it keeps the memory of arrays that went, beside what the next stage of the work takes anew."""

from __future__ import annotations

import ctypes
import gc
import sys
from functools import cache
from typing import Any

from .mapped import forget_pages

_WORTH = 2**25
"""Bytes: to look through the heap for them takes as long as to copy a few megabytes, and what is given back is cleared anew."""


def trim_heap(used: int) -> None:
    """Collect garbage, and give memory that nothing holds, or files hold too, back to the system, as far as it takes it.

    Where constants are bound, packed and copied, that is more than what remains of them.

    Parameters
    ----------
    used
        Bytes of what was worked on: of few little can be left.
    """
    if used < _WORTH:
        return
    forget_pages()
    gc.collect()  # programs and modules hold each other
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Any:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
