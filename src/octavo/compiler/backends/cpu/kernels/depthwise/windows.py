"""How a depthwise convolution reads its windows: which columns are interleaved, and how its weights are packed to meet them.

Plain numbers and arrays; `depthwise` emits the loops.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..conv.loops.packing import Int8Array
from ..language.lane_order import channel_order

Pattern = tuple[int | None, ...]
"""The kernel column that each of four input columns meets for one output; None where it meets none (weight 0)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """How `outputs` neighbouring pixels read one row of the input.

    Parameters
    ----------
    outputs
        Neighbouring output pixels.
    columns
        Input columns they read, relative to the first one, in fours.
    uses
        For each four columns, the outputs that they touch and the pattern of kernel columns for each.
    """

    outputs: int
    columns: tuple[tuple[int, ...], ...]
    uses: tuple[tuple[tuple[int, Pattern], ...], ...]

    @staticmethod
    def of(outputs: int, kernel: int, stride: int, dilation: int) -> Window:
        """Lay out `outputs` pixels of a row: every column that some output reads, in fours from the left."""
        needed = sorted({pixel * stride + tap * dilation for pixel in range(outputs) for tap in range(kernel)})
        columns = tuple(tuple(needed[i : i + 4]) for i in range(0, len(needed), 4))
        uses: list[tuple[tuple[int, Pattern], ...]] = []
        for four in columns:
            touched: list[tuple[int, Pattern]] = []
            for pixel in range(outputs):
                taps = [divmod(column - pixel * stride, dilation) for column in four]
                pattern = tuple(tap if rest == 0 and 0 <= tap < kernel else None for tap, rest in taps)
                if any(tap is not None for tap in pattern):
                    touched.append((pixel, pattern + (None,) * (4 - len(pattern))))
            uses.append(tuple(touched))
        return Window(outputs=outputs, columns=columns, uses=tuple(uses))

    @property
    def is_shared(self) -> bool:
        """Whether every four columns touch all outputs, so that one sum over the window corrects them all."""
        return all(len(use) == self.outputs for use in self.uses)

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """Every different pattern, in order of first use: the weights of a kernel row are packed in this order."""
        return tuple(dict.fromkeys(pattern for use in self.uses for _, pattern in use))

    def cycles(self, kernel_rows: int, new_rows: int, width: int, *, is_shifted: bool) -> float:
        """Estimate the cycles of one output row of `width` pixels and 64 channels, of whose input rows `new_rows` are still to be
        interleaved: shuffles and products run side by side."""
        shuffles = 8 * len(self.columns) * new_rows
        products = 4 * (sum(len(use) for use in self.uses) + is_shifted * len(self.columns)) * kernel_rows
        narrow = 20 * self.outputs
        tile = max(shuffles, products, (shuffles + products + narrow) / 2)
        return -(-width // self.outputs) * tile


def channel_blocks(channels: int, widest: int = 64) -> list[tuple[int, int]]:
    """Return (first channel, width) of blocks that cover `channels` >= 16: of `widest`, half of it, ... 16; the last may overlap
    its neighbour."""
    blocks: list[tuple[int, int]] = []
    start = 0
    for width in (width for width in (64, 32, 16) if width <= widest):
        while channels - start >= width:
            blocks.append((start, width))
            start += width
    if start < channels:
        blocks.append((channels - 16, 16))
    return blocks


def shifts_into_int8(centered: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return what to add to the weights of each channel, the last axis, so that all of them fit int8: 0 where they do.

    The least that will do. It fits int8 itself, for the zero point would do, too.
    """
    return np.clip(0, *_fitting_shifts(centered))


def shift_into_int8(centered: npt.NDArray[np.int64]) -> int | None:
    """Return what to add to the weights of all channels, so that all of them fit int8; None where each needs its own."""
    least, most = _fitting_shifts(centered)
    return int(np.clip(0, least.max(), most.min())) if least.max() <= most.min() else None


def _fitting_shifts(centered: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the least and the largest shift of each channel that its weights, and slots without one, allow."""
    axes = tuple(range(centered.ndim - 1))
    return -128 - centered.min(axis=axes, initial=0), 127 - centered.max(axis=axes, initial=0)


def pack_block(
    values: Int8Array, shifts: npt.NDArray[np.int64], patterns: tuple[Pattern, ...], start: int, width: int
) -> Int8Array:
    """Return one block's weights in the order kernel row, pattern, accumulator, lane, tap; one-dimensional.

    `values` are int8 (kernel_h, kernel_w, channels), shifted; a slot that meets no tap holds the shift alone.
    """
    order = start + channel_order(4, width // 4)
    packed = np.zeros((values.shape[0], len(patterns), 4, width // 4, 4), np.int8)
    for index, pattern in enumerate(patterns):
        for position, tap in enumerate(pattern):
            packed[:, index, :, :, position] = shifts[order] if tap is None else values[:, tap, order]
    return packed.ravel()
