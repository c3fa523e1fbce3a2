"""Have a graph of 16-bit floats computed in float32: every kernel is, and profiles and scales are of float32.

Changes the graph that it is given: constants, casts and attributes that name a type. Tensors keep their names. Inputs and outputs
in float16 stay so, with a Cast behind and ahead; bfloat16, which NumPy lacks, becomes float32 there too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
from onnx import TensorProto

from .graph import replace_nodes
from .large_tensors import retype, tensor_array

_NARROW_FLOATS = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
_TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype"})


def has_float16(graph: onnx.GraphProto) -> bool:
    """Return whether anything in the graph is declared to be a 16-bit float."""
    values = (*graph.input, *graph.output)
    return (
        any(value.type.tensor_type.elem_type in _NARROW_FLOATS for value in values)
        or any(tensor.data_type in _NARROW_FLOATS for tensor in graph.initializer)
        or any(_names_float16(attribute) for node in graph.node for attribute in node.attribute)
    )


def compute_in_float32(graph: onnx.GraphProto) -> None:
    """Rewrite `graph`."""
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _widen_tensor(attribute.t)
            elif _names_float16(attribute):
                attribute.i = TensorProto.FLOAT
    for value in graph.value_info:
        if value.type.tensor_type.elem_type in _NARROW_FLOATS:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    constants = {tensor.name for tensor in graph.initializer}
    inputs = _float16_names(graph.input, listed=constants)
    outputs = [name for name in _float16_names(graph.output) if name not in inputs]
    _rename(graph, inputs, outputs)
    first = [onnx.helper.make_node("Cast", [name], [wide(name)], to=TensorProto.FLOAT) for name in inputs]
    last = [onnx.helper.make_node("Cast", [wide(name)], [name], to=TensorProto.FLOAT16) for name in outputs]
    replace_nodes(graph, [*first, *graph.node, *last])


def wide(name: str) -> str:
    """Return what the float32 values of a float16 input or output are called."""
    return f"{name}::float32"


def _names_float16(attribute: onnx.AttributeProto) -> bool:
    if attribute.HasField("t"):
        return attribute.t.data_type in _NARROW_FLOATS
    return attribute.name in _TYPE_ATTRIBUTES and attribute.type == onnx.AttributeProto.INT and attribute.i in _NARROW_FLOATS


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in _NARROW_FLOATS and not retype(tensor, TensorProto.FLOAT):
        values = tensor_array(tensor).astype(np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))


def _float16_names(values: Iterable[onnx.ValueInfoProto], *, listed: Collection[str] = ()) -> list[str]:
    """Return the names of the float16 values; let what is bfloat16, or a constant `listed` among the inputs, be float32."""
    found: list[str] = []
    for value in values:
        tensor = value.type.tensor_type
        if tensor.elem_type == TensorProto.FLOAT16 and value.name not in listed:
            found.append(value.name)
        elif tensor.elem_type in _NARROW_FLOATS:
            tensor.elem_type = TensorProto.FLOAT
    return found


def _rename(graph: onnx.GraphProto, inputs: Collection[str], outputs: Collection[str]) -> None:
    """Let all nodes read and write the float32 values behind the inputs and ahead of the outputs."""
    moved = {*inputs, *outputs}
    for node in graph.node:
        for names in (node.input, node.output):
            for position, name in enumerate(names):
                names[position] = wide(name) if name in moved else name
    for tensor in graph.initializer:
        tensor.name = wide(tensor.name) if tensor.name in outputs else tensor.name
