"""How many threads NumPy's products take while a model is quantized. Octavo's own threads are another matter."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController


def one_blas_thread() -> AbstractContextManager[Any]:
    """Let BLAS use one thread meanwhile: it rounds sums by their number."""
    return _controller().limit(limits=1, user_api="blas")


@cache
def _controller() -> ThreadpoolController:
    """Return what controls the libraries that NumPy loaded: to look through all of a process, with its kernels, takes 2 ms."""
    return ThreadpoolController()
