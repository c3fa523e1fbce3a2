"""Read products whose inputs are quantized per row when run, which files spell in standard ops around MatMulInteger.

Works on protos whose constants are initializers, before these are folded. The steps are those that `export_onnx` writes
(`numerics.dynamic.PER_ROW`), and no others; the value that they quantize is then marked, and meets weights in QDQ form.

Before::

    low = Min(ReduceMin(x), 0); scale = Max((Max(ReduceMax(x), 0) - low) / 255, tiny); zero = Clip(0 - Round(low / scale), 0, 255)
    x_q = Cast(Clip(Round(x * (1 / scale)) + zero, 0, 255), uint8)
    y = Cast(MatMulInteger(x_q, w_q) - Cast(zero, int32) * sums_of_columns, float) * scale * w_scale

After::

    y = MatMul(Identity<quantized_by=-1>(x), DequantizeLinear(w_q, w_scale))

Of two activations the second one is quantized by columns. Other readers of a step keep it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.helper
import onnx.numpy_helper
from onnx import TensorProto

from ...ir.identity import NameSupply
from ...numerics.dynamic import PER_ROW
from .graph import replace_nodes
from .large_tensors import tensor_array

QUANTIZED_BY = "quantized_by"
"""The attribute of an Identity whose result is quantized per row when run: -1, or per column: -2."""

_Steps = tuple[Any, ...] | str | float
"""What makes a tensor: an op and the forms of its inputs; a name for whatever stands there, everywhere the same; a number."""

_FLOAT, _INT32, _UINT8 = (f"Cast{number}" for number in (TensorProto.FLOAT, TensorProto.INT32, TensorProto.UINT8))
_LEAST, _MOST = float(PER_ROW.qmin), float(PER_ROW.qmax)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rows:
    """Forms of a tensor's integers, scales and zero points along an axis."""

    integers: _Steps
    scale: _Steps
    zero_point: _Steps
    sums: _Steps


def _rows(x: str, axis: int) -> _Rows:
    low: _Steps = ("Min", (f"ReduceMin{axis}", x), 0.0)
    span = ("Sub", ("Max", (f"ReduceMax{axis}", x), 0.0), low)
    scale = ("Max", ("Div", span, _MOST - _LEAST), float(np.float32(PER_ROW.eps)))
    zero_point = ("Clip", ("Sub", _LEAST, ("Round", ("Div", low, scale))), _LEAST, _MOST)
    steps = ("Round", ("Mul", x, ("Div", 1.0, scale)))
    integers = (_UINT8, ("Clip", ("Add", steps, zero_point), _LEAST, _MOST))
    sums = (f"ReduceSum{axis}", (_INT32, integers))
    return _Rows(integers=integers, scale=scale, zero_point=(_INT32, zero_point), sums=sums)


_X, _Y = _rows("x", -1), _rows("y", -2)
_BY_WEIGHT: _Steps = (
    "Sub",
    ("MatMulInteger", _X.integers, "weight"),
    ("Mul", _X.zero_point, "sums"),
)
_BY_COLUMNS: _Steps = (
    "Sub",
    ("Sub", ("MatMulInteger", _X.integers, _Y.integers), ("Mul", _X.zero_point, _Y.sums)),
    ("Mul", ("Sub", _X.sums, ("Mul", _X.zero_point, (_INT32, ("Gather", ("Shape", "x"), -1.0)))), _Y.zero_point),
)
_FORMS: dict[str, _Steps] = {
    "weight": ("Mul", ("Mul", (_FLOAT, _BY_WEIGHT), _X.scale), "weight_scale"),
    "columns": ("Mul", ("Mul", (_FLOAT, _BY_COLUMNS), _X.scale), _Y.scale),
    "reals": ("Mul", (_FLOAT, ("Sub", (_INT32, _X.integers), _X.zero_point)), _X.scale),
}
"""By what meets the rows: weights of one scale a column, another activation's columns, or any op that reads reals."""


def read_row_products(graph: onnx.GraphProto) -> None:
    """Write products of rows as the float product, in place, with marks where values are quantized."""
    if not any(node.op_type == "Round" for node in graph.node):
        return
    reader = _Reader(graph)
    replaced = {node.output[0]: made for node in graph.node if (made := reader.read(node))}
    if not replaced:
        return
    nodes = [each for node in graph.node for each in replaced.get(next(iter(node.output), ""), [node])]
    graph.initializer.extend(reader.initializers)
    replace_nodes(graph, _read_nodes(nodes, {value.name for value in graph.output} | reader.kept))


def _read_nodes(nodes: list[onnx.NodeProto], read: set[str]) -> list[onnx.NodeProto]:
    """Return the nodes without the steps that nobody reads any more."""
    kept: list[onnx.NodeProto] = []
    for node in reversed(nodes):
        if read.intersection(node.output):
            kept.append(node)
            read.update(node.input)
    return kept[::-1]


