"""Read a .tflite file: a checked list of its tensors and operators. Builds no Relax.

FlatBuffers are read in place and Python's reader checks nothing, so everything that conversion follows (offsets, counts, indices,
sizes of constants) is checked here once, before it is followed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from mmap import mmap
from typing import Any

import numpy as np
import numpy.typing as npt
import tflite

from ...errors import ModelError, UnsupportedOpError
from ...ir.identity import TensorId
from ...numerics import INTEGER_RANGE
from ..fingerprint import Fingerprint
from .flat_graph import OP_NAMES
from .flatbuffer import op_number
from .flatten import flattened

_IDENTIFIER = b"TFL3"
_SCHEMA_VERSION = 3
_DTYPES = {
    tflite.TensorType.FLOAT32: "float32",
    tflite.TensorType.FLOAT16: "float16",
    tflite.TensorType.FLOAT64: "float64",
    tflite.TensorType.INT8: "int8",
    tflite.TensorType.UINT8: "uint8",
    tflite.TensorType.INT16: "int16",
    tflite.TensorType.INT32: "int32",
    tflite.TensorType.UINT32: "uint32",
    tflite.TensorType.INT64: "int64",
    tflite.TensorType.UINT64: "uint64",
    tflite.TensorType.BOOL: "bool",
}
_ELEMENT_NAMES = {code: name.lower() for name, code in vars(tflite.TensorType).items() if isinstance(code, int)}
_OPTION_NAMES = {code: name for name, code in vars(tflite.BuiltinOptions).items() if isinstance(code, int)}


@dataclass(frozen=True, kw_only=True, slots=True)
class TfliteTensor:
    """One tensor as the file states it; `value` is None unless it is a constant, scale and zero_point unless quantized.

    `signature` is its shape with -1 for dimensions of any size; empty where the file has none.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    value: npt.NDArray[Any] | None
    scale: tuple[float, ...] = ()
    zero_point: tuple[int, ...] = ()
    axis: int = 0
    signature: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TfliteOp:
    """One operator: its name in TFLite's terms, tensor indices (-1 for an absent input), and its options for comparison."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TfliteGraph:
    """The one subgraph of a file, or what it was made (`flatten.py`), in execution order.

    `starts` are the first values of variables that are inputs, by their names.
    """

    data: bytes | mmap
    tensors: tuple[TfliteTensor, ...]
    ops: tuple[TfliteOp, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    starts: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict[str, npt.NDArray[Any]])


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TfliteSource:
    """What a Model keeps of its file: the graph, and the TensorId of each of its tensors."""

    graph: TfliteGraph
    ids: tuple[TensorId, ...]


def is_tflite(data: bytes | mmap) -> bool:
    """Whether the bytes carry TFLite's file identifier."""
    return data[4:8] == _IDENTIFIER


def read(
    data: bytes | mmap, origin: str, signature: str | None = None, values: Mapping[str, npt.NDArray[Any]] | None = None
) -> TfliteGraph:
    """Read and check a file, of several subgraphs that of a signature or the first; `origin` names it in messages.

    Inputs that have `values`, by name, are constants.

    Raises
    ------
    ModelError
        If it is truncated or corrupt, or has no such signature.
    UnsupportedOpError
        If a tensor has an element type that Octavo does not know.
    """
    try:
        return _read(data, origin, signature, values or {})
    except (ModelError, UnsupportedOpError):
        raise
    except Exception as error:
        # Whatever a reader of unchecked offsets may stumble over: struct.error, IndexError, ValueError, UnicodeDecodeError.
        raise ModelError(f"{origin}: truncated or corrupt .tflite file ({type(error).__name__} while reading it)") from None


def _read(data: bytes | mmap, origin: str, signature: str | None, values: Mapping[str, npt.NDArray[Any]]) -> TfliteGraph:
    model = tflite.Model.GetRootAs(data, 0)
    if model.Version() != _SCHEMA_VERSION:
        raise ModelError(f"{origin}: TFLite schema version {model.Version()} is not {_SCHEMA_VERSION}; is the file corrupt?")
    counts = (model.SubgraphsLength(), model.OperatorCodesLength(), model.BuffersLength())
    _check_count(max(counts), data, origin)
    if not counts[0]:
        raise ModelError(f"{origin}: holds no subgraph; is the file corrupt?")
    for index in range(counts[0]):
        graph: Any = model.Subgraphs(index)
        _check_count(
            max(graph.TensorsLength(), graph.OperatorsLength(), graph.InputsLength(), graph.OutputsLength()), data, origin
        )
    plain = flattened(model, data, origin, signature, values)
    if plain.data is not data:
        data, model = plain.data, tflite.Model.GetRootAs(plain.data, 0)
    graph = model.Subgraphs(0)
    ops = tuple(_op(model, graph.Operators(index), graph.TensorsLength(), origin) for index in range(graph.OperatorsLength()))
    inputs = _indices(graph.InputsAsNumpy(), graph.TensorsLength(), origin, minimum=0)
    outputs = _indices(graph.OutputsAsNumpy(), graph.TensorsLength(), origin, minimum=0)
    computed = {index for op in ops for index in op.outputs} | set(inputs)
    tensors = tuple(
        _tensor(model, graph.Tensors(index), origin, is_computed=index in computed, is_input=index in inputs)
        for index in range(graph.TensorsLength())
    )
    result = TfliteGraph(data=data, tensors=tensors, ops=ops, inputs=inputs, outputs=outputs, starts=plain.starts)
    _check_order(result, origin)
    return result


