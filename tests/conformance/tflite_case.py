"""One TFLite op as a case: its tensors and options, several cases as one file, and what LiteRT computes for that file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter

_TYPES = {
    "float32": schema.TensorType.FLOAT32,
    "float16": schema.TensorType.FLOAT16,  # constants only: each gets a DEQUANTIZE
    "int8": schema.TensorType.INT8,
    "uint8": schema.TensorType.UINT8,
    "int16": schema.TensorType.INT16,
    "int32": schema.TensorType.INT32,
    "int64": schema.TensorType.INT64,
    "bool": schema.TensorType.BOOL,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Value:
    """A tensor: a constant where it has `data`, quantized where it has `scale` (one entry per tensor, several per axis)."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    scale: tuple[float, ...] = ()
    zero_point: tuple[int, ...] = ()
    axis: int = 0
    data: np.ndarray | None = None

    @staticmethod
    def constant(data: np.ndarray, **fields: Any) -> Value:
        """Make a constant of an array."""
        return Value(shape=data.shape, dtype=str(data.dtype), data=data, **fields)


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """One operator with its options, bytes for one whose `op` is "CUSTOM name"; inputs without data are fed, None is absent."""

    op: str
    label: str
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value, ...]
    options: Any = None
    fed: tuple[np.ndarray, ...] = field(default=())

    @property
    def kind(self) -> str:
        """Dtype of its first activation; how its weights are kept where that is float."""
        activations = [value for value in self.inputs if value is not None and value.data is None]
        first = next((value for value in activations if value.dtype != "bool"), activations[0])
        weights = [value.dtype for value in self.inputs if value is not None and value.data is not None]
        if first.dtype != "float32":
            return first.dtype
        return "dynamic range" if "int8" in weights else "float16 weights" if "float16" in weights else "float32"


def write(cases: list[Case]) -> bytes:
    """Return a file that holds all cases side by side; inputs and outputs are in the order of the cases."""
    model = schema.ModelT()
    model.version = 3
    model.buffers = [schema.BufferT()]
    model.operatorCodes = []
    graph = schema.SubGraphT()
    graph.tensors, graph.operators, graph.inputs, graph.outputs = [], [], [], []
    codes: dict[str, int] = {}
    for number, case in enumerate(cases):
        operator = schema.OperatorT()
        operator.opcodeIndex = _code(case.op, model, codes)
        operator.inputs, operator.outputs = [], []
        for position, value in enumerate((*case.inputs, *case.outputs)):
            index = -1
            if value is not None and value.dtype == "float16":
                index = _dequantized_half(f"c{number}_t{position}", value, model, graph, codes)
            elif value is not None:
                index = len(graph.tensors)
                graph.tensors.append(_tensor(f"c{number}_t{position}", value, model.buffers))
            is_input = position < len(case.inputs)
            (operator.inputs if is_input else operator.outputs).append(index)
            if not is_input:
                graph.outputs.append(index)
            elif value is not None and value.data is None:
                graph.inputs.append(index)
        if isinstance(case.options, bytes):
            operator.customOptions = np.frombuffer(case.options, np.uint8)
        elif case.options is not None:
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, type(case.options).__name__.removesuffix("T"))
            operator.builtinOptions = case.options
        graph.operators.append(operator)
    model.subgraphs = [graph]
    builder = flatbuffers.Builder(4096)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _dequantized_half(name: str, value: Value, model: Any, graph: Any, codes: dict[str, int]) -> int:
    """Add a float16 constant and the DEQUANTIZE that converters put behind it; return the index of the float32 tensor."""
    first = len(graph.tensors)
    graph.tensors += [_tensor(f"{name}_half", value, model.buffers), _tensor(name, Value(shape=value.shape), model.buffers)]
    operator = schema.OperatorT()
    operator.opcodeIndex = _code("DEQUANTIZE", model, codes)
    operator.inputs, operator.outputs = [first], [first + 1]
    graph.operators.append(operator)
    return first + 1


def _code(op: str, model: Any, codes: dict[str, int]) -> int:
    """Return the index of an operator code, adding it where it is new."""
    if op in codes:
        return codes[op]
    codes[op] = len(codes)
    code = schema.OperatorCodeT()
    name, *custom = op.split()
    code.builtinCode, code.customCode = getattr(schema.BuiltinOperator, name), custom[0] if custom else None
    code.deprecatedBuiltinCode = min(code.builtinCode, 127)
    code.version = 2 if op == "BROADCAST_TO" else 1  # which LiteRT has no first version of
    model.operatorCodes.append(code)
    return codes[op]


def _tensor(name: str, value: Value, buffers: list[Any]) -> Any:
    tensor = schema.TensorT()
    tensor.name, tensor.shape, tensor.type, tensor.buffer = name, list(value.shape), _TYPES[value.dtype], 0
    if value.data is not None:
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(np.ascontiguousarray(value.data).tobytes(), np.uint8)
        tensor.buffer = len(buffers)
        buffers.append(buffer)
    if value.scale:
        tensor.quantization = schema.QuantizationParametersT()
        tensor.quantization.scale = list(value.scale)
        tensor.quantization.zeroPoint = list(value.zero_point)
        tensor.quantization.quantizedDimension = value.axis
    return tensor


def litert(data: bytes, cases: list[Case]) -> list[list[np.ndarray]]:
    """Return the outputs of each case as LiteRT computes them, on one thread."""
    interpreter = Interpreter(model_content=data, num_threads=1)
    interpreter.allocate_tensors()
    fed = [array for case in cases for array in case.fed]
    for detail, array in zip(interpreter.get_input_details(), fed, strict=True):
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    outputs = iter(interpreter.get_output_details())
    return [[interpreter.get_tensor(next(outputs)["index"]) for _ in case.outputs] for case in cases]
