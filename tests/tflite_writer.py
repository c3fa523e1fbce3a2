"""Write small .tflite files for tests: tensors and operators from plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
import tflite

_TYPES = {
    "float32": tflite.TensorType.FLOAT32,
    "float16": tflite.TensorType.FLOAT16,
    "int8": tflite.TensorType.INT8,
    "uint8": tflite.TensorType.UINT8,
    "int16": tflite.TensorType.INT16,
    "int32": tflite.TensorType.INT32,
    "int64": tflite.TensorType.INT64,
    "bool": tflite.TensorType.BOOL,
    "string": tflite.TensorType.STRING,
    "resource": tflite.TensorType.RESOURCE,
    "int4": tflite.TensorType.INT4,
}

_ALIGNMENT = 16
"""Of constants behind the FlatBuffer."""


@dataclass(kw_only=True)
class Tensor:
    """A tensor; a constant where it has a value."""

    name: str | None
    shape: tuple[int, ...]
    dtype: str = "float32"
    value: np.ndarray | None = None
    scale: tuple[float, ...] = ()
    zero_point: tuple[int, ...] = ()
    axis: int = 0
    signature: tuple[int, ...] = ()
    is_variable: bool = False
    scales_of_blocks: int | None = None
    """The tensor that has a scale for each block of a row; a type of the schema that the package `tflite` does not know."""


@dataclass(kw_only=True)
class Op:
    """An operator; `options` are fields of `<options_class>`, by the names the schema's accessors have."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options_class: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    intermediates: tuple[int, ...] = ()


def _vector(builder: Any, values: Any, dtype: type) -> int:
    return builder.CreateNumpyVector(np.asarray(values, dtype))


def _table(builder: Any, prefix: str, fields: dict[str, Any]) -> int:
    getattr(tflite, f"{prefix}Start")(builder)
    for name, value in fields.items():
        getattr(tflite, f"{prefix}Add{name}")(builder, value)
    return getattr(tflite, f"{prefix}End")(builder)