def _check_count(count: int, data: bytes | mmap, origin: str) -> None:
    """An entry of a list takes 4 bytes at least: a longer list than that is garbage."""
    if count > len(data) // 4:
        raise ModelError(f"{origin}: truncated or corrupt .tflite file (a list of {count} entries in {len(data)} bytes)")


def _indices(values: Any, limit: int, origin: str, *, minimum: int) -> tuple[int, ...]:
    """Return a list of tensor indices; the reader gives the number 0 for an absent list."""
    indices = tuple(int(value) for value in values) if isinstance(values, np.ndarray) else ()
    if any(not minimum <= index < limit for index in indices):
        raise ModelError(f"{origin}: corrupt .tflite file (tensor index out of range in {indices}, there are {limit} tensors)")
    return indices


def _op(model: Any, op: Any, tensor_count: int, origin: str) -> TfliteOp:
    if op.OpcodeIndex() >= model.OperatorCodesLength():
        raise ModelError(f"{origin}: corrupt .tflite file (operator code {op.OpcodeIndex()} does not exist)")
    code = model.OperatorCodes(op.OpcodeIndex())
    number = op_number(code)
    name = OP_NAMES.get(number, f"operator code {number}")
    if name == "CUSTOM":
        name = f"CUSTOM {(code.CustomCode() or b'').decode()}"
    return TfliteOp(
        name=name,
        inputs=_indices(op.InputsAsNumpy(), tensor_count, origin, minimum=-1),
        outputs=_indices(op.OutputsAsNumpy(), tensor_count, origin, minimum=0),
        options=_options(op),
    )


def _options(op: Any) -> dict[str, Any]:
    """Return every field of the op's options, by the accessor's name."""
    options_class = getattr(tflite, _OPTION_NAMES.get(op.BuiltinOptionsType(), "NONE"), None)
    table = op.BuiltinOptions()
    fields: dict[str, Any] = {"custom": bytes(op.CustomOptionsAsNumpy()) if op.CustomOptionsLength() else b""}
    if options_class is None or table is None:
        return fields
    options = options_class()
    options.Init(table.Bytes, table.Pos)
    for name, method in vars(options_class).items():
        takes_self_only = callable(method) and method.__code__.co_argcount == 1
        if takes_self_only and not name.startswith("_"):
            fields[name] = getattr(options, name)()
    return fields


def _tensor(model: Any, tensor: Any, origin: str, *, is_computed: bool, is_input: bool) -> TfliteTensor:
    name = (tensor.Name() or b"").decode()
    raw_shape = tensor.ShapeAsNumpy()
    shape = tuple(int(dim) for dim in raw_shape) if isinstance(raw_shape, np.ndarray) else ()
    if any(dim < 0 for dim in shape):
        raise ModelError(f"{origin}: tensor {name!r} has shape {shape}; sizes must be known and not negative")
    dtype = _DTYPES.get(tensor.Type())
    if dtype is None:
        kind = _ELEMENT_NAMES.get(tensor.Type(), f"elements of type {tensor.Type()}")
        raise UnsupportedOpError(
            f"{origin}: tensor {name!r} holds {kind}, which is not supported; "
            "convert the part of the model that has numbers alone, and compute the other one outside of it"
        )
    if tensor.Buffer() >= model.BuffersLength():
        raise ModelError(f"{origin}: corrupt .tflite file (buffer {tensor.Buffer()} of tensor {name!r} does not exist)")
    if tensor.IsVariable() and not is_input:  # one that is fed is an input as any other
        raise UnsupportedOpError(
            f"{origin}: tensor {name!r} is a variable, which keeps its state between calls and is not supported; "
            "convert an LSTM or GRU unrolled (unroll=True in Keras), so that its state is computed in the graph"
        )
    if tensor.Sparsity() is not None:
        raise UnsupportedOpError(f"{origin}: tensor {name!r} is sparse, which is not supported; store it dense")
    buffer = model.Buffers(tensor.Buffer())
    value = None if is_computed else _constant(buffer, name, shape, dtype, origin)
    # Some converters leave parameters on float tensors; they mean nothing there.
    quantization = tensor.Quantization() if dtype in INTEGER_RANGE else None
    scale, zero_point, axis = _affine(quantization, name, shape, origin)
    low, high = INTEGER_RANGE.get(dtype, (0, 0))
    if any(not low <= point <= high for point in zero_point):
        found = f"zero points {zero_point[:4]} outside [{low}; {high}]"
        raise ModelError(f"{origin}: tensor {name!r} has {found}, the range of {dtype}")
    facts: Any = {"name": name, "shape": shape, "dtype": dtype, "value": value, "signature": _signature(tensor, shape)}
    return TfliteTensor(**facts, scale=scale, zero_point=zero_point, axis=axis)


