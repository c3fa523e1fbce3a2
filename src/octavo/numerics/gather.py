"""Oracles of moving values by an index for each axis, and the indices of nearest neighbours. No TVM here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def gather(x: npt.NDArray[Any], maps: Sequence[Sequence[int]], fill: npt.ArrayLike = 0) -> npt.NDArray[Any]:
    """Return y[i, j, ...] = x[maps[0][i], maps[1][j], ...]; an index of -1 gives `fill`.

    `fill` is one number, or an array along the last axis, which then is not padded.
    """
    indices = [np.asarray(each, np.int64) for each in maps]
    y = x[np.ix_(*(np.maximum(each, 0) for each in indices))].copy()
    fills = np.broadcast_to(np.asarray(fill, x.dtype), y.shape)
    for axis, each in enumerate(indices):
        padding = (slice(None),) * axis + (each < 0,)
        y[padding] = fills[padding]
    return y
