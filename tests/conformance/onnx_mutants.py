"""Damaged ONNX files from sound ones: bytes flipped, cut short, and fields of the protobuf changed. No Octavo here."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import onnx

EXTREMES = (0, 1, 2, 3, 7, -1, -2, 127, 128, 255, 65535, 1 << 20, (1 << 31) - 1, -(1 << 31), (1 << 62))
FLOATS = (0.0, -1.0, 1e-30, 1e30, float("nan"), float("inf"))
OPS = (
    *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger", "Conv"),
    *("QLinearAdd", "QGemm", "QLinearConcat", "QLinearSoftmax", "MatMulInteger", "MatMul", "Add", "Relu", "Reshape", "Transpose"),
    *("Softmax", "Concat", "MaxPool", "Cast", "Gather", "Slice", "Identity", "Shape", "If", "Loop", "NoSuchOp", ""),
)


def mutants(model: onnx.ModelProto, count: int, seed: int) -> Iterator[bytes]:
    """Yield `count` damaged files: one in four cut short, one with bytes changed, two with one to three fields changed."""
    data = model.SerializeToString()
    for number in range(count):
        rng = random.Random(seed * 100_003 + number)
        if number % 4 == 0:
            yield data[: rng.randrange(len(data))]
        elif number % 4 == 1:
            yield flipped(data, rng)
        else:
            yield changed(model, rng)


def flipped(data: bytes, rng: random.Random) -> bytes:
    """Change one to eight bytes."""
    result = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = rng.randrange(len(result))
        result[at] = rng.choice([result[at] ^ 1 << rng.randrange(8), 0, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    return bytes(result)


def changed(model: onnx.ModelProto, rng: random.Random) -> bytes:
    """Change one to three fields, so that the file stays a sound protobuf of a senseless model."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for _ in range(rng.choice([1, 1, 2, 3])):
        change = rng.choice(
            [_change_node, _change_node, _change_attribute, _change_attribute, _change_constant, _change_constant]
        )
        rng.choice([change, change, change, _change_value, _change_model])(copy, rng)
    return copy.SerializeToString()


def _names(graph: onnx.GraphProto) -> list[str]:
    return sorted({name for node in graph.node for name in (*node.input, *node.output)} | {"", "nowhere"})


def _change_node(model: onnx.ModelProto, rng: random.Random) -> None:
    graph = model.graph
    if not graph.node:
        return
    node = rng.choice(graph.node)
    action = rng.randrange(7)
    if action == 0:
        node.op_type = rng.choice(OPS)
    elif action == 1:
        node.domain = rng.choice(["", "com.microsoft", "ai.onnx", "some.domain"])
    elif action == 2 and node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice(_names(graph))
    elif action == 3 and node.input:
        del node.input[rng.randrange(len(node.input))]
    elif action == 4:
        node.input.append(rng.choice(_names(graph)))
    elif action == 5 and node.output:
        node.output[rng.randrange(len(node.output))] = rng.choice(_names(graph))
    else:
        del graph.node[rng.randrange(len(graph.node))]


def _change_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    with_attributes = [node for node in model.graph.node if node.attribute]
    if not with_attributes:
        _change_node(model, rng)
        return
    node = rng.choice(with_attributes)
    attribute = rng.choice(node.attribute)
    action = rng.randrange(5)
    if action == 0:
        node.attribute.remove(attribute)
    elif action == 1:
        attribute.name = rng.choice(["axis", "pads", "group", "block_size", "alpha", "auto_pad", "keepdims", "x"])
    elif action == 2:
        attribute.type = rng.randrange(15)
    elif attribute.type == onnx.AttributeProto.INTS:
        if action == 3 and attribute.ints:
            attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(EXTREMES)
        else:
            attribute.ints.append(rng.choice(EXTREMES))
    elif attribute.type == onnx.AttributeProto.FLOAT:
        attribute.f = rng.choice(FLOATS)
    else:
        attribute.i = rng.choice(EXTREMES)


def _change_constant(model: onnx.ModelProto, rng: random.Random) -> None:
    if not model.graph.initializer:
        _change_value(model, rng)
        return
    tensor = rng.choice(model.graph.initializer)
    action = rng.randrange(5)
    if action == 0:
        _change_dims(tensor.dims, rng)
    elif action == 1:
        tensor.data_type = rng.randrange(27)
    elif action == 2:
        tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)]
    elif action == 3:
        tensor.raw_data = flipped(tensor.raw_data, rng) if tensor.raw_data else b""
    else:
        model.graph.initializer.remove(tensor)


def _change_dims(dims: Any, rng: random.Random) -> None:
    if dims and rng.randrange(2):
        dims[rng.randrange(len(dims))] = rng.choice(EXTREMES)
    elif dims and rng.randrange(2):
        del dims[-1]
    else:
        dims.append(rng.choice(EXTREMES))


def _change_value(model: onnx.ModelProto, rng: random.Random) -> None:
    values = [*model.graph.input, *model.graph.output]
    if not values:
        return
    value = rng.choice(values)
    tensor = value.type.tensor_type
    action = rng.randrange(5)
    if action == 0:
        tensor.elem_type = rng.randrange(27)
    elif action == 1 and tensor.shape.dim:
        tensor.shape.dim[rng.randrange(len(tensor.shape.dim))].dim_value = rng.choice(EXTREMES)
    elif action == 2:
        tensor.ClearField("shape")
    elif action == 3:
        value.name = rng.choice(_names(model.graph))
    else:
        tensor.shape.dim.add().dim_param = "n"


def _change_model(model: onnx.ModelProto, rng: random.Random) -> None:
    action = rng.randrange(4)
    if action == 0:
        model.ir_version = rng.choice([0, 1, 3, 7, 10, 13, 99])
    elif action == 1 and model.opset_import:
        rng.choice(model.opset_import).version = rng.choice([0, 1, 6, 10, 12, 13, 21, 24, 99])
    elif action == 2 and model.opset_import:
        del model.opset_import[rng.randrange(len(model.opset_import))]
    else:
        model.graph.name = rng.choice(["", "graph"])