def _offsets(builder: Any, offsets: list[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return builder.EndVector()


def _tensor(builder: Any, tensor: Tensor, buffer: int) -> int:
    fields: dict[str, Any] = {"Type": _TYPES[tensor.dtype], "Buffer": buffer}
    if tensor.is_variable:
        fields["IsVariable"] = True
    if tensor.name is not None:
        fields["Name"] = builder.CreateString(tensor.name)
    fields["Shape"] = _vector(builder, tensor.shape, np.int32)
    if tensor.signature:
        fields["ShapeSignature"] = _vector(builder, tensor.signature, np.int32)
    if tensor.scale:
        scale, zero_point = _vector(builder, tensor.scale, np.float32), _vector(builder, tensor.zero_point, np.int64)
        affine = {"Scale": scale, "ZeroPoint": zero_point, "QuantizedDimension": tensor.axis}
        fields["Quantization"] = _table(builder, "QuantizationParameters", affine)
    if tensor.scales_of_blocks is not None:
        builder.StartObject(3)
        builder.PrependInt32Slot(0, tensor.scales_of_blocks, 0)
        details = {"DetailsType": 2, "Details": builder.EndObject()}
        fields["Quantization"] = _table(builder, "QuantizationParameters", details)
    return _table(builder, "Tensor", fields)


def _operator(builder: Any, op: Op, code: int) -> int:
    fields: dict[str, Any] = {"OpcodeIndex": code}
    if op.options_class:
        plain = {k: _option(builder, v) for k, v in op.options.items()}
        union = "BuiltinOptions" if hasattr(tflite.BuiltinOptions, op.options_class) else "BuiltinOptions2"
        fields[union] = _table(builder, op.options_class, plain)
        fields[f"{union}Type"] = getattr(getattr(tflite, union), op.options_class)
    fields["Inputs"] = _vector(builder, op.inputs, np.int32)
    fields["Outputs"] = _vector(builder, op.outputs, np.int32)
    if op.intermediates:
        fields["Intermediates"] = _vector(builder, op.intermediates, np.int32)
    return _table(builder, "Operator", fields)


def _option(builder: Any, value: Any) -> Any:
    if isinstance(value, list):
        return _vector(builder, value, np.int32)
    if isinstance(value, bytes):
        return builder.CreateByteVector(value)
    return builder.CreateString(value) if isinstance(value, str) else value


Graph = tuple[list[Tensor], list[Op], tuple[int, ...], tuple[int, ...]]
"""Tensors, operators, inputs and outputs."""


def _signature(builder: Any, name: str, place: int, graph: Graph) -> int:
    fields: dict[str, Any] = {"SignatureKey": builder.CreateString(name), "SubgraphIndex": place}
    for field_name, indices in zip(("Inputs", "Outputs"), graph[2:], strict=True):
        entries = [{"Name": builder.CreateString(str(graph[0][index].name)), "TensorIndex": index} for index in indices]
        fields[field_name] = _offsets(builder, [_table(builder, "TensorMap", entry) for entry in entries])
    return _table(builder, "SignatureDef", fields)


def write(
    tensors: list[Tensor],
    ops: list[Op],
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
    *others: Graph,
    old_codes: bool = True,
    signatures: Mapping[str, int] | None = None,
    behind: int | None = None,
) -> bytes:
    """Return the bytes of a file; buffer 0 is the empty one, as TFLite wants it.

    `others` are subgraphs that ops call, or that `signatures` name by their places: each takes and gives what its subgraph does.
    Without `old_codes` the 8-bit field of operator codes is left out. Constants lie within the FlatBuffer or, as those of large
    files do, `behind` it, from that place on.
    """
    builder = flatbuffers.Builder(1024)
    buffers, codes, graphs, outside = [_table(builder, "Buffer", {})], [], [], b""
    all_graphs = [(tensors, ops, inputs, outputs), *others]
    for graph_tensors, graph_ops, graph_inputs, graph_outputs in all_graphs:
        tensor_offsets, op_offsets = [], []
        for tensor in graph_tensors:
            index = 0
            if tensor.value is not None:
                index = len(buffers)
                data = np.ascontiguousarray(tensor.value).reshape(-1).view(np.uint8)
                if behind is None:
                    buffers.append(_table(builder, "Buffer", {"Data": builder.CreateNumpyVector(data)}))
                else:
                    buffers.append(_table(builder, "Buffer", {"Offset": behind + len(outside), "Size": data.size}))
                    outside += data.tobytes() + bytes(-data.size % _ALIGNMENT)
            tensor_offsets.append(_tensor(builder, tensor, index))
        for op in graph_ops:
            number = getattr(tflite.BuiltinOperator, op.name)
            old = {"DeprecatedBuiltinCode": min(number, 127)} if old_codes else {}
            op_offsets.append(_operator(builder, op, len(codes)))
            codes.append(_table(builder, "OperatorCode", {"BuiltinCode": number, "Version": 1, **old}))
        graph = {
            "Tensors": _offsets(builder, tensor_offsets),
            "Inputs": _vector(builder, graph_inputs, np.int32),
            "Outputs": _vector(builder, graph_outputs, np.int32),
            "Operators": _offsets(builder, op_offsets),
        }
        graphs.append(_table(builder, "SubGraph", graph))
    model = {
        "OperatorCodes": _offsets(builder, codes),
        "Subgraphs": _offsets(builder, graphs),
        "Buffers": _offsets(builder, buffers),
        "Version": 3,
    }
    if signatures:
        defined = [_signature(builder, name, place, all_graphs[place]) for name, place in signatures.items()]
        model["SignatureDefs"] = _offsets(builder, defined)
    builder.Finish(_table(builder, "Model", model), b"TFL3")
    return bytes(builder.Output()).ljust(behind or 0, b"\0") + outside
