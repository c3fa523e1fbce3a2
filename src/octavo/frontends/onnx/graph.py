"""What every reader and rewriter of an ONNX graph needs: its opset and inputs, a node in a message, a new list of nodes.

Knows no op.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import onnx
import onnx.helper

STANDARD_DOMAINS = frozenset({"", "ai.onnx"})
MICROSOFT = "com.microsoft"
"""The domain of ONNX Runtime's own ops."""


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of the standard operator set."""
    return next((item.version for item in model.opset_import if item.domain in STANDARD_DOMAINS), 1)


def graph_inputs(graph: onnx.GraphProto) -> list[Any]:
    """Return the inputs that a caller feeds: old files list initializers among them."""
    constants = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in constants]


def describe(node: onnx.NodeProto) -> str:
    """Name a node in a message: its op, its name and the tensor it makes."""
    output = next((name for name in node.output if name), "")
    label = f"node {node.name!r}, " if node.name else ""
    domain = f"{node.domain}." if node.domain not in STANDARD_DOMAINS else ""
    return f"op {domain}{node.op_type} ({label}output tensor {output!r})"


def replace_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Let a graph hold copies of these nodes, which may be its own, and no others."""
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)


@cache  # a network has some thousand values
def dtype_name(elem_type: int) -> str:
    """Return NumPy's name of an element type, "" of an undefined one."""
    if elem_type == onnx.TensorProto.UNDEFINED:
        return ""
    return "string" if elem_type == onnx.TensorProto.STRING else str(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
