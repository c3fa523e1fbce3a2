"""Deformable convolutions, in plain Relax ops: what is sampled is gathered, and the rest is one product. Knows no file format.

The definition is that of Dai and others, Deformable Convolutional Networks (2017), with factors for samples as in the second
version (2019).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax
from tvm.ir import GenericConst as Constant

from ..ir.untyped import ops
from ..runtime.tensors import array_of
from .frontend import RejectedOpError
from .relax_ops import is_static, shape_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Deformed:
    """A deformable convolution of images.

    Parameters
    ----------
    emit
        Binds an expression to a variable.
    strides, dilations, pads
        By height and width; pads ahead of them.
    groups, offset_groups
        Into how many parts channels fall for the product, and for what is sampled.
    """

    emit: Callable[[Any], Any]
    strides: Sequence[int]
    dilations: Sequence[int]
    pads: Sequence[int]
    groups: int
    offset_groups: int

    def convolve(self, x: Any, weight: Any, offset: Any, mask: Any = None) -> Any:
        """Return (N, outputs, rows, columns), without a bias.

        Parameters
        ----------
        x, weight
            (N, C, H, W) and (outputs, C / groups, kernel's rows, kernel's columns).
        offset
            (N, offset_groups * taps * 2, rows, columns): by how many pixels down, then right, each tap is moved.
        mask
            (N, offset_groups * taps, rows, columns): factors of what taps read; None for ones.
        """
        shapes = [shape_of(value) for value in (x, weight, offset)]
        if not all(map(is_static, shapes)):
            raise RejectedOpError("it samples images of fixed sizes alone; give the model its batch, height and width")
        (batch, channels, height, width), (outputs, _, *kernel), (*_, rows, columns) = shapes
        taps, places = int(np.prod(kernel)), rows * columns
        moved = self.emit(ops.reshape(offset, [batch, self.offset_groups, taps, 2, places]))
        down, right = (self._places(moved, axis, kernel, (rows, columns)) for axis in range(2))
        image = self.emit(ops.reshape(x, [batch, self.offset_groups, channels // self.offset_groups, height * width]))
        read = self._sampled(image, down, right, (height, width))
        if mask is not None:
            factors = self.emit(ops.reshape(mask, [batch, self.offset_groups, 1, taps * places]))
            read = self.emit(ops.multiply(read, factors))
        depth = channels // self.groups * taps
        # Places are rows and the weights stand on the right, as in a dense layer: integer products are found so.
        inner = [] if self.groups == 1 else [self.groups]
        parts = self._turned(self.emit(ops.reshape(read, [batch, *inner, depth, places])))
        product = self._turned(self.emit(ops.matmul(parts, self._matrices(weight, [*inner, outputs // self.groups, depth]))))
        return self.emit(ops.reshape(product, [batch, outputs, rows, columns]))

    def _turned(self, matrices: Any) -> Any:
        rank = len(shape_of(matrices))
        return self.emit(ops.permute_dims(matrices, [*range(rank - 2), rank - 1, rank - 2]))

    def _matrices(self, weight: Any, shape: Sequence[int]) -> Any:
        if isinstance(weight, Constant):
            return relax.const(np.ascontiguousarray(np.swapaxes(array_of(weight.value).reshape(shape), -1, -2)))
        return self._turned(self.emit(ops.reshape(weight, list(shape))))

    def _places(self, moved: Any, axis: int, kernel: Sequence[int], sizes: Sequence[int]) -> Any:
        """Return at which row, or column, each tap reads: (N, offset_groups, 1, taps * places)."""
        batch, groups, taps, _, places = shape_of(moved)
        steps: list[npt.NDArray[np.float32]] = [np.arange(count, dtype=np.float32) for count in (*kernel, *sizes)]
        own = [steps[axis] * self.dilations[axis], steps[2 + axis] * self.strides[axis] - self.pads[axis]]
        grid = np.meshgrid(*(own[0] if at == axis else each * 0 for at, each in enumerate(steps[:2])), indexing="ij")[axis]
        along = own[1][:, None] if axis == 0 else own[1][None, :]
        base = grid.reshape(-1, 1, 1) + np.broadcast_to(along, tuple(sizes))
        part = self.emit(ops.strided_slice(moved, axes=[3], begin=[axis], end=[axis + 1]))
        flat = self.emit(ops.reshape(part, [batch, groups, 1, taps * places]))
        return self.emit(ops.add(flat, relax.const(np.ascontiguousarray(base, np.float32).reshape(-1))))

    def _sampled(self, image: Any, down: Any, right: Any, sizes: Sequence[int]) -> Any:
        """Return what lies there, linear between pixels, zero beyond the image."""
        shape = [*shape_of(image)[:3], shape_of(down)[3]]
        corners = [(self.emit(ops.floor(at)), at) for at in (down, right)]
        ends = [self._two_pixels(low, at, size) for (low, at), size in zip(corners, sizes, strict=True)]
        total: Any = None
        for row, of_row in ends[0]:
            for column, of_column in ends[1]:
                place = self.emit(ops.add(self.emit(ops.multiply(row, relax.const(sizes[1], "int64"))), column))
                value = self.emit(ops.gather_elements(image, self.emit(ops.broadcast_to(place, shape)), 3))
                share = self.emit(ops.multiply(value, self.emit(ops.multiply(of_row, of_column))))
                total = share if total is None else self.emit(ops.add(total, share))
        return total

    def _two_pixels(self, low: Any, at: Any, size: int) -> list[tuple[Any, Any]]:
        """Return the pixels beside a place along one axis, within the image, each with its share: 0 beyond it."""
        found: list[tuple[Any, Any]] = []
        behind = self.emit(ops.subtract(at, low))
        for pixel, share in (
            (low, self.emit(ops.subtract(relax.const(1.0, "float32"), behind))),
            (self.emit(ops.add(low, relax.const(1.0, "float32"))), behind),
        ):
            clipped = self.emit(ops.clip(pixel, 0, size - 1))
            is_there = self.emit(ops.equal(clipped, pixel))
            part = self.emit(ops.where(is_there, share, relax.const(0.0, "float32")))
            found.append((self.emit(ops.astype(clipped, "int64")), part))
        return found
