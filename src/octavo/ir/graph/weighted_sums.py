"""Products with constant weights in a float model: how each moves over what it reads, what it gives on average. Runs nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from ...numerics.window import UNIT_WINDOW, Window
from ...runtime.size import is_open, names_in
from ..identity import TensorId
from .constants import Constant, Constants
from .dataflow import DataflowView, call_to, static_shape
from .model import Model
from .weighted import TRANSPOSED, Weighted, weighted_ops

Floats = npt.NDArray[np.float64]


OPEN_ROWS = 64
"""Rows that a sample of any size counts for."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Product:
    """A convolution, a transposed one or a product of matrices.

    Parameters
    ----------
    name, read
        Variables of its result, and of what it reads.
    axis
        Of the channels in that.
    constant
        Its weights, as it reads them.
    order
        Of their axes, as HWIO; empty of a product of matrices, [in, out].
    window
        How it moves; of a transposed convolution, how that is moved over its results.
    sizes
        Batch, rows and columns of a convolution's result.
    has_open_rows
        Whether a product of matrices has as many rows as the sample has, which may differ from sample to sample.
    """

    name: str
    read: str
    axis: int
    constant: Constant
    order: tuple[int, ...] = ()
    window: Window = UNIT_WINDOW
    groups: int = 1
    is_transposed: bool = False
    sizes: tuple[int, ...] = ()
    has_open_rows: bool = False

    @property
    def weight(self) -> TensorId:
        """Parameter that has its weights."""
        return self.constant.name

    @property
    def is_matmul(self) -> bool:
        """Whether it is a product of matrices."""
        return not self.order

    @property
    def shape(self) -> tuple[int, ...]:
        """Of its weights: HWIO with the inputs of one group, or [in, out]."""
        if self.is_matmul:
            return self.constant.shape
        height, width, inputs, outputs = (self.constant.shape[axis] for axis in self.order)
        groups = self.groups if self.is_transposed else 1  # whose weights are of all inputs, and of the outputs of one group
        return height, width, inputs // groups, groups * outputs

    @property
    def outputs(self) -> int:
        """How many channels its result has."""
        return self.shape[-1]

    @property
    def inputs(self) -> int:
        """How many products each number of the result is a sum of."""
        return math.prod(self.shape[:-1])

    def weights_of(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return its weights, in its `shape`, out of what a parameter holds: not to be written to."""
        found = self.constant.as_read(values)
        if self.is_matmul:
            return np.asarray(found, order="C")
        found = found.transpose(self.order)
        if self.is_transposed:
            height, width, inputs, outputs = self.shape
            by_group = found.reshape(height, width, self.groups, inputs, outputs // self.groups)
            found = by_group.transpose(0, 1, 3, 2, 4).reshape(self.shape)
        return found.copy(order="K")  # as the parameter lies: by that NumPy adds products up

    def in_parameter(self, weights: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Return its weights as a parameter of a shape holds them: what `weights_of` takes them out of."""
        if self.is_matmul and not self.constant.moves:
            return np.asarray(weights, order="C").reshape(shape)
        places = self.weights_of(np.arange(math.prod(shape), dtype=np.int64).reshape(shape))
        found = np.empty(math.prod(shape), weights.dtype)
        found[places.reshape(-1)] = weights.reshape(-1)
        return found.reshape(shape)

    def channels_last(self, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return what it reads; of open sizes as many rows for every sample, evenly spaced: some twice where it has fewer."""
        moved = np.moveaxis(value, self.axis, -1)
        if not self.has_open_rows:
            return moved
        rows = moved.reshape(-1, moved.shape[-1])
        return rows[np.linspace(0, len(rows) - 1, OPEN_ROWS).round().astype(np.intp)]

    def positions(self, shape: tuple[int, ...]) -> int:
        """Return at how many positions it sums up, of what it reads channels last."""
        return math.prod(shape[:-1] if self.is_matmul else self.sizes)

    def sum_of(self, value: npt.NDArray[np.float32]) -> npt.NDArray[np.floating[Any]]:
        """Return what `mean` asks of what it reads of a sample, channels last: of matrices the sum over rows, (channels,)."""
        return value.reshape(-1, value.shape[-1]).sum(axis=0, dtype=np.float64) if self.is_matmul else value

    def mean(self, total: Floats, positions: int, weights: Floats) -> Floats:
        """Return the mean of its result over so many positions of all samples, (outputs,).

        It is linear, so the mean of its sums is the sum of its means: `total` is what it reads, channels last, summed over the
        samples, and of matrices over rows, too, if one likes. Weights are in its `shape`.
        """
        if self.is_matmul:
            return total.reshape(-1, total.shape[-1]).sum(axis=0) @ weights / positions
        image = total.sum(axis=0)
        by_row = [image[self._read_by(0, tap, image.shape[0])].sum(axis=0) for tap in range(self.shape[0])]
        columns = [self._read_by(1, tap, image.shape[1]) for tap in range(self.shape[1])]
        sums = np.array([[row[places].sum(axis=0) for places in columns] for row in by_row])
        return self._of_taps(sums, weights) / positions

    def mean_of(self, means: Floats, size: Sequence[int], weights: Floats) -> Floats:
        """Return the mean of its result where channels of what it reads have these means everywhere, (outputs,).

        `size` are rows and columns of an image that a convolution reads; what is open counts as endless.
        """
        if self.is_matmul:
            return means @ weights
        rows, columns = (np.array([self._share(axis, tap, size[axis]) for tap in range(self.shape[axis])]) for axis in (0, 1))
        return self._of_taps(rows[:, np.newaxis, np.newaxis] * columns[:, np.newaxis] * means, weights)

    def _of_taps(self, sums: Floats, weights: Floats) -> Floats:
        """Return the results of what each tap reads, (taps of a column, of a row, channels)."""
        by_group = sums.reshape(*sums.shape[:2], self.groups, -1).transpose(2, 0, 1, 3).reshape(self.groups, 1, -1)
        by_output = weights.reshape(*weights.shape[:3], self.groups, -1).transpose(3, 0, 1, 2, 4)
        return (by_group @ by_output.reshape(self.groups, by_group.shape[2], -1)).reshape(-1)

    def _share(self, axis: int, tap: int, size: int) -> float:
        """Return at which share of the result's rows, or columns, a tap reads a value, and no padding."""
        outputs = self.sizes[1 + axis]
        if is_open(size) or is_open(outputs):
            return 1 / self.window.strides[axis] if self.is_transposed else 1.0
        return len(self._read_by(axis, tap, size)) / outputs

    def _read_by(self, axis: int, tap: int, size: int) -> npt.NDArray[np.int64]:
        """Return which of so many rows, or columns, a tap reads for some row of the result: each of them once."""
        start, stride = tap * self.window.dilation[axis] - self.window.padding[axis], self.window.strides[axis]
        if self.is_transposed:
            given = np.arange(size) * stride + start
            return np.flatnonzero((given >= 0) & (given < self.sizes[1 + axis]))
        read = np.arange(self.sizes[1 + axis]) * stride + start
        return read[(read >= 0) & (read < size)]


def products_of(model: Model, view: DataflowView) -> dict[str, Product]:
    """Return the products with weights of a float model, by the variables of their results, in the order of the graph."""
    found: dict[str, Product] = {}
    for var, op in weighted_ops(view, Constants(view, model.params)):
        read, is_matmul = op.call.args[0], call_to(op.call, "matmul") is not None
        # Windows of images of different sizes are no rows to put together.
        if isinstance(read, Var) and (is_matmul or not names_in(static_shape(op.call) or ())):
            found[var.name] = product_of(var.name, view.root_of(read), op)
    return found


def product_of(name: str, read: Var, op: Weighted) -> Product:
    """Return a product by the name of its result's variable, and what it reads."""
    if call_to(op.call, "matmul") is not None:
        has_open_rows = bool(names_in(static_shape(op.call.args[0]) or ()))
        return Product(name=name, read=read.name, axis=-1, constant=op.weight, has_open_rows=has_open_rows)
    attrs: Any = op.call.attrs
    layout, shape, padding = str(attrs.data_layout), static_shape(op.call), [int(each) for each in attrs.padding]
    assert shape is not None, "a product whose weights can be read has one"
    return Product(
        name=name,
        read=read.name,
        axis=layout.index("C"),
        constant=op.weight,
        order=tuple(str(attrs.kernel_layout).index(axis) for axis in "HWIO"),
        window=Window(
            strides=(int(attrs.strides[0]), int(attrs.strides[1])),
            padding=(padding[0], padding[1], padding[-2], padding[-1]),
            dilation=(int(attrs.dilation[0]), int(attrs.dilation[1])),
        ),
        groups=int(attrs.groups),
        is_transposed=call_to(op.call, TRANSPOSED) is not None,
        sizes=tuple(shape[str(attrs.out_layout or layout).index(axis)] for axis in "NHW"),
    )
