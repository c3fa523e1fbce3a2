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
import onnx.numpy_helper
from google.protobuf.message import DecodeError

from ...errors import ModelError
from ..fingerprint import Fingerprint
from .graph import graph_inputs

MAX_PROTO_BYTES = 2**31 - 1
"""Protobuf's own limit, in bytes."""


def parse(data: bytes, origin: str) -> onnx.ModelProto:
    """Decode a ModelProto; `origin` names the file in messages."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, RecursionError) as error:
        raise ModelError(f"{origin}: not a complete ONNX model ({_first_line(error)}); is it truncated?") from None
    if not model.ir_version or not model.HasField("graph"):
        raise ModelError(f"{origin}: not an ONNX model: it states no IR version or holds no graph")
    return model


def load_external_data(model: onnx.ModelProto, folder: Path | None, origin: str) -> None:
    """Read the tensors that lie beside the file into `model`; without a folder there must be none."""
    external = [t.name for t in _tensors(model) if t.data_location == onnx.TensorProto.EXTERNAL]
    if not external:
        return
    if folder is None:
        raise ModelError(
            f"{origin}: {len(external)} tensors ({external[0]!r}) lie in another file; give a path instead of a proto"
        )
    try:
        onnx.external_data_helper.load_external_data_for_model(model, os.fspath(folder))
    except Exception as error:
        raise ModelError(
            f"{origin}: cannot read the external data of {external[0]!r}: {_first_line(error)}; put it beside the model"
        ) from None


def check(model: onnx.ModelProto, origin: str) -> None:
    """Raise ModelError where ONNX's own checker finds the model invalid."""
    try:
        onnx.checker.check_model(_with_all_shapes(model))
    except onnx.checker.ValidationError as error:
        raise ModelError(f"{origin}: invalid ONNX model: {_first_line(error)}") from None
    except Exception as error:
        raise ModelError(f"{origin}: ONNX's checker cannot read the model: {_first_line(error)}") from None
    if not model.graph.output:
        raise ModelError(f"{origin}: the graph has no outputs; there is nothing to compute")
    if model.graph.sparse_initializer:
        raise ModelError(f"{origin}: sparse initializers are not supported; store them dense")


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


def _tensors(model: onnx.ModelProto) -> list[Any]:
    tensors = list(model.graph.initializer)
    tensors.extend(attr.t for node in model.graph.node for attr in node.attribute if attr.HasField("t"))
    return tensors


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
        result.add_array(onnx.numpy_helper.to_array(tensor))
    return result.digest()


def _value_info(value: onnx.ValueInfoProto) -> list[Any]:
    tensor = value.type.tensor_type
    return [value.name, tensor.elem_type, [dim.dim_value or dim.dim_param for dim in tensor.shape.dim]]


def _add_nodes(result: Fingerprint, nodes: Any) -> None:
    for node in nodes:
        result.add([node.op_type, "" if node.domain == "ai.onnx" else node.domain, list(node.input), list(node.output)])
        for attribute in sorted(node.attribute, key=lambda attribute: attribute.name):
            value = onnx.helper.get_attribute_value(attribute)
            result.add([attribute.name, attribute.type, attribute.ref_attr_name])
            if isinstance(value, onnx.TensorProto):
                result.add_array(onnx.numpy_helper.to_array(value))
            elif not hasattr(value, "SerializeToString"):
                result.add(value if isinstance(value, int | float | str | bytes) else list(value))
