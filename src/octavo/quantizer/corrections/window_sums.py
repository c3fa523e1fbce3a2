"""What each weight of a layer is multiplied by in all, over samples and positions: exact sums of integers. Runs nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...ir.composites.weighted import Conv2dOp, Conv2dTransposeOp, MatmulOp

Integers = npt.NDArray[np.int64]
WeightedOps = Conv2dOp | Conv2dTransposeOp | MatmulOp


def mean_accumulators(op: WeightedOps, total: npt.NDArray[Any], samples: int) -> npt.NDArray[np.float64]:
    """Return the mean over samples and positions of what a layer sums up for each output channel, without its bias.

    A layer is linear up to there, so the mean of its sums is the sum of its means. All is exact but for the last division, so the
    result depends neither on the order of samples nor on the machine.

    Parameters
    ----------
    total
        The layer's input as kernels hold it, channels last, less its zero point, summed over the samples: int64.
    samples
        How many they are.

    Returns
    -------
    ndarray
        (output channels,), in units of the accumulator.
    """
    weight = op.weight.values.astype(np.int64) - op.weight.zero_point.astype(np.int64)
    if isinstance(op, MatmulOp):
        rows = total.reshape(-1, total.shape[-1])
        return rows.sum(axis=0) @ weight / (samples * rows.shape[0])
    total = total.sum(axis=0)  # of the batch
    sums, positions = _transposed_sums(op, total) if isinstance(op, Conv2dTransposeOp) else _window_sums(op, total)
    groups = op.groups
    by_group = sums.reshape(*sums.shape[:2], groups, -1).transpose(2, 0, 1, 3).reshape(groups, 1, -1)
    by_output = weight.reshape(*weight.shape[:3], groups, -1).transpose(3, 0, 1, 2, 4).reshape(groups, by_group.shape[2], -1)
    return (by_group @ by_output).reshape(-1) / (samples * op.x.shape[0] * positions)


def _window_sums(op: Conv2dOp, total: Integers) -> tuple[Integers, int]:
    """Return the sum of what lies under each tap, (kernel_h, kernel_w, channels), and how many outputs there are."""
    (kernel_h, kernel_w), (top, left, bottom, right) = op.weight.values.shape[:2], op.padding
    padded = _padded(total, top, left, bottom, right)
    steps = tuple(zip((kernel_h, kernel_w), op.strides, op.dilation, strict=True))
    rows, columns = (
        (size - (kernel - 1) * dilation - 1) // stride + 1
        for size, (kernel, stride, dilation) in zip(padded.shape, steps, strict=False)
    )
    sums = np.empty((kernel_h, kernel_w, total.shape[2]), np.int64)
    for tap_row in range(kernel_h):
        for tap in range(kernel_w):
            under = padded[
                _steps(tap_row * op.dilation[0], op.strides[0], rows), _steps(tap * op.dilation[1], op.strides[1], columns)
            ]
            sums[tap_row, tap] = under.sum(axis=(0, 1))
    return sums, rows * columns


def _transposed_sums(op: Conv2dTransposeOp, total: Integers) -> tuple[Integers, int]:
    """Return the same of a transposed convolution: of the inputs that a tap adds to some output."""
    (kernel_h, kernel_w) = op.weight.values.shape[:2]
    shape = op.y.shape
    rows, columns = (shape[2], shape[3]) if op.layout == "NCHW" else (shape[1], shape[2])
    sums = np.empty((kernel_h, kernel_w, total.shape[2]), np.int64)
    for tap_row in range(kernel_h):
        for tap in range(kernel_w):
            starts = (tap_row * op.dilation[0] - op.padding[0], tap * op.dilation[1] - op.padding[1])
            within = [
                (index * stride + start >= 0) & (index * stride + start < size)
                for index, stride, start, size in zip(
                    (np.arange(total.shape[0]), np.arange(total.shape[1])), op.strides, starts, (rows, columns), strict=True
                )
            ]
            sums[tap_row, tap] = total[within[0]][:, within[1]].sum(axis=(0, 1))
    return sums, rows * columns


def _padded(total: Integers, top: int, left: int, bottom: int, right: int) -> Integers:
    """Return the input with zeros around it; a negative padding crops."""
    height, width = total.shape[:2]
    cropped = total[max(-top, 0) : height - max(-bottom, 0), max(-left, 0) : width - max(-right, 0)]
    return np.pad(cropped, ((max(top, 0), max(bottom, 0)), (max(left, 0), max(right, 0)), (0, 0)))


def _steps(start: int, stride: int, count: int) -> slice:
    return slice(start, start + (count - 1) * stride + 1, stride)
