"""Products whose inputs are quantized per row when run, in ONNX's standard ops around MatMulInteger. Decides nothing.

The integers are those of `numerics.dynamic.PER_ROW`. Runtimes take one zero point for all rows: the sums are those of integers
as they lie, and what each row's zero point adds to them, that times the sum of a column's weights, is taken off behind. So is
what the zero points of columns add, where the second operand is an activation, too. Convolutions read the reals that the integers
of samples stand for: runtimes take one zero point for all samples.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from ...numerics import QuantParams
from ...numerics.dynamic import PER_ROW
from ...quantizer.plan import IntegerLayer
from .onnx_graph import Node, OnnxGraph, set_attribute
from .products import NewNodes, operand, put_in_place

_AXES_INPUT_OPSET = 18
"""The first whose ReduceMin and ReduceMax have their axes as an input."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rows:
    """Names of a tensor's integers, and of its scales and its zero points in int32, which keep the axis of rows with size 1."""

    integers: str
    scale: str
    zero_point: str


@dataclass(kw_only=True, slots=True)
class RowQuantization:
    """Writes such layers into one graph; what several read is quantized once, and a weight that several have is there once.

    Parameters
    ----------
    opset
        Of the file.
    """

    graph: OnnxGraph
    opset: int
    _rows: dict[tuple[str, int], _Rows] = field(default_factory=dict["tuple[str, int]", _Rows])
    _sums: dict[tuple[str, int], str] = field(default_factory=dict["tuple[str, int]", str])
    _reals: dict[str, str] = field(default_factory=dict[str, str])
    _flattened: dict[str, str] = field(default_factory=dict[str, str])

    def replace(self, _: IntegerLayer, product: Node, weight: npt.NDArray[np.int8], params: QuantParams) -> None:
        """Put a product of integers in the place of a MatMul or a Gemm by a weight.

        Parameters
        ----------
        weight
            [in, out], with zero point 0.
        params
            Of the weight: (out,) or () of them.
        """
        name = product.name or product.output[0]
        nodes = NewNodes(self.graph, f"{name}_integers")
        rows = self._of(operand(self.graph, product, 0), -1)
        sums = nodes.add("MatMulInteger", rows.integers, self.graph.shared_constant(f"{name}_weight", weight))
        columns = self.graph.shared_constant(f"{name}_weight_sums", weight.sum(axis=0, dtype=np.int32))
        centered = nodes.add("Sub", sums, nodes.add("Mul", rows.zero_point, columns))
        real = nodes.add("Mul", nodes.add("Cast", centered, to=TensorProto.FLOAT), rows.scale)
        nodes.add("Mul", real, self.graph.shared_constant(f"{name}_weight_scale", params.scale.reshape(-1)))
        put_in_place(self.graph, product, nodes)

    def replace_product(self, product: Node) -> None:
        """Put a product of integers in the place of a MatMul or a Gemm of two activations; any other op of such stays float."""
        if product.op_type not in ("MatMul", "Gemm"):
            return
        name = product.name or product.output[0]
        a, b = (operand(self.graph, product, place) for place in range(2))
        rows, columns = self._of(a, -1), self._of(b, -2)
        row_sums, column_sums = self._sum(a, -1), self._sum(b, -2)
        nodes = NewNodes(self.graph, f"{name}_integers")
        sums = nodes.add("MatMulInteger", rows.integers, columns.integers)
        centered = nodes.add("Sub", sums, nodes.add("Mul", rows.zero_point, column_sums))
        last = self.graph.add_constant(f"{name}_last", np.asarray(-1))
        size = nodes.add("Cast", nodes.add("Gather", nodes.add("Shape", a), last), to=TensorProto.INT32)
        others = nodes.add("Sub", row_sums, nodes.add("Mul", rows.zero_point, size))
        centered = nodes.add("Sub", centered, nodes.add("Mul", others, columns.zero_point))
        real = nodes.add("Mul", nodes.add("Cast", centered, to=TensorProto.FLOAT), rows.scale)
        nodes.add("Mul", real, columns.scale)
        put_in_place(self.graph, product, nodes)

    def read_dequantized(self, product: Node, *, of_samples: bool = False) -> None:
        """Let a product of weights read its input as the reals that its integers stand for: a Conv those of samples.

        A MatMul or a Gemm, whose weights are in blocks, reads those of rows.
        """
        x = operand(self.graph, product, 0)
        flat = self._flat(x) if of_samples else x
        rows = self._of(flat, -1)
        if rows.integers not in self._reals:
            nodes = NewNodes(self.graph, f"{rows.integers}_dequantized")
            centered = nodes.add("Sub", nodes.add("Cast", rows.integers, to=TensorProto.INT32), rows.zero_point)
            real = nodes.add("Mul", nodes.add("Cast", centered, to=TensorProto.FLOAT), rows.scale)
            self._reals[rows.integers] = nodes.add("Reshape", real, nodes.add("Shape", x)) if of_samples else real
            self.graph.add_after(rows.zero_point, nodes.made)
        self.graph.set_input(product, 0, self._reals[rows.integers])
        if product.op_type == "Gemm":
            set_attribute(product, "transA", 0)

    def _flat(self, x: str) -> str:
        """Return a tensor as a matrix with a row for each index of the first axis."""
        if x not in self._flattened:
            nodes = NewNodes(self.graph, f"{x}_samples")
            self._flattened[x] = nodes.add("Flatten", x, axis=1)
            self.graph.add_after(x, nodes.made)
        return self._flattened[x]

    def _of(self, x: str, axis: int) -> _Rows:
        if (x, axis) not in self._rows:
            nodes = NewNodes(self.graph, f"{x}_rows")
            self._rows[x, axis] = self._quantized(nodes, x, axis)
            self.graph.add_after(x, nodes.made)
        return self._rows[x, axis]

    def _sum(self, x: str, axis: int) -> str:
        """Return the sums of the integers of each row, in int32."""
        if (x, axis) not in self._sums:
            integers, axes = self._of(x, axis).integers, self.graph.add_constant(f"{x}_sums_axis", np.array([axis]))
            nodes = NewNodes(self.graph, f"{x}_sums")
            wide = nodes.add("Cast", integers, to=TensorProto.INT32)
            self._sums[x, axis] = nodes.add("ReduceSum", wide, axes, keepdims=1)
            self.graph.add_after(integers, nodes.made)
        return self._sums[x, axis]

    def _quantized(self, nodes: NewNodes, x: str, axis: int) -> _Rows:
        def number(value: float) -> str:
            return self.graph.add_constant(f"{x}_rows_constant", np.asarray(value, np.float32))

        def end(op: str) -> str:
            if self.opset < _AXES_INPUT_OPSET:
                return nodes.add(op, x, axes=[axis], keepdims=1)
            return nodes.add(op, x, self.graph.add_constant(f"{x}_rows_axis", np.array([axis])), keepdims=1)

        bounds = number(PER_ROW.qmin), number(PER_ROW.qmax)
        low, high = nodes.add("Min", end("ReduceMin"), number(0)), nodes.add("Max", end("ReduceMax"), number(0))
        span = nodes.add("Div", nodes.add("Sub", high, low), number(PER_ROW.qmax - PER_ROW.qmin))
        scale = nodes.add("Max", span, number(PER_ROW.eps))
        least = nodes.add("Sub", number(PER_ROW.qmin), nodes.add("Round", nodes.add("Div", low, scale)))
        zero_point = nodes.add("Clip", least, *bounds)
        steps = nodes.add("Round", nodes.add("Mul", x, nodes.add("Div", number(1), scale)))
        integers = nodes.add("Clip", nodes.add("Add", steps, zero_point), *bounds)
        return _Rows(
            integers=nodes.add("Cast", integers, to=TensorProto.UINT8),
            scale=scale,
            zero_point=nodes.add("Cast", zero_point, to=TensorProto.INT32),
        )
