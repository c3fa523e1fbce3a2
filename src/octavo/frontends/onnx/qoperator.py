"""Rewrite ONNX's QOperator nodes (QLinearConv, QLinearAdd, QGemm, ...) as QDQ: DequantizeLinear, the float op, QuantizeLinear.

Works on protos, before shapes are inferred and constants folded, so that those need to know standard ops only. Tensors of the
source keep their names; what comes in between is new. Builds no Relax. Ops on packed weights are in `block_weights`.

Before::

    y = QLinearConv(x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, b)

After::

    x_f = DequantizeLinear(x, x_scale, x_zero_point)
    w_f = DequantizeLinear(w, w_scale, w_zero_point, axis=0)
    b_f = DequantizeLinear(b, Mul(x_scale, w_scale), axis=0)
    y = QuantizeLinear(Conv(x_f, w_f, b_f), y_scale, y_zero_point)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx

from ...ir.identity import NameSupply
from ..frontend import RejectedOpError
from . import block_weights
from .graph import MICROSOFT
from .node_rewrite import NodeRewrite


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


REWRITES: dict[str, Callable[[NodeRewrite], None]] = {
    **block_weights.REWRITES,
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
        if rewrite is None and node.domain == MICROSOFT and node.op_type in _MICROSOFT_TWINS:
            rewrite = _to_standard_domain
        if rewrite is None:
            return None
        rewritten = NodeRewrite(node, self._names, self._types, self._opset, self._constants)
        rewrite(rewritten)
        return Rewritten(nodes=tuple(rewritten.nodes), initializers=tuple(rewritten.initializers))
