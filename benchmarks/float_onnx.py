"""Float ONNX models for quantizers that read no other: of a float TFLite file, and of a quantized ONNX file.

Written for the ops of the shared classifiers; any other op is a KeyError. It must not round or fold what the source computes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 13


class _Graph:
    """Nodes and constants under construction."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, values: np.ndarray) -> str:
        """Add an initializer."""
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def node(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node."""
        self.nodes.append(helper.make_node(op, inputs, [output], name=f"{output}_{op}", **attributes))
        return output

    def model(self, inputs: dict[str, list[int]], outputs: dict[str, list[int]]) -> onnx.ModelProto:
        """Return the model of the float inputs and outputs, by their shapes."""
        ends = [
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in end.items()]
            for end in (inputs, outputs)
        ]
        graph = helper.make_graph(self.nodes, "float", *ends, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        onnx.checker.check_model(model)
        return model


# ------------------------------------------------------------------------------------------------------------------ TFLite


def of_tflite(path: Path) -> onnx.ModelProto:
    """Return a float TFLite model of batch 1 as OpenVINO reads it, in NCHW behind one transpose."""
    import openvino

    graph, source = _Graph(), openvino.Core().read_model(path)
    names: dict[str, str] = {}
    ends: tuple[dict[str, list[int]], dict[str, list[int]]] = ({}, {})
    for op in source.get_ordered_ops():
        kind, name = op.get_type_name(), f"v{len(names)}"
        operands = [names[value.get_source_output().get_node().get_friendly_name()] for value in op.inputs()]
        if kind == "Constant":
            graph.constant(name, op.data.copy())
        elif kind == "Parameter":
            ends[0][name] = _one_sample(op)
        elif kind == "Result":
            ends[1][operands[0]] = _one_sample(op)
        else:
            TFLITE_OPS[kind](graph, op.get_attributes(), operands, name)
        names[op.get_friendly_name()] = name
    return graph.model(*ends)


def _one_sample(end: Any) -> list[int]:
    return [size.get_length() if size.is_static else 1 for size in end.get_output_partial_shape(0)]


def _value(graph: _Graph, name: str) -> np.ndarray:
    return next(numpy_helper.to_array(tensor) for tensor in graph.constants if tensor.name == name)


def _convolution(graph: _Graph, attributes: dict[str, Any], operands: list[str], name: str) -> None:
    weight = _value(graph, operands[1])
    groups = weight.shape[0] if weight.ndim == 5 else 1
    folded = graph.constant(f"{name}_weight", weight.reshape(-1, *weight.shape[-3:]))
    pads = [*attributes["pads_begin"], *attributes["pads_end"]]
    sizes = {"strides": list(attributes["strides"]), "dilations": list(attributes["dilations"]), "pads": pads}
    graph.node("Conv", [operands[0], folded], name, group=groups, **sizes)


def _average_pool(graph: _Graph, attributes: dict[str, Any], operands: list[str], name: str) -> None:
    pads = [*attributes["pads_begin"], *attributes["pads_end"]]
    graph.node(
        "AveragePool", operands, name, kernel_shape=list(attributes["kernel"]), strides=list(attributes["strides"]), pads=pads
    )


def _transpose(graph: _Graph, _: dict[str, Any], operands: list[str], name: str) -> None:
    graph.node("Transpose", operands[:1], name, perm=[int(axis) for axis in _value(graph, operands[1])])


def _reshape(graph: _Graph, _: dict[str, Any], operands: list[str], name: str) -> None:
    graph.node("Reshape", [operands[0], graph.constant(f"{name}_shape", _value(graph, operands[1]).astype(np.int64))], name)


def _matmul(graph: _Graph, attributes: dict[str, Any], operands: list[str], name: str) -> None:
    weight = _value(graph, operands[1])
    graph.node("MatMul", [operands[0], graph.constant(f"{name}_weight", weight.T if attributes["transpose_b"] else weight)], name)


TFLITE_OPS: dict[str, Callable[[_Graph, dict[str, Any], list[str], str], object]] = {
    "Convolution": _convolution,
    "GroupConvolution": _convolution,
    "AvgPool": _average_pool,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "MatMul": _matmul,
    "Add": lambda graph, _, operands, name: graph.node("Add", operands, name),
    "Relu": lambda graph, _, operands, name: graph.node("Relu", operands, name),
    "Softmax": lambda graph, attributes, operands, name: graph.node("Softmax", operands, name, axis=attributes["axis"]),
}
"""The ONNX nodes of each op of OpenVINO."""


# --------------------------------------------------------------------------------------------------------------- QOperator


def dequantized(path: Path) -> onnx.ModelProto:
    """Return the float model of a QOperator file: its weights and biases dequantized, its activations not quantized.

    A uint8 result whose zero point is 0 is no less than 0: a Relu was fused into what makes it.
    """
    source = onnx.load(path).graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in source.initializer}
    graph, real = _Graph(), {}
    for node in source.node:
        name, inputs = node.output[0], list(node.input)
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            real[name] = real.get(inputs[0], inputs[0])
            continue
        if node.op_type == "QLinearConv":
            x, x_scale, _, weight, scale, zero_point, _, out_zero_point, bias = inputs
            shape = (-1, 1, 1, 1)
            steps, zeros = constants[scale].reshape(shape), constants[zero_point].reshape(shape)
            operands = [
                graph.constant(f"{weight}_real", ((constants[weight].astype(np.float32) - zeros) * steps).astype(np.float32)),
                graph.constant(f"{bias}_real", (constants[bias] * constants[x_scale] * constants[scale]).astype(np.float32)),
            ]
            is_relu = constants[out_zero_point].dtype == np.uint8 and constants[out_zero_point] == 0
            graph.node("Conv", [real[x], *operands], f"{name}_sum" if is_relu else name, **attributes)
            real[name] = graph.node("Relu", [f"{name}_sum"], name) if is_relu else name
        elif node.op_type in ("QLinearMatMul", "QLinearAdd"):
            other, scale, zero_point = inputs[3:6]
            values = ((constants[other].astype(np.float32) - constants[zero_point]) * constants[scale]).astype(np.float32)
            real[name] = graph.node(node.op_type[7:], [real[inputs[0]], graph.constant(f"{other}_real", values)], name)
        else:
            real[name] = graph.node(node.op_type, [real.get(each, each) for each in inputs], name, **attributes)
    shapes = [
        {real.get(end.name, end.name): [axis.dim_value for axis in end.type.tensor_type.shape.dim]}
        for end in (source.input[0], source.output[0])
    ]
    return graph.model(*shapes)