def _signature(tensor: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    raw = tensor.ShapeSignatureAsNumpy()
    signature = tuple(int(dim) for dim in raw) if isinstance(raw, np.ndarray) else ()
    return signature if len(signature) == len(shape) else ()


def _constant(buffer: Any, name: str, shape: tuple[int, ...], dtype: str, origin: str) -> npt.NDArray[Any] | None:
    size = buffer.DataLength()
    expected = math.prod(shape) * np.dtype(dtype).itemsize
    if size == 0 and expected:
        return None
    data = buffer.DataAsNumpy() if size else np.zeros(0, np.uint8)
    if size != expected or data.size != size:
        raise ModelError(
            f"{origin}: truncated or corrupt .tflite file (tensor {name!r} needs {expected} bytes, there are {size})"
        )
    return data.view(dtype).reshape(shape)


def _affine(quantization: Any, name: str, shape: tuple[int, ...], origin: str) -> tuple[tuple[float, ...], tuple[int, ...], int]:
    """Return scales, zero points and axis; all empty for a tensor that is not quantized."""
    if quantization is None or quantization.ScaleLength() == 0:
        return (), (), 0
    scale = tuple(float(value) for value in quantization.ScaleAsNumpy())
    points = tuple(int(v) for v in quantization.ZeroPointAsNumpy()) if quantization.ZeroPointLength() else (0,) * len(scale)
    if not any(scale):
        # How some converters say "not quantized", on the shape of a reshape for one.
        return (), (), 0
    axis = quantization.QuantizedDimension()
    if len(points) != len(scale) or not all(math.isfinite(value) and value > 0 for value in scale):
        raise ModelError(f"{origin}: tensor {name!r} has scales {scale[:4]} and zero points {points[:4]} that make no sense")
    if len(scale) > 1 and (not 0 <= axis < len(shape) or shape[axis] != len(scale)):
        raise ModelError(f"{origin}: tensor {name!r} of shape {shape} has {len(scale)} scales on axis {axis}")
    return scale, points, axis


def _check_order(graph: TfliteGraph, origin: str) -> None:
    """Every tensor an op reads must be an input, a constant or made by an earlier op, and no tensor is made twice."""
    if not graph.outputs:
        raise ModelError(f"{origin}: has no outputs; there is nothing to run")
    made = [*graph.inputs, *(index for op in graph.ops for index in op.outputs)]
    twice = next((index for index in made if made.count(index) > 1), None) if len(set(made)) < len(made) else None
    if twice is not None:
        raise ModelError(f"{origin}: corrupt .tflite file (tensor {graph.tensors[twice].name!r} is an input or a result twice)")
    known = set(graph.inputs) | {index for index, tensor in enumerate(graph.tensors) if tensor.value is not None} | {-1}
    for op in graph.ops:
        missing = [index for index in op.inputs if index not in known]
        if missing:
            raise ModelError(f"{origin}: op {op.name} reads tensor {graph.tensors[missing[0]].name!r}, which no earlier op makes")
        known.update(op.outputs)
    for index in graph.outputs:
        if index not in known:
            raise ModelError(f"{origin}: nothing computes output {graph.tensors[index].name!r}")


def fingerprint(graph: TfliteGraph) -> str:
    """Hash a TFLite graph."""
    result = Fingerprint("tflite")
    result.add([graph.inputs, graph.outputs])
    for op in graph.ops:
        result.add([op.name, op.inputs, op.outputs, op.options])
    for tensor in graph.tensors:
        result.add([tensor.name, tensor.shape, tensor.dtype, tensor.scale, tensor.zero_point, tensor.axis])
        if tensor.value is not None:
            result.add_array(tensor.value)
    for name, value in graph.starts.items():
        result.add(name)
        result.add_array(value)
    return result.digest()
