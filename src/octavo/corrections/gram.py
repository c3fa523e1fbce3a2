"""Gram matrices of what layers read: how their inputs vary together, over samples and positions. Exact sums of integers."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..composites.weighted import Conv2dOp, MatmulOp
from ..numerics.statistics.covariance import CovarianceSums

ROWS_PER_INPUT = 4
"""Positions that are looked at for each input of a layer: as many as tell how the inputs vary."""
_MIN_ROWS = 8192
_THREADS = 2
"""That look at samples: what they find are exact sums, the same in any order."""
_AT_ONCE = 8
"""Samples whose sums wait to be added: there may be a large matrix of each."""
MAX_INPUTS = 4608
"""Of a layer whose weights are rounded so: the work grows with the third power."""


def covariances(op: Conv2dOp | MatmulOp, inputs: Sequence[npt.NDArray[Any]]) -> CovarianceSums:
    """Return how the inputs of each group of a layer vary together.

    Parameters
    ----------
    inputs
        The layer's inputs as kernels hold them, channels last, sample by sample.
    """
    rows_of = partial(_rows, op, samples=len(inputs))
    sums = CovarianceSums(rows_of(inputs[0]))
    with ThreadPoolExecutor(_THREADS) as pool:
        for start in range(0, len(inputs), _AT_ONCE):
            for sample in pool.map(lambda value: sums.of(rows_of(value)), inputs[start : start + _AT_ONCE]):
                sums.add(sample)
    return sums


def _rows(op: Conv2dOp | MatmulOp, value: npt.NDArray[Any], samples: int) -> npt.NDArray[Any]:
    """Return what the weights of each group are multiplied by at some positions: (groups, positions, inputs)."""
    if isinstance(op, MatmulOp):
        rows = value.reshape(-1, value.shape[-1])
        return rows[_places(rows.shape[0], rows.shape[1], samples)][np.newaxis]
    kernel_h, kernel_w, inputs, _ = op.weight.values.shape
    top, left, bottom, right = op.padding
    crop = value[:, max(-top, 0) : value.shape[1] - max(-bottom, 0), max(-left, 0) : value.shape[2] - max(-right, 0)]
    around = ((0, 0), (max(top, 0), max(bottom, 0)), (max(left, 0), max(right, 0)), (0, 0))
    padded = np.pad(crop, around, constant_values=cast("Any", op.x).zero_point) if any(op.padding) else crop
    reach = ((kernel_h - 1) * op.dilation[0] + 1, (kernel_w - 1) * op.dilation[1] + 1)
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=(1, 2))
    windows = windows[:, :: op.strides[0], :: op.strides[1], :, :: op.dilation[0], :: op.dilation[1]]
    positions = windows.shape[0] * windows.shape[1] * windows.shape[2]
    at = np.unravel_index(_places(positions, kernel_h * kernel_w * inputs, samples), windows.shape[:3])
    # (positions, channels, rows, columns) -> (groups, positions, rows x columns x channels of a group), the order of HWIO.
    picked = windows[at].reshape(-1, op.groups, inputs, kernel_h * kernel_w)
    return picked.transpose(1, 0, 3, 2).reshape(op.groups, -1, kernel_h * kernel_w * inputs)


def _places(positions: int, inputs: int, samples: int) -> npt.NDArray[np.int64]:
    """Return evenly spaced positions of one sample."""
    wanted = -(-max(ROWS_PER_INPUT * inputs, _MIN_ROWS) // samples)
    return np.arange(min(wanted, positions), dtype=np.int64) * positions // min(wanted, positions)
