"""Two threads for work on samples, which changes no result: what each finds stands alone, and is put together in order."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import TypeVar

GivenT = TypeVar("GivenT")
FoundT = TypeVar("FoundT")

THREADS = 2
_LEAST = 2**15
"""Numbers of an array: what computes with fewer at a time waits for Python's lock longer than a second thread saves."""


def in_order(find: Callable[[GivenT], FoundT], given: Sequence[GivenT], *, numbers: float = math.inf) -> list[FoundT]:
    """Return what is found of each, several at once; what finds it must not ask for threads itself.

    Parameters
    ----------
    numbers
        Of an array that it computes with, on average: with few, nothing runs at once.
    """
    return [*map(find, given)] if len(given) < THREADS or numbers < _LEAST else [*_pool().map(find, given)]


def parts_of(count: int) -> list[slice]:
    """Return slices of so many, one for each thread, but none that are empty."""
    ends = [count * part // THREADS for part in range(THREADS + 1)]
    return [slice(start, end) for start, end in pairwise(ends) if end > start]


@cache
def _pool() -> ThreadPoolExecutor:
    """Return the threads: to start some for each layer takes longer than many layers take them."""
    return ThreadPoolExecutor(THREADS, thread_name_prefix="octavo-samples")


if hasattr(os, "register_at_fork"):  # a child process has no thread of its parent's
    os.register_at_fork(after_in_child=_pool.cache_clear)
