"""Gram matrices of what layers read: how their inputs vary together, over samples and positions. Exact sums of integers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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


def covariances(op: Conv2dOp | MatmulOp, inputs: Sequence[npt.NDArray[Any]], some: slice = slice(None)) -> CovarianceSums:
    """Return how the inputs of each group of a layer vary together.

    Parameters
    ----------
    inputs
        The layer's inputs as kernels hold them, channels last, sample by sample.
    some
        Of the inputs of each group, in the order of the weights: those that are looked at.
    """
    every = _rows_of(op, inputs[0].shape, len(inputs))

    def rows_of(value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return every(value)[:, :, some]

    sums = CovarianceSums(rows_of(inputs[0]))
    with ThreadPoolExecutor(_THREADS) as pool:
        for start in range(0, len(inputs), _AT_ONCE):
            for sample in pool.map(lambda value: sums.of(rows_of(value)), inputs[start : start + _AT_ONCE]):
                sums.add(sample)
    return sums


def _rows_of(op: Conv2dOp | MatmulOp, shape: tuple[int, ...], samples: int) -> Callable[[npt.NDArray[Any]], npt.NDArray[Any]]:
    """Return what gives, of one of so many samples, what the weights of each group are multiplied by at some positions.

    That is (groups, positions, inputs), in the order of the weights: HWIO's of a convolution.
    """
    if isinstance(op, MatmulOp):
        inputs = shape[-1]
        places = _places(math.prod(shape[:-1]), inputs, samples)
        return lambda value: value.reshape(-1, inputs)[places][np.newaxis]
    pixels, is_outside = _window_pixels(op, shape, samples)
    zero_point, groups, channels = cast("Any", op.x).zero_point, op.groups, shape[3]

    def rows(value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        picked = np.take(value.reshape(-1, channels), pixels, axis=0)  # (positions, taps, channels)
        if is_outside is not None:
            picked[is_outside] = zero_point
        by_group = picked.reshape(*pixels.shape, groups, channels // groups).transpose(2, 0, 1, 3)
        return by_group.reshape(groups, pixels.shape[0], -1)

    return rows


def _window_pixels(
    op: Conv2dOp, shape: tuple[int, ...], samples: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]:
    """Return the pixels under each tap at some positions, (positions, taps), and which lie outside the image; None: none do."""
    kernel_h, kernel_w, inputs, _ = op.weight.values.shape
    batch, height, width, _ = shape
    top, left, bottom, right = op.padding
    out_h = (height + top + bottom - (kernel_h - 1) * op.dilation[0] - 1) // op.strides[0] + 1
    out_w = (width + left + right - (kernel_w - 1) * op.dilation[1] - 1) // op.strides[1] + 1
    image, row, column = np.unravel_index(
        _places(batch * out_h * out_w, kernel_h * kernel_w * inputs, samples), (batch, out_h, out_w)
    )
    rows = (row * op.strides[0] - top)[:, None, None] + (np.arange(kernel_h) * op.dilation[0])[:, None]
    columns = (column * op.strides[1] - left)[:, None, None] + np.arange(kernel_w) * op.dilation[1]
    is_outside = ((rows < 0) | (rows >= height) | (columns < 0) | (columns >= width)).reshape(len(image), -1)
    pixels = (image[:, None, None] * height + rows.clip(0, height - 1)) * width + columns.clip(0, width - 1)
    return pixels.reshape(len(image), -1), is_outside if is_outside.any() else None


def _places(positions: int, inputs: int, samples: int) -> npt.NDArray[np.int64]:
    """Return evenly spaced positions of one sample."""
    wanted = -(-max(ROWS_PER_INPUT * inputs, _MIN_ROWS) // samples)
    return np.arange(min(wanted, positions), dtype=np.int64) * positions // min(wanted, positions)
