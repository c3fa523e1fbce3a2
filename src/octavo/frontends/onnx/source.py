"""Read an ONNX model: one ModelProto that is complete, valid and holds only what can be imported. Builds no Relax.

The caller's proto and the file's own are never changed; what must be rewritten is rewritten in a copy by `prepare`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx
import onnx.checker
import onnx.external_data_helper
import onnx.helper
import onnx.onnx_cpp2py_export.checker
from google.protobuf.message import DecodeError, EncodeError

from ...errors import ModelError
from ...runtime.mapped import MappedBytes, contents
from ..fingerprint import Fingerprint
from .graph import MICROSOFT, graph_inputs, opset_of
from .large_tensors import OnnxSource, all_tensors, check_sizes, is_outside, move_outside, register, tensor_array, without_values
from .runtime_ops import is_of_runtime
from .wire_format import LARGE_BYTES, WireError, split_large

_checker: Any = onnx.onnx_cpp2py_export.checker


def parse(data: Any, origin: str) -> OnnxSource:
    """Decode a ModelProto, its large tensors aside.

    Parameters
    ----------
    data
        The file's bytes, which the result goes on to read.
    origin
        Names the file in messages.
    """
    model, kept = onnx.ModelProto(), list[MappedBytes]()

    def key_of(offset: int, length: int) -> str:
        kept.append(MappedBytes(data, offset, length))
        return register(kept[-1])

    try:
        model.ParseFromString(split_large(data, key_of))
    except (DecodeError, RecursionError, WireError) as error:
        raise ModelError(f"{origin}: not a complete ONNX model ({_first_line(error)}); is it truncated?") from None
    if not model.ir_version or not model.HasField("graph"):
        raise ModelError(f"{origin}: not an ONNX model: it states no IR version or holds no graph")
    return OnnxSource(model, tuple(kept))


def of_proto(model: onnx.ModelProto, origin: str) -> OnnxSource:
    """Return a model of the caller's, its large tensors aside; without these it is the caller's own message."""
    if all(len(tensor.raw_data) < LARGE_BYTES for tensor in all_tensors(model)):
        return OnnxSource(model)
    try:
        return parse(model.SerializeToString(), origin)
    except (EncodeError, ValueError) as error:
        advice = "save it with external data and give the path"
        raise ModelError(f"{origin}: takes more than the 2 GB of a message ({_first_line(error)}); {advice}") from None


def load_external_data(source: OnnxSource, folder: Path | None, origin: str) -> OnnxSource:
    """Return a model with the tensors that lie beside the file; without a folder there must be none."""
    external = [t for t in all_tensors(source.proto) if t.data_location == onnx.TensorProto.EXTERNAL and not is_outside(t)]
    if not external:
        return source
    if folder is None:
        raise ModelError(
            f"{origin}: {len(external)} tensors ({external[0].name!r}) lie in another file; give a path instead of a proto"
        )
    proto, files, kept = source.proto, dict[str, Any](), list(source.values)
    for tensor in external:
        try:
            values = _external(tensor, folder, files)
        except Exception as error:
            raise ModelError(
                f"{origin}: cannot read the external data of {tensor.name!r}: {_first_line(error)}; put it beside the model"
            ) from None
        if values.values.size >= LARGE_BYTES:
            move_outside(tensor, values)
            kept.append(values)
        else:
            tensor.raw_data = values.values.tobytes()
            tensor.ClearField("data_location")
            del tensor.external_data[:]
    return OnnxSource(proto, tuple(kept))


def _external(tensor: onnx.TensorProto, folder: Path, files: dict[str, Any]) -> MappedBytes:
    """Return the bytes that a tensor names; `files` are the contents of those that were opened already."""
    info = onnx.external_data_helper.ExternalDataInfo(tensor)
    if info.location not in files:
        # ONNX's own function opens it: it refuses paths that lead out of the folder, and links.
        number = _checker._open_external_data(os.fspath(folder) or ".", info.location, tensor.name, True)
        with os.fdopen(number, "rb") as file:
            files[info.location] = contents(file)
    data = files[info.location]
    offset = int(info.offset or 0)
    length = len(data) - offset if info.length is None else int(info.length)
    if length < 0 or offset + length > len(data):
        what = f"bytes {offset} to {offset + max(length, 0)} of {info.location!r}"
        raise ValueError(f"it is {what}, which has {len(data)}")
    return MappedBytes(data, offset, length)


def check(model: onnx.ModelProto, origin: str) -> None:
    """Raise ModelError where ONNX's own checker finds the model invalid."""
    try:
        onnx.checker.check_model(_without_runtime_ops(_with_all_shapes(without_values(model))))
    except onnx.checker.ValidationError as error:
        raise ModelError(f"{origin}: invalid ONNX model: {_first_line(error)}") from None
    except Exception as error:
        raise ModelError(f"{origin}: ONNX's checker cannot read the model: {_first_line(error)}") from None
    if not model.graph.output:
        raise ModelError(f"{origin}: the graph has no outputs; there is nothing to compute")
    check_sizes(model, origin)


def _with_all_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose inputs and outputs all state a shape: the checker wants one, though it can be inferred."""
    values = [value for value in (*model.graph.input, *model.graph.output) if value.type.HasField("tensor_type")]
    if all(value.type.tensor_type.HasField("shape") for value in values):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in (*copy.graph.input, *copy.graph.output):
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.shape.SetInParent()
    return copy


def _without_runtime_ops(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose ops that only ONNX Runtime knows in a set of ONNX are in its own set, which is not checked."""
    opset = opset_of(model)
    if not any(is_of_runtime(node, opset) for node in model.graph.node):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in (node for node in copy.graph.node if is_of_runtime(node, opset)):
        node.domain = MICROSOFT
    if all(item.domain != MICROSOFT for item in copy.opset_import):
        copy.opset_import.append(onnx.helper.make_opsetid(MICROSOFT, 1))
    return copy


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0].strip().rstrip(".") if text else type(error).__name__


def fingerprint(model: onnx.ModelProto) -> str:
    """Hash an ONNX model whose external data has been read."""
    result = Fingerprint("onnx")
    result.add(sorted((opset.domain, opset.version) for opset in model.opset_import))
    result.add([_value_info(value) for value in graph_inputs(model.graph)])
    result.add([value.name for value in model.graph.output])
    for function in model.functions:
        result.add([function.domain, function.name, list(function.input), list(function.output)])
        _add_nodes(result, function.node)
    _add_nodes(result, model.graph.node)
    for tensor in sorted(model.graph.initializer, key=lambda tensor: tensor.name):
        result.add(tensor.name)
        result.add_array(tensor_array(tensor))
    return result.digest()


def _value_info(value: onnx.ValueInfoProto) -> list[Any]:
    tensor = value.type.tensor_type
    return [value.name, tensor.elem_type, [dim.dim_value or dim.dim_param for dim in tensor.shape.dim]]


def _add_nodes(result: Fingerprint, nodes: Any) -> None:
    for node in nodes:
        result.add([node.op_type, "" if node.domain == "ai.onnx" else node.domain, list(node.input), list(node.output)])
        for attribute in sorted(node.attribute, key=lambda attribute: attribute.name):
            result.add([attribute.name, attribute.type, attribute.ref_attr_name])
            if attribute.ref_attr_name:
                continue  # what a function is called with
            value = onnx.helper.get_attribute_value(attribute)
            if isinstance(value, onnx.TensorProto):
                result.add_array(tensor_array(value))
            elif not hasattr(value, "SerializeToString"):
                result.add(value if isinstance(value, int | float | str | bytes) else list(value))
