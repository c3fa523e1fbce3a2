"""Rewrite ONNX's QOperator nodes (QLinearConv, QLinearAdd, QGemm, ...) as QDQ: DequantizeLinear, the float op, QuantizeLinear.

Works on protos, before shapes are inferred and constants folded, so that those need to know standard ops only. Tensors of the
source keep their names; what comes in between is new. Builds no Relax, and looks at no values but those of MatMulNBits, whose
weights are packed.

Before::

    y = QLinearConv(x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, b)

After::

    x_f = DequantizeLinear(x, x_scale, x_zero_point)
    w_f = DequantizeLinear(w, w_scale, w_zero_point, axis=0)
    b_f = DequantizeLinear(b, Mul(x_scale, w_scale), axis=0)
    y = QuantizeLinear(Conv(x_f, w_f, b_f), y_scale, y_zero_point)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.helper
import onnx.numpy_helper

from ...ir.identity import NameSupply
from ..frontend import RejectedOpError
from .large_tensors import tensor_array

_TO_CHANNELS_FIRST, _TO_CHANNELS_LAST = [0, 3, 1, 2], [0, 2, 3, 1]


class NodeRewrite:
    """The nodes that take the place of one QOperator node; all carry its name, which says where they come from.

    Parameters
    ----------
    node
        The source node.
    names
        Names that are taken in the graph.
    types
        Element types of the graph's inputs and initializers: they tell what an absent zero point would be.
    opset
        Version of the standard operator set.
    constants
        The graph's initializers.
    """

    def __init__(
        self,
        node: onnx.NodeProto,
        names: NameSupply,
        types: Mapping[str, int],
        opset: int,
        constants: Mapping[str, onnx.TensorProto],
    ) -> None:
        self.node = node
        self._values = constants
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._names = names
        self._types = types
        self.attrs: dict[str, Any] = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}

    def input(self, index: int) -> str:
        """Return the name of an input, "" if absent."""
        return self.node.input[index] if index < len(self.node.input) else ""

    def required(self, index: int, what: str) -> str:
        """Return the name of an input that must be there."""
        name = self.input(index)
        if not name:
            raise RejectedOpError(f"its {what} (input {index}) is missing")
        return name

    def value(self, index: int, what: str) -> npt.NDArray[Any]:
        """Return the value of an input that must be a constant."""
        found = self._values.get(self.required(index, what))
        if found is None:
            raise RejectedOpError(f"its {what} (input {index}) must be constant")
        return tensor_array(found)

    def emit(self, op: str, inputs: Iterable[str], *, to: str = "", **attrs: Any) -> str:
        """Add a node of the standard operator set and return the name of its output, `to` if given.

        Cast's own attribute `to` is spelled `to_type` here.
        """
        name = to or self._names.fresh(f"{self.node.output[0]}_{op}")
        declared = {key.removesuffix("_type"): value for key, value in attrs.items() if value is not None}
        self.nodes.append(onnx.helper.make_node(op, list(inputs), [name], name=self.node.name, **declared))
        return name

    def constant(self, values: Any) -> str:
        """Add an initializer and return its name."""
        name = self._names.fresh(f"{self.node.output[0]}_constant")
        self.initializers.append(onnx.numpy_helper.from_array(np.asarray(values), name))
        return name

    def ints(self, op: str, data: str, attribute: str, values: Iterable[int], *, since: int, to: str = "", **attrs: Any) -> str:
        """Add a node whose list of integers is an attribute before opset `since` and an input from there on."""
        if self.opset < since:
            return self.emit(op, [data], to=to, **{attribute: list(values)}, **attrs)
        return self.emit(op, [data, self.constant(np.array(list(values), np.int64))], to=to, **attrs)

    def dequantized(self, first: int, what: str, *, axis: int | None = None) -> str:
        """Dequantize the inputs (data, scale, zero_point) that start at `first`."""
        return self.dequantize(self.required(first, what), self.required(first + 1, f"{what}_scale"), self.input(first + 2), axis)

    def dequantize(self, data: str, scale: str, zero_point: str = "", axis: int | None = None) -> str:
        """Add a DequantizeLinear to float32; without a zero point it is 0."""
        return self.emit("DequantizeLinear", [data, self._float32(scale), *([zero_point] if zero_point else [])], axis=axis)

    def _float32(self, scale: str) -> str:
        """Return a scale as float32: sums of products leave the range of float16."""
        if self._types.get(scale, onnx.TensorProto.FLOAT) == onnx.TensorProto.FLOAT:
            return scale
        return self.emit("Cast", [scale], to_type=onnx.TensorProto.FLOAT)

    def quantize(self, value: str, scale_at: int, *, like: int, to: str = "") -> None:
        """End in the QuantizeLinear of the inputs (scale, zero_point) at `scale_at`; both may lack a zero point, which is 0 then.

        `like` is where the zero point of an input of the same dtype stands.
        """
        zero_point = self.input(scale_at + 1)
        if not zero_point:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(self._types.get(self.input(like), onnx.TensorProto.UINT8))
            zero_point = self.constant(np.zeros((), dtype))
        scale = self._float32(self.required(scale_at, "y_scale"))
        self.emit("QuantizeLinear", [value, scale, zero_point], to=to or self.node.output[0])

    def copied(self, *names: str) -> dict[str, Any]:
        """Return those of the named attributes that the source states."""
        return {name: self.attrs[name] for name in names if name in self.attrs}

    def image(self) -> str:
        """Dequantize input 0, four-dimensional, with channels first: integers are what a transposition moves."""
        data = self.required(0, "X")
        if self._has_channels_last:
            data = self.emit("Transpose", [data], perm=_TO_CHANNELS_FIRST)
        return self.dequantize(data, self.required(1, "x_scale"), self.input(2))

    def quantize_image(self, value: str, scale_at: int) -> None:
        """End as `quantize` does, for a result with channels first: put them where the source has them."""
        if not self._has_channels_last:
            self.quantize(value, scale_at, like=2)
            return
        first = self._names.fresh(f"{self.node.output[0]}_channels_first")
        self.quantize(value, scale_at, like=2, to=first)
        self.emit("Transpose", [first], to=self.node.output[0], perm=_TO_CHANNELS_LAST)

    @property
    def _has_channels_last(self) -> bool:
        return bool(self.attrs.get("channels_last", 0))


def _conv(r: NodeRewrite) -> None:
    x, w = r.image(), r.dequantized(3, "w", axis=0)
    bias: list[str] = []
    if r.input(8):
        bias = [r.dequantize(r.input(8), r.emit("Mul", [r.input(1), r.input(4)]), axis=0)]
    attrs = r.copied("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    r.quantize_image(r.emit("Conv", [x, w, *bias], **attrs), 6)


def _matmul(r: NodeRewrite) -> None:
    a, b = r.dequantized(0, "a", axis=-2), r.dequantized(3, "b", axis=-1)
    r.quantize(r.emit("MatMul", [a, b]), 6, like=2)


def _gemm(r: NodeRewrite) -> None:
    """y = alpha * A * B + C: alpha goes into B's scale, and C counts in units of alpha * a_scale * b_scale."""
    alpha, transposed = float(r.attrs.get("alpha", 1.0)), bool(r.attrs.get("transB", 0))
    b_scale = r.required(4, "b_scale")
    if alpha != 1.0:
        b_scale = r.emit("Mul", [b_scale, r.constant(np.float32(alpha))])
    inputs = [
        r.dequantized(0, "a"),
        r.dequantize(r.required(3, "B"), b_scale, r.input(5), 0 if transposed else 1),
    ]
    if r.input(6):
        inputs.append(r.dequantize(r.input(6), r.emit("Mul", [r.required(1, "a_scale"), b_scale]), axis=-1))
    quantized = bool(r.input(7))
    value = r.emit("Gemm", inputs, to="" if quantized else r.node.output[0], **r.copied("transA", "transB"))
    if quantized:
        r.quantize(value, 7, like=2)