@dataclass(kw_only=True, slots=True)
class _Found:
    """What stands for the names of a form, and the outputs of the nodes that make it."""

    values: dict[str, str] = field(default_factory=dict[str, str])
    steps: set[str] = field(default_factory=set[str])


class _Reader:
    """Compares what makes a tensor with forms, and writes what takes its place."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._makers = {output: node for node in graph.node for output in node.output}
        self._names = NameSupply([*self._constants, *self._makers, *(value.name for value in graph.input)])
        self._marked: dict[tuple[str, int], str] = {}
        self.initializers: list[onnx.TensorProto] = []
        self.kept = set(self._makers)
        """Outputs that are no step of a product: read or not, their nodes stay."""

    def read(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return the nodes that take a product's place; none where it is no product of rows."""
        if node.op_type != "Mul":
            return []
        writers = {"weight": self._of_weight, "columns": self._of_columns, "reals": self._of_reals}
        for kind, form in _FORMS.items():
            found = _Found()
            made = writers[kind](node, found) if self._same(node.output[0], form, found) else []
            if made:
                self.kept -= found.steps - {node.output[0]}
                return made
        return []

    def _of_weight(self, node: onnx.NodeProto, found: _Found) -> list[onnx.NodeProto]:
        weight, sums, scale = (self._value(found.values[name]) for name in ("weight", "sums", "weight_scale"))
        if weight is None or sums is None or scale is None or weight.dtype != np.int8 or weight.ndim != 2:
            return []
        if not np.array_equal(weight.sum(axis=0, dtype=np.int32), sums) or scale.size not in (1, weight.shape[1]):
            return []
        made, rows = self._rows(node, found.values["x"], -1)
        name, scales = self._names.fresh(f"{node.output[0]}_weight"), self._names.fresh(f"{node.output[0]}_scale")
        self.initializers.append(onnx.numpy_helper.from_array(scale.reshape(() if scale.size == 1 else -1), scales))
        axis: dict[str, Any] = {} if scale.size == 1 else {"axis": 1}
        dequantized = onnx.helper.make_node("DequantizeLinear", [found.values["weight"], scales], [name], name=node.name, **axis)
        product = onnx.helper.make_node("MatMul", [rows, name], node.output[:1], name=node.name)
        return [*made, dequantized, product]

    def _of_columns(self, node: onnx.NodeProto, found: _Found) -> list[onnx.NodeProto]:
        made, rows = self._rows(node, found.values["x"], -1)
        others, columns = self._rows(node, found.values["y"], -2)
        return [*made, *others, onnx.helper.make_node("MatMul", [rows, columns], node.output[:1], name=node.name)]

    def _of_reals(self, node: onnx.NodeProto, found: _Found) -> list[onnx.NodeProto]:
        return [_mark(node, found.values["x"], node.output[0], -1)]

    def _rows(self, node: onnx.NodeProto, x: str, axis: int) -> tuple[list[onnx.NodeProto], str]:
        """Return the node that marks a value, none where one does already, and the marked one."""
        if (x, axis) in self._marked:
            return [], self._marked[x, axis]
        marked = self._marked[x, axis] = self._names.fresh(f"{x}_by_{'row' if axis == -1 else 'column'}")
        return [_mark(node, x, marked, axis)], marked

    def _same(self, name: str, form: _Steps, found: _Found) -> bool:
        if isinstance(form, str):
            return found.values.setdefault(form, name) == name
        if isinstance(form, float | int):
            value = self._value(name)
            return value is not None and value.size == 1 and float(value.reshape(-1)[0]) == form
        node = self._makers.get(name)
        if node is None or node.domain not in ("", "ai.onnx") or not form[0].startswith(node.op_type):
            return False
        op, inputs = self._described(node)
        if op != form[0] or len(inputs) != len(form) - 1:
            return False
        found.steps.add(name)
        return all(self._same(each, part, found) for each, part in zip(inputs, form[1:], strict=True))

    def _described(self, node: onnx.NodeProto) -> tuple[str, list[str]]:
        """Return the op with what says how it computes, and the inputs that it computes with."""
        attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        if node.op_type == "Cast":
            return f"Cast{attributes['to']}", list(node.input)
        if not node.op_type.startswith("Reduce"):
            return node.op_type, list(node.input)
        axes: Any = attributes.get("axes", ())
        if len(node.input) > 1:
            given = self._value(node.input[1])
            axes = () if given is None else given.reshape(-1).tolist()
        is_one = attributes.get("keepdims", 1) == 1 and len(axes) == 1
        return f"{node.op_type}{axes[0] if is_one else ''}", list(node.input[:1])

    def _value(self, name: str) -> npt.NDArray[Any] | None:
        return tensor_array(self._constants[name]) if name in self._constants else None


def _mark(node: onnx.NodeProto, x: str, output: str, axis: int) -> onnx.NodeProto:
    attributes: dict[str, Any] = {QUANTIZED_BY: axis}
    return onnx.helper.make_node("Identity", [x], [output], name=node.name, **attributes)
