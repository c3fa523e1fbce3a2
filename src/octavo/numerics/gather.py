"""Oracles of moving values by an index for each axis, and the indices of nearest neighbours. No TVM here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def gather(x: npt.NDArray[Any], maps: Sequence[Sequence[int]], fill: int = 0) -> npt.NDArray[Any]:
    """Return y[i, j, ...] = x[maps[0][i], maps[1][j], ...]; an index of -1 gives `fill`."""
    indices = [np.asarray(each, np.int64) for each in maps]
    y = x[np.ix_(*(np.maximum(each, 0) for each in indices))].copy()
    for axis, each in enumerate(indices):
        y[(slice(None),) * axis + (each < 0,)] = fill
    return y
