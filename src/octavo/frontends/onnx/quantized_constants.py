"""Quantized constants of an ONNX graph: quantize float weights at import, and hold integers of less than 8 bits one to a byte.

Works on protos; builds no Relax.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from ...numerics import INTEGER_RANGE, PerAxis, PerBlock, PerTensor, QuantParams
from ...numerics import quantize as quantize_values
from .graph import replace_nodes
from .large_tensors import retype, tensor_array

_NARROW: dict[int, tuple[str, int, int, int]] = {
    onnx.TensorProto.INT4: ("int4", onnx.TensorProto.INT8, -8, 7),
    onnx.TensorProto.UINT4: ("uint4", onnx.TensorProto.UINT8, 0, 15),
    onnx.TensorProto.INT2: ("int2", onnx.TensorProto.INT8, -2, 1),
    onnx.TensorProto.UINT2: ("uint2", onnx.TensorProto.UINT8, 0, 3),
}
"""By ONNX element type: its name, the type that holds it one to a byte, and its range."""


def quantized_constant(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> list[onnx.TensorProto] | None:
    """Compute a QuantizeLinear of a float32 constant; None where it depends on an input, or is malformed.

    The integers take the place of the float weight, which nothing reads any more.
    """
    values = [constants.get(name) for name in node.input if name]
    data = [tensor_array(value) for value in values if value is not None]
    attrs = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    if len(data) != len(values) or not 2 <= len(data) <= 3 or data[0].dtype != np.float32:
        return None
    x, scale = data[0], data[1].astype(np.float32)
    declared = int(attrs.get("output_dtype", 0))
    default = np.dtype(np.uint8) if not declared else onnx.helper.tensor_dtype_to_np_dtype(declared)
    zero_point = data[2] if len(data) == 3 else np.zeros(scale.shape, default)
    dtype = str(zero_point.dtype)
    if dtype not in INTEGER_RANGE or zero_point.size != scale.size:
        return None
    axis, block = int(attrs.get("axis", 1)) % x.ndim if x.ndim > 1 else 0, int(attrs.get("block_size", 0))
    granularity = PerBlock(axis, block) if block else PerTensor() if scale.size == 1 else PerAxis(axis)
    shape = scale.shape if block else () if scale.size == 1 else (-1,)
    try:
        params = QuantParams(
            dtype=dtype,
            scale=scale.reshape(shape),
            zero_point=zero_point.astype(np.int32).reshape(shape),
            granularity=granularity,
        )
        integers = quantize_values(x, params)
    except ValueError:
        return None
    return [onnx.numpy_helper.from_array(integers, node.output[0])]


def widen(graph: onnx.GraphProto) -> dict[str, str]:
    """Hold 4-bit and 2-bit integers one to a byte, in `graph` itself; return the dtype of each constant that was widened.

    Inputs and outputs of these types become int8 or uint8 too. A QuantizeLinear to one of them is computed if of a constant, or
    followed by a Clip to its range, in which the tensor keeps its name; a Cast to one keeps the lowest bits, as ONNX says.
    """
    constants = _quantize_weights(graph)
    types = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    types.update({tensor.name: tensor.data_type for tensor in graph.initializer})
    for tensor in graph.initializer:
        if tensor.data_type in _NARROW:
            name, container_type, _, _ = _NARROW[tensor.data_type]
            constants[tensor.name] = name
            container = onnx.helper.tensor_dtype_to_np_dtype(container_type)
            if not retype(tensor, container_type):
                wide = tensor_array(tensor).astype(container)
                tensor.CopyFrom(onnx.numpy_helper.from_array(wide, tensor.name))
    for value in (*graph.input, *graph.output):
        tensor_type = value.type.tensor_type
        if tensor_type.elem_type in _NARROW:
            tensor_type.elem_type = _NARROW[tensor_type.elem_type][1]
    nodes = [step for node in graph.node for step in _widened(node, types, graph)]
    if len(nodes) != len(graph.node):
        replace_nodes(graph, nodes)
    return constants


def _quantize_weights(graph: onnx.GraphProto) -> dict[str, str]:
    """Put integers in place of the constants that are quantized to less than 8 bits; return their dtypes."""
    known = {tensor.name: tensor for tensor in graph.initializer}
    kept: list[onnx.NodeProto] = []
    found: dict[str, str] = {}
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for node in graph.node:
        elem_type = _quantized_type(node, types) if node.op_type == "QuantizeLinear" else 0
        made = quantized_constant(node, known) if elem_type in _NARROW else None
        if made is None:
            kept.append(node)
            continue
        graph.initializer.extend(made)
        found[node.output[0]] = _NARROW[elem_type][0]
    if found:
        replace_nodes(graph, kept)
    return found


def _quantized_type(node: onnx.NodeProto, types: Mapping[str, int]) -> int:
    """Return the element type of what a QuantizeLinear makes; 0 where that is the default."""
    declared = next((attribute.i for attribute in node.attribute if attribute.name == "output_dtype"), 0)
    return declared or (types.get(node.input[2], 0) if len(node.input) > 2 else 0)


def _widened(node: onnx.NodeProto, types: Mapping[str, int], graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return the nodes of a node: several for what makes integers of less than 8 bits."""
    if node.op_type == "QuantizeLinear":
        return _clipped(node, types, graph)
    elem_type = 0
    if node.op_type == "Cast":
        elem_type = next((attribute.i for attribute in node.attribute if attribute.name == "to"), 0)
    elif node.op_type == "CastLike":
        elem_type = types.get(node.input[1], 0)
    return _wrapped(node, elem_type, graph) if elem_type in _NARROW else [node]


def _wrapped(node: onnx.NodeProto, elem_type: int, graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return a cast to less than 8 bits: (integer - low) modulo the number of values, + low."""
    _, container_type, low, high = _NARROW[elem_type]
    output, made = node.output[0], list[onnx.NodeProto]()
    values = {"low": np.int32(low), "mask": np.int32(high - low)}
    graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(v), f"{output}::{name}") for name, v in values.items())
    steps = [("Cast", [node.input[0]], "int"), ("Sub", ["int", "low"], "above"), ("BitwiseAnd", ["above", "mask"], "kept")]
    steps += [("Add", ["kept", "low"], "value"), ("Cast", ["value"], "")]
    for op, inputs, result in steps:
        names = [name if name == node.input[0] else f"{output}::{name}" for name in inputs]
        made.append(onnx.helper.make_node(op, names, [f"{output}::{result}" if result else output], name=node.name))
    made[0].attribute.append(onnx.helper.make_attribute("to", onnx.TensorProto.INT32))
    made[-1].attribute.append(onnx.helper.make_attribute("to", container_type))
    return made


def _clipped(node: onnx.NodeProto, types: Mapping[str, int], graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return the nodes of a QuantizeLinear, two where it is to less than 8 bits."""
    elem_type = _quantized_type(node, types)
    if elem_type not in _NARROW:
        return [node]
    _, container_type, low, high = _NARROW[elem_type]
    for attribute in node.attribute:
        if attribute.name == "output_dtype":
            attribute.i = container_type
    output, wide = node.output[0], f"{node.output[0]}::byte"
    container = onnx.helper.tensor_dtype_to_np_dtype(container_type)
    bounds = [f"{output}::{bound}" for bound in ("low", "high")]
    for name, bound in zip(bounds, (low, high), strict=True):
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(bound, container), name))
    node.output[0] = wide
    return [node, onnx.helper.make_node("Clip", [wide, *bounds], [output], name=node.name)]
