"""Products with constant weights in a float model: how each moves over what it reads, what it gives on average. Runs nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from ...ir.graph import Model
from ...ir.graph.constants import Constant, Constants
from ...ir.graph.dataflow import DataflowView, call_to, static_shape
from ...ir.graph.weighted import TRANSPOSED, Weighted, weighted_ops
from ...ir.identity import TensorId
from ...numerics.window import UNIT_WINDOW, Window
from ...runtime.size import names_in

Floats = npt.NDArray[np.float64]


OPEN_ROWS = 64
"""Rows that a sample of any size counts for."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Product:
    """A convolution, a transposed one or a product of matrices.

    Parameters
    ----------
    name
        Variable of its result.
    read
        Variable that it reads.
    axis
        Of the channels in that.
    weight
        Parameter that has its weights.
    matrix
        The parameter as a product of matrices reads it, [in, out]; None of a convolution.
    indices
        Where each weight of a convolution lies in the parameter: int64, HWIO with the inputs of one group.
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
    weight: TensorId
    matrix: Constant | None = None
    indices: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    window: Window = UNIT_WINDOW
    groups: int = 1
    is_transposed: bool = False
    sizes: tuple[int, ...] = ()
    has_open_rows: bool = False

    @property
    def is_matmul(self) -> bool:
        """Whether it is a product of matrices."""
        return self.matrix is not None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of its weights: HWIO with the inputs of one group, or [in, out]."""
        return self.indices.shape if self.matrix is None else self.matrix.shape

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
        return values.reshape(-1)[self.indices] if self.matrix is None else np.asarray(self.matrix.as_read(values), order="C")

    def in_parameter(self, weights: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Return its weights as a parameter of a shape holds them: what `weights_of` takes them out of."""
        if self.matrix is not None and not self.matrix.moves:
            return np.asarray(weights, order="C").reshape(shape)
        places = self.indices if self.matrix is None else self.matrix.positions
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

    def sum_of(self, value: npt.NDArray[np.float32]) -> Floats:
        """Return what `mean` asks of what it reads of a sample, channels last: of matrices the sum over rows, (channels,)."""
        return value.reshape(-1, value.shape[-1]).sum(axis=0, dtype=np.float64) if self.is_matmul else value.astype(np.float64)

    def mean(self, total: Floats, positions: int, weights: Floats) -> Floats:
        """Return the mean of its result over so many positions of all samples, (outputs,).

        It is linear, so the mean of its sums is the sum of its means: `total` is what it reads, channels last, summed over the
        samples, and of matrices over rows, too, if one likes. Weights are in its `shape`.
        """
        if self.is_matmul:
            return total.reshape(-1, total.shape[-1]).sum(axis=0) @ weights / positions
        sums = self._sums_by_tap(total.sum(axis=0))
        by_group = sums.reshape(*sums.shape[:2], self.groups, -1).transpose(2, 0, 1, 3).reshape(self.groups, 1, -1)
        by_output = weights.reshape(*weights.shape[:3], self.groups, -1).transpose(3, 0, 1, 2, 4)
        found = by_group @ by_output.reshape(self.groups, by_group.shape[2], -1)
        return found.reshape(-1) / positions

    def _sums_by_tap(self, total: Floats) -> Floats:
        """Return the sum of all that each tap reads of an image, (taps of a column, of a row, channels)."""
        by_row = [total[self._read_by(0, tap, total.shape[0])].sum(axis=0) for tap in range(self.indices.shape[0])]
        columns = [self._read_by(1, tap, total.shape[1]) for tap in range(self.indices.shape[1])]
        return np.array([[row[places].sum(axis=0) for places in columns] for row in by_row])

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
    constants = Constants(view, model.params)
    found: dict[str, Product] = {}
    for var, op in weighted_ops(view, constants):
        if not isinstance(op.call.args[0], Var):
            continue
        name, read = var.name, view.root_of(op.call.args[0]).name
        if call_to(op.call, "matmul") is not None:
            is_open = bool(names_in(static_shape(op.call.args[0]) or ()))
            weight, matrix = op.weight.name, op.weight
            found[name] = Product(name=name, read=read, axis=-1, weight=weight, matrix=matrix, has_open_rows=is_open)
        elif not names_in(static_shape(op.call) or ()):  # windows of images of different sizes are no rows to put together
            found[name] = _convolution(name, read, op)
    return found


def _convolution(name: str, read: str, op: Weighted) -> Product:
    attrs: Any = op.call.attrs
    layout, groups, is_transposed = str(attrs.data_layout), int(attrs.groups), call_to(op.call, TRANSPOSED) is not None
    shape = static_shape(op.call)
    assert shape is not None, "a product whose weights can be read has one"
    indices = op.weight.positions.transpose([str(attrs.kernel_layout).index(axis) for axis in "HWIO"])
    if is_transposed:  # of all inputs, and of the outputs of one group
        taps, (inputs, outputs) = indices.shape[:2], indices.shape[2:]
        by_group = indices.reshape(*taps, groups, inputs // groups, outputs)
        indices = by_group.transpose(0, 1, 3, 2, 4).reshape(*taps, inputs // groups, groups * outputs)
    padding = [int(each) for each in attrs.padding]
    return Product(
        name=name,
        read=read,
        axis=layout.index("C"),
        weight=op.weight.name,
        indices=indices,
        window=Window(
            strides=(int(attrs.strides[0]), int(attrs.strides[1])),
            padding=(padding[0], padding[1], padding[-2], padding[-1]),
            dilation=(int(attrs.dilation[0]), int(attrs.dilation[1])),
        ),
        groups=groups,
        is_transposed=is_transposed,
        sizes=tuple(shape[str(attrs.out_layout or layout).index(axis)] for axis in "NHW"),
    )
