"""Canonicalize an ONNX model: one graph of float32 ops without functions, branches and opaque ops.

Functions, the taken branches of If and the steps of Loop and Scan are inlined, Einsums decomposed to MatMuls, 16-bit floats
widened; ONNX Runtime's own ops become standard ones.
Ops that nothing converts and that ONNX defines by simpler ones (Attention of opset 23, SwiGLU) are functions, too.

The result is what a Model calls its source, and what is exported; a model that is canonical already is returned as it is.
Names of tensors stay, but for those of a branch that the graph around it uses, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
import onnx.defs
import onnx.helper
import onnx.inliner
import onnx.shape_inference

from ..symbols import Size
from .control_flow import CONTROL_FLOW, rename, resolve
from .einsum import decompose_einsums
from .float16 import compute_in_float32, has_float16
from .graph import STANDARD_DOMAINS, opset_of
from .runtime_ops import has_runtime_ops, is_rewritten, write_standard

_ALWAYS_DECOMPOSED = frozenset({"Attention"})
"""Ops that have a converter, but for another op of that name."""

_DEFINITIONS = "octavo.definitions"
_MAX_DEFINITIONS = 4
"""How deep an op is defined by others that are."""


def canonicalize(
    source: onnx.ModelProto,
    shapes: Mapping[str, Sequence[Size]],
    supported: Callable[[onnx.NodeProto], bool],
    origin: str,
) -> onnx.ModelProto:
    """Return a canonical model; `source` stays as it is.

    Parameters
    ----------
    source
        A checked model.
    shapes
        Shape of each graph input by name: conditions may depend on them.
    supported
        Whether there is a converter for a node.
    origin
        Name of the file in messages.

    Raises
    ------
    UnsupportedOpError
        For control flow that depends on what is fed.
    """
    model = source
    if any(0 in shape for shape in shapes.values()):
        model = _copy(model)
        _read_no_empty_inputs(model.graph, shapes)
    model = expanded(model, supported)
    if {"Einsum", *CONTROL_FLOW}.intersection(node.op_type for node in model.graph.node) or has_float16(model.graph):
        model = _without_control_flow(_copy(model), shapes, supported, origin)  # first: what else is rewritten may lie in it
        decompose_einsums(model)
        compute_in_float32(model.graph)
    if has_runtime_ops(model.graph, opset_of(model)):
        model = _copy(model) if model is source else model
        write_standard(model, shapes, origin)
    return model


def expanded(model: onnx.ModelProto, supported: Callable[[onnx.NodeProto], bool]) -> onnx.ModelProto:
    """Return a model without functions, and without ops that nothing converts and that ONNX defines by others."""
    if model.functions:
        model = onnx.inliner.inline_local_functions(_copy(model))
    return _decomposed(model, supported)


def is_known(model: onnx.ModelProto, supported: Callable[[onnx.NodeProto], bool]) -> bool:
    """Return whether there is something to do with each node of an expanded model, once enough is known."""
    opset, nodes = opset_of(model), [*model.graph.node]
    while nodes:
        node = nodes.pop()
        inner = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
        if not inner and not supported(node) and not is_rewritten(node, opset) and not _is_defined(node, opset):
            return False
        nodes.extend(node for graph in inner for node in graph.node)
    return True


def _read_no_empty_inputs(graph: onnx.GraphProto, shapes: Mapping[str, Sequence[Size]]) -> None:
    """Let nodes read constants in place of inputs without elements: these have one value, and what depends on it is known."""
    names: dict[str, str] = {}
    for value in graph.input:
        shape = shapes.get(value.name, ())
        if 0 in shape and all(isinstance(size, int) for size in shape):
            names[value.name] = f"{value.name}::empty"
            tensor = onnx.TensorProto(name=names[value.name], dims=[int(str(size)) for size in shape])
            tensor.data_type, tensor.raw_data = value.type.tensor_type.elem_type, b""
            graph.initializer.append(tensor)
    for node in graph.node:
        rename(node, names)


def _without_control_flow(
    model: onnx.ModelProto,
    shapes: Mapping[str, Sequence[Size]],
    supported: Callable[[onnx.NodeProto], bool],
    origin: str,
) -> onnx.ModelProto:
    """Resolve branches and loops, and decompose what lay in them."""
    while CONTROL_FLOW.intersection(node.op_type for node in model.graph.node):
        resolve(model, shapes, origin)
        model = _decomposed(model, supported)
    return model


def _decomposed(model: onnx.ModelProto, supported: Callable[[onnx.NodeProto], bool]) -> onnx.ModelProto:
    """Return the model with ops that ONNX defines by others as these."""
    for _ in range(_MAX_DEFINITIONS):
        if not any(_definition(node, opset_of(model), supported) is not None for node in model.graph.node):
            break
        made = _with_definitions(model, supported)
        if not made.functions:
            break
        model = onnx.inliner.inline_local_functions(made, True)  # definitions may be of an older operator set
    return model


def _definition(node: onnx.NodeProto, opset: int, supported: Callable[[onnx.NodeProto], bool]) -> Any:
    """Return the schema of a standard op that is to be decomposed as ONNX defines it; None for any other."""
    if (
        node.domain not in STANDARD_DOMAINS
        or is_rewritten(node, opset)
        or (supported(node) and node.op_type not in _ALWAYS_DECOMPOSED)
    ):
        return None
    schema: Any = onnx.defs.get_schema(node.op_type, opset, "") if onnx.defs.has(node.op_type, opset, "") else None
    return schema if schema is not None and (schema.has_function or schema.has_context_dependent_function) else None


def _with_definitions(model: onnx.ModelProto, supported: Callable[[onnx.NodeProto], bool]) -> onnx.ModelProto:
    """Return a copy in which each op that is defined by others calls a function of its own.

    ONNX's inliner could look the definitions up itself, but for inputs that are constants or left out.
    """
    opset = opset_of(model)
    made = onnx.shape_inference.infer_shapes(model)  # the inliner asks for types
    typed = made.graph
    types = {value.name: value.type for value in (*typed.input, *typed.value_info, *typed.output)}
    constants = {each.name: onnx.helper.make_tensor_type_proto(each.data_type, each.dims) for each in typed.initializer}
    typed.value_info.extend(onnx.helper.make_value_info(name, kind) for name, kind in constants.items() if name not in types)
    types |= constants
    for number, node in enumerate(made.graph.node):
        schema = _definition(node, opset, supported)
        if schema is None:
            continue
        if schema.has_function:
            function = onnx.FunctionProto()
            function.CopyFrom(schema.function_body)
        else:
            inputs = [types.get(name, onnx.TypeProto()).SerializeToString() for name in node.input]
            function = onnx.FunctionProto.FromString(schema.get_context_dependent_function(node.SerializeToString(), inputs))
        if not all(
            supported(step) or step.op_type in CONTROL_FLOW or _is_defined(step, opset_of(model)) for step in function.node
        ):
            continue  # the message shall name the op that the file has
        _state_defaults(node, schema)
        function.domain, function.name = _DEFINITIONS, f"{node.op_type}_{number}"
        node.domain, node.op_type = function.domain, function.name
        made.functions.append(function)
    if all(each.domain != _DEFINITIONS for each in made.opset_import):
        made.opset_import.append(onnx.helper.make_opsetid(_DEFINITIONS, 1))
    return made


def _state_defaults(node: onnx.NodeProto, schema: Any) -> None:
    """Write out the attributes that a node leaves out: what a definition refers to would be missing."""
    given = {attribute.name for attribute in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.type != onnx.AttributeProto.UNDEFINED:
            node.attribute.append(attribute.default_value)


def _is_defined(node: onnx.NodeProto, opset: int) -> bool:
    """Return whether ONNX defines an op by others."""
    if node.domain not in STANDARD_DOMAINS or not onnx.defs.has(node.op_type, opset, ""):
        return False
    schema: Any = onnx.defs.get_schema(node.op_type, opset, "")
    return schema.has_function or schema.has_context_dependent_function


def _copy(source: onnx.ModelProto) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(source)
    return model
