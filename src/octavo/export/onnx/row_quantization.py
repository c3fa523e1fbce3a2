"""Activations that are quantized per row when run in ONNX's standard ops: those of `ir.qdq.dynamic`. Decides nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from ...numerics.dynamic import PER_ROW
from .onnx_graph import OnnxGraph

_AXES_INPUT_OPSET = 18
"""The first whose ReduceMin and ReduceMax have their axes as an input."""


def add_row_quantization(graph: OnnxGraph, source: str, output: str, *, size: int, rank: int, opset: int) -> None:
    """Let `output` be a float tensor as integers have it of which each row, along its last axis, has parameters of its own.

    Parameters
    ----------
    source, output
        Names of tensors of this rank, whose last axis has this size.
    opset
        Of the file.
    """
    nodes: list[Any] = []

    def constant(value: Any, dtype: Any = np.float32) -> str:
        return graph.add_constant(f"{source}_rows_constant", np.asarray(value, dtype))

    def node(op: str, *inputs: str, **attrs: Any) -> str:
        made = graph.fresh(f"{source}_rows")
        nodes.append(helper.make_node(op, inputs, [made], name=made, **attrs))
        return made

    def end(op: str) -> str:
        if opset < _AXES_INPUT_OPSET:
            return node(op, rows, axes=[1], keepdims=0)
        return node(op, rows, constant([1], np.int64), keepdims=0)

    is_matrix, bounds = rank == 2, (constant(PER_ROW.qmin), constant(PER_ROW.qmax))
    rows = source if is_matrix else node("Reshape", source, constant([-1, size], np.int64))
    zero, column = constant(0), constant([-1, 1], np.int64)
    low, high = node("Min", end("ReduceMin"), zero), node("Max", end("ReduceMax"), zero)
    span = node("Div", node("Sub", high, low), constant(PER_ROW.qmax - PER_ROW.qmin))
    scale = node("Max", span, constant(PER_ROW.eps))
    least = node("Sub", constant(PER_ROW.qmin), node("Round", node("Div", low, scale)))
    zero_point = node("Cast", node("Clip", least, *bounds), to=TensorProto.UINT8)
    factor = node("Div", constant(1), node("Reshape", scale, column))
    steps = node("Round", node("Mul", rows, factor))
    moved = node("Add", steps, node("Cast", node("Reshape", zero_point, column), to=TensorProto.FLOAT))
    integers = node("Cast", node("Clip", moved, *bounds), to=TensorProto.UINT8)
    real = node("DequantizeLinear", integers, scale, zero_point, axis=0)
    if not is_matrix:
        real = node("Reshape", real, node("Shape", source))
    nodes[-1].output[0] = output
    graph.add_after(source, nodes)


def opset_of(proto: onnx.ModelProto) -> int:
    """Return the opset of a file's standard ops."""
    return max(item.version for item in proto.opset_import if item.domain in ("", "ai.onnx"))
