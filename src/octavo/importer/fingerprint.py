"""Fingerprint of a model: a hash over what it computes, equal for equal models wherever and by whomever they were written.

What counts: ops with their attributes, the names that connect them, shapes and dtypes as the source states them, and constants.
What does not: file location, doc strings, producer, node labels, how constants are packed into the file.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.helper
import onnx.numpy_helper

from .onnx_prepare import graph_inputs
from .tflite_source import TfliteGraph

_PREFIX = "sha256:"


class Fingerprint:
    """Feeds values to a hash so that no two different sequences of them look alike."""

    def __init__(self, source_format: str) -> None:
        self._hash = hashlib.sha256()
        self.add(source_format)

    def add(self, value: Any) -> None:
        """Add plain values: numbers, text, bytes, None, and lists, tuples and dicts of them."""
        text = json.dumps(value, sort_keys=True, default=_plain, ensure_ascii=True).encode()
        self._hash.update(len(text).to_bytes(8, "little"))
        self._hash.update(text)

    def add_array(self, value: npt.NDArray[Any]) -> None:
        """Add an array: dtype, shape and the bytes of its values in C order."""
        data = np.ascontiguousarray(value)
        self.add([str(data.dtype), list(data.shape)])
        self._hash.update(data.data if data.dtype.kind in "iufb" else data.tobytes())

    def digest(self) -> str:
        """Return "sha256:" and 64 hex digits."""
        return _PREFIX + self._hash.hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": str(value.dtype)}
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"cannot hash a {type(value).__name__}")


def onnx_fingerprint(model: onnx.ModelProto) -> str:
    """Hash an ONNX model whose external data has been read."""
    result = Fingerprint("onnx")
    result.add(sorted((opset.domain, opset.version) for opset in model.opset_import))
    result.add([_onnx_value(value) for value in graph_inputs(model.graph)])
    result.add([value.name for value in model.graph.output])
    for function in model.functions:
        result.add([function.domain, function.name, list(function.input), list(function.output)])
        _add_nodes(result, function.node)
    _add_nodes(result, model.graph.node)
    for tensor in sorted(model.graph.initializer, key=lambda tensor: tensor.name):
        result.add(tensor.name)
        result.add_array(onnx.numpy_helper.to_array(tensor))
    return result.digest()


def _onnx_value(value: onnx.ValueInfoProto) -> list[Any]:
    tensor = value.type.tensor_type
    return [value.name, tensor.elem_type, [dim.dim_value or dim.dim_param for dim in tensor.shape.dim]]


def _add_nodes(result: Fingerprint, nodes: Any) -> None:
    for node in nodes:
        result.add([node.op_type, "" if node.domain == "ai.onnx" else node.domain, list(node.input), list(node.output)])
        for attribute in sorted(node.attribute, key=lambda attribute: attribute.name):
            value = onnx.helper.get_attribute_value(attribute)
            result.add([attribute.name, attribute.type, attribute.ref_attr_name])
            if isinstance(value, onnx.TensorProto):
                result.add_array(onnx.numpy_helper.to_array(value))
            elif not hasattr(value, "SerializeToString"):
                result.add(value if isinstance(value, int | float | str | bytes) else list(value))


def tflite_fingerprint(graph: TfliteGraph) -> str:
    """Hash a TFLite graph."""
    result = Fingerprint("tflite")
    result.add([graph.inputs, graph.outputs])
    for op in graph.ops:
        result.add([op.name, op.inputs, op.outputs, op.options])
    for tensor in graph.tensors:
        result.add([tensor.name, tensor.shape, tensor.dtype, tensor.scale, tensor.zero_point, tensor.axis])
        if tensor.value is not None:
            result.add_array(tensor.value)
    return result.digest()
