"""Files of TFLite in another form, in which LiteRT's kernels know what the file states. Of LiteRT's own schema, without Octavo.

LiteRT's BATCH_MATMUL of int16 does not read a scale for each column of a constant: such a file gave zeros. Its kernels but
XNNPACK's know no blocks of 4 bits, and XNNPACK's quantize what such a layer reads. The same products are asked of its
FULLY_CONNECTED, of a scale for each row, and of float32.
"""

from __future__ import annotations

from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

_KINDS = schema.BuiltinOperator
_TYPES = schema.TensorType


def other_form(content: bytes) -> bytes | None:
    """Return such a file in the other form; None for what has no such op."""
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    changed = False
    for graph in model.subgraphs:
        for op in graph.operators:
            code = model.operatorCodes[op.opcodeIndex]
            kind = max(code.builtinCode, code.deprecatedBuiltinCode)
            weight = graph.tensors[op.inputs[1]] if len(op.inputs) > 1 else None
            if kind == _KINDS.BATCH_MATMUL and _has_scales_of_columns(model, op, weight):
                _be_dense(model, op, weight)
            elif kind == _KINDS.FULLY_CONNECTED and _has_blocks(weight):
                _be_float(model, graph, weight)
            else:
                continue
            changed = True
    if not changed:
        return None
    builder = flatbuffers.Builder(len(content))
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _has_scales_of_columns(model: Any, op: Any, weight: Any) -> bool:
    scale = weight.quantization.scale if weight.quantization is not None else None
    is_plain = not op.builtinOptions.adjX and not op.builtinOptions.adjY
    has_data = model.buffers[weight.buffer].data is not None
    return is_plain and has_data and weight.type == _TYPES.INT8 and len(weight.shape) == 2 and np.size(scale) > 1


def _be_dense(model: Any, op: Any, weight: Any) -> None:
    """Let a product by a constant [inputs, outputs] be FULLY_CONNECTED of [outputs, inputs]."""
    data = np.asarray(model.buffers[weight.buffer].data, np.uint8).reshape(weight.shape)
    _keep(model, weight, np.ascontiguousarray(data.T))
    weight.shape = np.asarray(weight.shape)[::-1].copy()
    weight.quantization.quantizedDimension = 0
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = _KINDS.FULLY_CONNECTED
    code.version = 1
    model.operatorCodes.append(code)
    op.opcodeIndex = len(model.operatorCodes) - 1
    op.inputs = np.asarray([*op.inputs, -1], np.int32)
    op.builtinOptionsType, op.builtinOptions = schema.BuiltinOptions.FullyConnectedOptions, schema.FullyConnectedOptionsT()
    op.builtinOptions.keepNumDims = True


def _has_blocks(weight: Any) -> bool:
    details = None if weight.quantization is None else weight.quantization.details
    return weight.type == _TYPES.INT4 and isinstance(details, schema.BlockwiseQuantizationT)


def _be_float(model: Any, graph: Any, weight: Any) -> None:
    """Let weights of 4 bits, two a byte, be their integers times the scale of their block."""
    scales = graph.tensors[weight.quantization.details.scales]
    factor = np.asarray(model.buffers[scales.buffer].data, np.uint8).view(np.float16).astype(np.float32)
    packed = np.asarray(model.buffers[weight.buffer].data, np.uint8)
    nibbles = np.stack([packed & 15, packed >> 4], axis=1).reshape(*scales.shape, -1).astype(np.int8)
    values = np.where(nibbles > 7, nibbles - 16, nibbles) * factor.reshape(*scales.shape, 1)
    weight.type, weight.quantization = _TYPES.FLOAT32, None
    _keep(model, weight, values.astype(np.float32).reshape(-1).view(np.uint8))


def _keep(model: Any, weight: Any, data: np.ndarray) -> None:
    """Give a weight data of its own."""
    buffer = schema.BufferT()
    buffer.data = data.reshape(-1)
    model.buffers.append(buffer)
    weight.buffer = len(model.buffers) - 1
