"""Large tensors of ONNX messages: their bytes lie outside the messages, which are copied and rewritten without them.

Such a tensor's data is external, with a key of this module's as location. `tensor_array` reads any tensor's values.
A key is valid as long as an `OnnxSource` holds its bytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
import onnx
import onnx.helper
import onnx.numpy_helper

from ...errors import ModelError
from ...runtime.mapped import MappedBytes

_PREFIX = "octavo:"
_KNOWN: WeakValueDictionary[str, MappedBytes] = WeakValueDictionary()
_NUMBERS = itertools.count()
_NARROW_BITS: dict[int, int] = {
    **dict.fromkeys((onnx.TensorProto.INT4, onnx.TensorProto.UINT4, onnx.TensorProto.FLOAT4E2M1), 4),
    **dict.fromkeys((onnx.TensorProto.INT2, onnx.TensorProto.UINT2), 2),
    **dict.fromkeys((onnx.TensorProto.FLOAT6E2M3, onnx.TensorProto.FLOAT6E3M2), 6),
}


@dataclass(frozen=True, eq=False, slots=True)
class OnnxSource:
    """An ONNX model whose large tensors lie beside its message.

    Parameters
    ----------
    proto
        The model; the data of its large tensors is external.
    values
        The bytes of these.
    """

    proto: onnx.ModelProto
    values: tuple[MappedBytes, ...] = ()

    def complete(self) -> onnx.ModelProto:
        """Return a copy of the model that holds all its tensors."""
        made = onnx.ModelProto()
        made.CopyFrom(self.proto)
        for tensor in (each for each in all_tensors(made) if is_outside(each)):
            tensor.CopyFrom(onnx.numpy_helper.from_array(tensor_array(tensor), tensor.name))
        return made


def register(values: MappedBytes) -> str:
    """Return a key for the bytes of a large tensor."""
    key = f"{_PREFIX}{next(_NUMBERS)}"
    _KNOWN[key] = values
    return key


def is_outside(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor's bytes lie outside of its message, by a key of this module's."""
    return tensor.data_location == onnx.TensorProto.EXTERNAL and _key(tensor) in _KNOWN


def move_outside(tensor: onnx.TensorProto, values: MappedBytes) -> None:
    """Let a tensor be one whose bytes are `values`."""
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    del tensor.external_data[:]
    tensor.external_data.add(key="location", value=register(values))


def retype(tensor: onnx.TensorProto, data_type: int) -> bool:
    """Let a tensor outside be of another element type, to which its values are cast as they are read; False for others."""
    if not is_outside(tensor):
        return False
    if all(entry.key != "stored" for entry in tensor.external_data):
        tensor.external_data.add(key="stored", value=str(tensor.data_type))
    tensor.data_type = data_type
    return True


def tensor_array(tensor: onnx.TensorProto, *, align: bool = False) -> npt.NDArray[Any]:
    """Return a tensor's values, to be read.

    `align` asks for memory that TVM's tensors may share, now and whenever else these values are asked for.
    """
    if not is_outside(tensor):
        return onnx.numpy_helper.to_array(tensor)
    kept = _KNOWN[_key(tensor)]
    stored = next((int(entry.value) for entry in tensor.external_data if entry.key == "stored"), tensor.data_type)
    size = onnx.helper.tensor_dtype_to_np_dtype(stored).itemsize
    value = _decoded(kept.align(size) if align and stored == tensor.data_type else kept.values, stored, tensor)
    return value if stored == tensor.data_type else value.astype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))


def check_sizes(model: onnx.ModelProto, origin: str) -> None:
    """Raise ModelError for a tensor outside whose bytes are not as many as its shape asks for."""
    for tensor in filter(is_outside, all_tensors(model)):
        values = _KNOWN[_key(tensor)].values
        if tensor.data_type == onnx.TensorProto.STRING:
            raise ModelError(f"{origin}: tensor {tensor.name!r} is text, and its data are plain bytes; is the file damaged?")
        wanted = -(-math.prod(tensor.dims) * _bits(tensor.data_type) // 8)
        if values.size != wanted:
            shape = tuple(tensor.dims)
            raise ModelError(
                f"{origin}: tensor {tensor.name!r} of shape {shape} takes {wanted} bytes, and {values.size} are there; "
                "is the file damaged?"
            )


def without_values(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose tensors outside are empty ones of their type, for who would look for their data; itself without."""
    if not any(map(is_outside, all_tensors(model))):
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for tensor in filter(is_outside, all_tensors(made)):
        del tensor.external_data[:]
        tensor.ClearField("data_location")
        del tensor.dims[:]
        tensor.dims.append(0)
        tensor.raw_data = b""
    return made


def all_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield the tensors of a model: initializers and attributes, those of functions and of branches too."""
    yield from _in_graph(model.graph)
    for function in model.functions:
        yield from _in_nodes(function.node)


def _in_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    yield from _in_nodes(graph.node)


def _in_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for attribute in (attribute for node in nodes for attribute in node.attribute):
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from _in_graph(graph)


def _key(tensor: onnx.TensorProto) -> str:
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def _bits(data_type: int) -> int:
    """Return how many bits an element takes in a file."""
    return _NARROW_BITS.get(data_type) or onnx.helper.tensor_dtype_to_np_dtype(data_type).itemsize * 8


def _decoded(values: npt.NDArray[np.uint8], data_type: int, tensor: onnx.TensorProto) -> npt.NDArray[Any]:
    """Return the values that bytes stand for."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(data_type)
    if dtype.isbuiltin == 1:  # NumPy's own; the others are of a package's, some several elements to a byte
        return values.view(dtype).reshape(tuple(tensor.dims))
    plain = onnx.TensorProto(dims=list(tensor.dims), data_type=data_type, raw_data=values.tobytes())
    return onnx.numpy_helper.to_array(plain)
