"""Oracle of products with weights that have a scale for each block of inputs. No TVM here."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def block_matmul(
    x: npt.NDArray[Any],
    weight: npt.NDArray[np.integer],
    scale: npt.NDArray[np.float32],
    zero_point: npt.NDArray[np.int32],
) -> npt.NDArray[np.float64]:
    """Return the sum over blocks of x @ (weight - zero_point) * scale.

    Parameters
    ----------
    x
        (rows, inputs): reals, or integers less their zero points.
    weight
        (inputs, outputs).
    scale, zero_point
        (blocks, outputs).

    Returns
    -------
    array
        float64 (rows, outputs). Kernels add in float32: what they are off by is bounded by that of a sum of so many.
    """
    size = len(weight) // len(scale)
    real = (weight - np.repeat(zero_point, size, axis=0)).astype(np.float64) * np.repeat(scale, size, axis=0)
    return x.astype(np.float64) @ real
