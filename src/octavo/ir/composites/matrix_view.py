"""How a batch of matrices lies in memory: a tensor and a permutation of its axes, as strides. Knows no element type.

Attention splits features among heads and moves the heads to the front; a kernel that reads and writes through strides does
without the copies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class MatrixView:
    """Matrices [..., rows, columns] within a dense tensor.

    Parameters
    ----------
    shape
        Of the view: batch axes, rows, columns.
    axes
        Axis of the tensor in memory that each axis of the view is; (0, 1, 2 ...) for a tensor as it lies.
    room
        How much the tensor could hold along each axis of the view, where that is more than it does; () where it is dense.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    room: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the axes."""
        assert len(self.shape) >= 2, "a matrix has rows and columns"
        assert sorted(self.axes) == list(range(len(self.shape))), f"{self.axes} permutes no {len(self.shape)} axes"

    @staticmethod
    def plain(shape: tuple[int, ...]) -> MatrixView:
        """Return the view of a tensor as it lies."""
        return MatrixView(shape=shape, axes=tuple(range(len(shape))))

    @property
    def size(self) -> int:
        """Elements of the tensor's memory."""
        return math.prod(self.room or self.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """Distance in memory of neighbours along each axis of the view, in elements."""
        in_memory = [0] * len(self.shape)
        for axis, extent in zip(self.axes, self.room or self.shape, strict=True):
            in_memory[axis] = extent
        return tuple(math.prod(in_memory[axis + 1 :]) for axis in self.axes)