def _binary(op: str) -> Callable[[NodeRewrite], None]:
    def rewrite(r: NodeRewrite) -> None:
        r.quantize(r.emit(op, [r.dequantized(0, "A"), r.dequantized(3, "B")]), 6, like=2)

    return rewrite


def _unary(op: str, *attributes: str) -> Callable[[NodeRewrite], None]:
    def rewrite(r: NodeRewrite) -> None:
        r.quantize(r.emit(op, [r.dequantized(0, "X")], **r.copied(*attributes)), 3, like=2)

    return rewrite


def _global_average_pool(r: NodeRewrite) -> None:
    r.quantize_image(r.emit("GlobalAveragePool", [r.image()]), 3)


def _average_pool(r: NodeRewrite) -> None:
    attrs = r.copied("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
    r.quantize_image(r.emit("AveragePool", [r.image()], **attrs), 3)


def _concat(r: NodeRewrite) -> None:
    parts = [r.dequantized(first, "X") for first in range(2, len(r.node.input), 3)]
    r.quantize(r.emit("Concat", parts, axis=int(r.attrs.get("axis", 0))), 0, like=4)


def _softmax(r: NodeRewrite) -> None:
    """Its attribute `opset` says which softmax is meant: before 13 the axes from `axis` on count as one."""
    axis, x = int(r.attrs.get("axis", -1)), r.dequantized(0, "X")
    meant = int(r.attrs.get("opset", r.opset))
    if (meant < 13) == (r.opset < 13):
        value = r.emit("Softmax", [x], axis=axis)
    elif meant < 13:
        flat = r.emit("Softmax", [r.emit("Flatten", [x], axis=axis)], axis=1)
        value = r.emit("Reshape", [flat, r.emit("Shape", [x])])
    elif axis == -1:
        value = r.emit("Softmax", [x], axis=-1)
    else:
        raise RejectedOpError(f"axis {axis} as opset {meant} means it cannot be said in opset {r.opset}; convert the model to 13")
    r.quantize(value, 3, like=2)


def _reduce_mean(r: NodeRewrite) -> None:
    x, keepdims = r.dequantized(0, "data"), int(r.attrs.get("keepdims", 1))
    if "axes" in r.attrs:
        value = r.ints("ReduceMean", x, "axes", r.attrs["axes"], since=18, keepdims=keepdims)
    else:
        value = r.emit("ReduceMean", [x], keepdims=keepdims)
    r.quantize(value, 3, like=2)


def _where(r: NodeRewrite) -> None:
    condition = r.required(0, "condition")
    r.quantize(r.emit("Where", [condition, r.dequantized(1, "X"), r.dequantized(4, "Y")]), 7, like=3)


def _to_standard_domain(r: NodeRewrite) -> None:
    """Take com.microsoft's QuantizeLinear and DequantizeLinear, older than 16-bit types in ONNX, for the standard ops."""
    attrs = {name: value for name, value in r.attrs.items() if name in ("axis", "block_size", "output_dtype", "saturate")}
    r.emit(r.node.op_type, r.node.input, to=r.node.output[0], **attrs)


def _matmul_in_blocks(r: NodeRewrite) -> None:
    """Take com.microsoft's MatMulNBits: A @ B^T of B uint8 [N, blocks, block / 2], the first of two inputs in the low half."""
    inputs, outputs, block, bits = (int(r.attrs.get(name, 0)) for name in ("K", "N", "block_size", "bits"))
    if bits not in (0, 4):
        raise RejectedOpError(f"weights of {bits} bits are not supported, only of 4")
    if r.input(4):
        raise RejectedOpError("its g_idx (input 4), an order of the inputs, is not supported")
    blocks = -(-inputs // block) if block else 0
    packed = r.value(1, "B")
    if packed.dtype != np.uint8 or packed.size != outputs * blocks * block // 2 or not packed.size:
        raise RejectedOpError(f"B {packed.dtype} {packed.shape} does not fit K {inputs}, N {outputs}, block_size {block}")
    values = _halves(packed.reshape(outputs, -1))
    scale = r.value(2, "scales").astype(np.float32).reshape(outputs, blocks)
    zero_point = np.full(scale.shape, 8, np.uint8)
    if r.input(3):
        packed_points = r.value(3, "zero_points")
        if packed_points.dtype != np.uint8:
            raise RejectedOpError(f"zero_points of {packed_points.dtype} are not supported, only of 4 bits in uint8")
        zero_point = _halves(packed_points.reshape(outputs, -1))[:, :blocks]
    if inputs % block:  # a part of a block has no form in QDQ
        real = (values.astype(np.int16) - np.repeat(zero_point, block, axis=1)) * np.repeat(scale, block, axis=1)
        matrix = r.constant(np.ascontiguousarray(real[:, :inputs].T.astype(np.float32)))
    else:
        operands = [r.constant(np.ascontiguousarray(each)) for each in (values, scale, zero_point)]
        matrix = r.emit("Transpose", [r.emit("DequantizeLinear", operands, axis=1, block_size=block)], perm=[1, 0])
    bias = r.input(5)
    product = r.emit("MatMul", [r.required(0, "A"), matrix], to="" if bias else r.node.output[0])
    if bias:
        r.emit("Add", [product, bias], to=r.node.output[0])


def _halves(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return the 4-bit integers of bytes, the low half of each first."""
    return np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1).reshape(len(packed), -1).astype(np.uint8)


REWRITES: dict[str, Callable[[NodeRewrite], None]] = {
    "MatMulNBits": _matmul_in_blocks,
    "QGemm": _gemm,
    "QLinearAdd": _binary("Add"),
    "QLinearAveragePool": _average_pool,
    "QLinearConcat": _concat,
    "QLinearConv": _conv,
    "QLinearGlobalAveragePool": _global_average_pool,
    "QLinearLeakyRelu": _unary("LeakyRelu", "alpha"),
    "QLinearMatMul": _matmul,
    "QLinearMul": _binary("Mul"),
    "QLinearReduceMean": _reduce_mean,
    "QLinearSigmoid": _unary("Sigmoid"),
    "QLinearSoftmax": _softmax,
    "QLinearWhere": _where,
}
"""How each QOperator node becomes QDQ, by op."""

_MICROSOFT = "com.microsoft"
_MICROSOFT_TWINS = frozenset({"QuantizeLinear", "DequantizeLinear"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Rewritten:
    """The nodes that take the place of one, and the initializers that they need besides."""

    nodes: tuple[onnx.NodeProto, ...]
    initializers: tuple[onnx.TensorProto, ...]


class QdqRewriter:
    """Rewrites the QOperator nodes of one graph.

    Parameters
    ----------
    graph
        Not changed; its names are kept clear of.
    opset
        Version of the standard operator set.
    """

    def __init__(self, graph: onnx.GraphProto, opset: int) -> None:
        self._types = {value.name: value.type.tensor_type.elem_type for value in graph.input}
        self._types.update({tensor.name: tensor.data_type for tensor in graph.initializer})
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._names = NameSupply(set(self._types) | {name for node in graph.node for name in (*node.input, *node.output)})
        self._opset = opset

    def rewrite(self, node: onnx.NodeProto) -> Rewritten | None:
        """Return what takes the place of a node, None if it stays as it is; RejectedOpError for a form that QDQ cannot say."""
        rewrite = REWRITES.get(node.op_type)
        if rewrite is None and node.domain == _MICROSOFT and node.op_type in _MICROSOFT_TWINS:
            rewrite = _to_standard_domain
        if rewrite is None:
            return None
        rewritten = NodeRewrite(node, self._names, self._types, self._opset, self._constants)
        rewrite(rewritten)
        return Rewritten(nodes=tuple(rewritten.nodes), initializers=tuple(rewritten.initializers))
