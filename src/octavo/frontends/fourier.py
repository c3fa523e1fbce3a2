"""Fourier transforms as products with constant matrices, for every source format. Knows no file format."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from ..ir.untyped import ops
from .frontend import RejectedOpError
from .relax_ops import dtype_of, shape_of

_MAX_POINTS = 1 << 13
"""Of a transform as a product: its matrices hold this number squared."""


def waves(points: int, bins: int, dtype: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return cosines and sines [points, bins] of the transform."""
    if points > _MAX_POINTS:
        raise RejectedOpError(f"a transform of {points} points; {_MAX_POINTS} at most are computed")
    turns = np.outer(np.arange(points), np.arange(bins)) % points * (2 * math.pi / points)
    return np.cos(turns).astype(dtype), np.sin(turns).astype(dtype)


def transformed(
    emit: Callable[[Any], Any], real: Any, imaginary: Any | None, bins: int, *, inverse: bool = False, factor: float = 1.0
) -> tuple[Any, Any]:
    """Return real and imaginary parts of the transform of rows, which lie along the last axis.

    A row x gives `factor` times the sums of x[n] * exp(-2 pi i k n / N), the inverse one those of exp(+...).
    """
    dtype = dtype_of(real)
    cosines, sines = (np.asarray(factor, dtype) * each for each in waves(shape_of(real)[-1], bins, dtype))
    sines = -sines if inverse else sines

    def product(x: Any, matrix: npt.NDArray[Any]) -> Any:
        return emit(ops.matmul(x, relax.const(np.ascontiguousarray(matrix))))

    parts = product(real, cosines), product(real, -sines)
    if imaginary is None:
        return parts
    return emit(ops.add(parts[0], product(imaginary, sines))), emit(ops.add(parts[1], product(imaginary, cosines)))
