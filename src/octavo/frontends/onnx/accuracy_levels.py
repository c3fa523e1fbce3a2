"""The `accuracy_level` of ONNX Runtime's MatMulNBits: how exact activations are to be at least. Builds no Relax."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx.helper

from ...ir.identity import TensorTable
from ...numerics.quantized.block_matmul import BlockActivations

_LEVELS: Mapping[int, BlockActivations] = {1: "float32", 2: "bfloat16", 3: "bfloat16", 4: "int8"}
"""float32, float16, bfloat16 and int8; 0 says nothing. Our "bfloat16" has 16 bits a block, more than float16's 11."""


def block_activations(graph: onnx.GraphProto, tensors: TensorTable) -> dict[str, BlockActivations]:
    """Return what nodes say of the activations that they read, by their results."""
    found: dict[str, BlockActivations] = {}
    for node in graph.node:
        if node.op_type != "MatMulNBits":
            continue
        attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        level = _LEVELS.get(int(attributes.get("accuracy_level", 0)))
        result = tensors.find(node.output[0])
        if level is not None and result is not None:
            found[str(result)] = level
    return found
