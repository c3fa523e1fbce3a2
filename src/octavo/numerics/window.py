"""How a convolution or a pooling moves over the rows and columns of an image. No TVM here, and no arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Which pixels of an NHWC image each pixel of the result reads; the kernel's size is the weights', or a pooling's own.

    Parameters
    ----------
    strides, dilation
        Of rows and columns.
    padding
        (top, left, bottom, right).
    """

    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)

    def pad(self, x: npt.NDArray[Any], value: float = 0) -> npt.NDArray[Any]:
        """Return NHWC `x` with rows and columns of `value` around it."""
        top, left, bottom, right = self.padding
        return np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=value)

    def out_shape(self, padded: npt.NDArray[Any], kernel: tuple[int, ...]) -> tuple[int, int]:
        """Return (rows, columns) of the result for a padded image: windows that reach beyond it are left out."""
        rows, columns = (
            (size - dilation * (taps - 1) - 1) // stride + 1
            for size, taps, stride, dilation in zip(padded.shape[1:3], kernel, self.strides, self.dilation, strict=True)
        )
        return rows, columns

    def tap(self, padded: npt.NDArray[Any], i: int, j: int, out_shape: tuple[int, int]) -> npt.NDArray[Any]:
        """Return what tap (i, j) of the kernel reads for each pixel of the result: (batch, *out_shape, channels), a view."""
        rows, columns = (
            slice(at * dilation, at * dilation + (count - 1) * stride + 1, stride)
            for at, dilation, stride, count in zip((i, j), self.dilation, self.strides, out_shape, strict=True)
        )
        return padded[:, rows, columns]


UNIT_WINDOW = Window()
"""Strides and dilation of 1, no padding."""
