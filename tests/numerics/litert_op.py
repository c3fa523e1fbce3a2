"""Runs one quantized op in LiteRT: writes a TFLite model of that op alone, so that oracles have something to agree with."""

from dataclasses import dataclass

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter

TYPES = {
    "uint8": schema.TensorType.UINT8,
    "int8": schema.TensorType.INT8,
    "int16": schema.TensorType.INT16,
    "int32": schema.TensorType.INT32,
    "int64": schema.TensorType.INT64,
}


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """A tensor of the model: shape, dtype, scale (several along `axis`), zero point; `values` feed an input or a constant."""

    shape: tuple[int, ...]
    dtype: str
    scale: float | tuple[float, ...] | None = None
    axis: int = 0
    zero_point: int = 0
    values: np.ndarray | None = None
    constant: bool = False


def run(operator: str, options: object | None, inputs: list[Quantized], output: Quantized, *, version: int = 2) -> np.ndarray:
    """Return what LiteRT computes for `operator` (its name in the schema, e.g. "ADD") of a version, on one thread."""
    model = schema.ModelT()
    model.version = 3
    model.buffers = [schema.BufferT()]
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = getattr(schema.BuiltinOperator, operator)
    code.version = version
    model.operatorCodes = [code]
    graph = schema.SubGraphT()
    graph.tensors = [_tensor(f"t{i}", tensor, model.buffers) for i, tensor in enumerate([*inputs, output])]
    op = schema.OperatorT()
    op.inputs, op.outputs = list(range(len(inputs))), [len(inputs)]
    if options is not None:
        op.builtinOptionsType = getattr(schema.BuiltinOptions, type(options).__name__.removesuffix("T"))
        op.builtinOptions = options
    graph.operators = [op]
    fed = [i for i, tensor in enumerate(inputs) if not tensor.constant]
    graph.inputs, graph.outputs = fed, op.outputs
    model.subgraphs = [graph]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    interpreter = Interpreter(model_content=bytes(builder.Output()), num_threads=1)
    interpreter.allocate_tensors()
    for detail, index in zip(interpreter.get_input_details(), fed, strict=True):
        interpreter.set_tensor(detail["index"], inputs[index].values)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def _tensor(name: str, tensor: Quantized, buffers: list[schema.BufferT]) -> schema.TensorT:
    result = schema.TensorT()
    result.name, result.shape, result.type, result.buffer = name, list(tensor.shape), TYPES[tensor.dtype], 0
    if tensor.constant:
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(tensor.values.tobytes(), np.uint8)
        buffers.append(buffer)
        result.buffer = len(buffers) - 1
    if tensor.scale is not None:
        result.quantization = schema.QuantizationParametersT()
        scales = list(tensor.scale) if isinstance(tensor.scale, tuple) else [tensor.scale]
        result.quantization.scale, result.quantization.zeroPoint = scales, [tensor.zero_point] * len(scales)
        result.quantization.quantizedDimension = tensor.axis
    return result
