"""Oracles of the larger and the smaller of two quantized tensors of one scale and zero point. No TVM here."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.integer]


def larger(a: Integers, b: Integers, *, qmin: int, qmax: int) -> Integers:
    """Return the larger integer of each pair, clamped: order among integers of one scale is order among their real values.

    Parameters
    ----------
    a, b
        int8 or uint8, both the same; shapes that broadcast.
    qmin, qmax
        Clamp of the result.
    """
    return np.clip(np.maximum(a, b), qmin, qmax)


def smaller(a: Integers, b: Integers, *, qmin: int, qmax: int) -> Integers:
    """Return the smaller integer of each pair, clamped; parameters as `larger` takes them."""
    return np.clip(np.minimum(a, b), qmin, qmax)
