"""Write ONNX Runtime's own ops (com.microsoft), TensorScatter and RotaryEmbedding as standard ops: what its optimizer and model
builders make of transformers then is what an exporter writes, and is imported, quantized and exported like it.

Works on protos. Ops on packed weights and QOperator stay: `prepare` reads them. Shapes are inferred where a rank is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx
import onnx.helper

from ...ir.identity import NameSupply
from ..frontend import conversion_errors
from ..symbols import Size, size_text
from . import cache_steps, rotary, runtime_attention, runtime_fused, runtime_grouped, runtime_integers, runtime_norms
from .float16 import wide
from .graph import MICROSOFT, STANDARD_DOMAINS, describe, opset_of, replace_nodes
from .shape_inference import with_inferred_shapes
from .standard_steps import Steps

_REWRITES: dict[str, Callable[[Steps], None]] = {
    **runtime_norms.REWRITES,
    **runtime_fused.REWRITES,
    **runtime_integers.REWRITES,
    **runtime_attention.REWRITES,
    **runtime_grouped.REWRITES,
    **rotary.REWRITES,
}
_STANDARD_REWRITES = {**cache_steps.STANDARD_REWRITES, **rotary.STANDARD_REWRITES}
_FIRST_OPSETS = {"LayerNormalization": 17}
_MAX_VALUES = 1024
"""Constants of more values are no shapes; shape inference does without."""

_Shape = "tuple[int | str, ...] | None"


def is_of_runtime(node: onnx.NodeProto, opset: int) -> bool:
    """Whether ONNX Runtime knows a node's op in an operator set of ONNX that lacks it."""
    if node.domain not in STANDARD_DOMAINS or node.op_type not in runtime_norms.STANDARD_DOMAIN_REWRITES:
        return False
    return opset < _FIRST_OPSETS.get(node.op_type, opset + 1)


def _rewrite_of(node: onnx.NodeProto, opset: int) -> Callable[[Steps], None] | None:
    if node.domain == MICROSOFT:
        return _REWRITES.get(node.op_type) or runtime_norms.STANDARD_DOMAIN_REWRITES.get(node.op_type)
    if is_of_runtime(node, opset):
        return runtime_norms.STANDARD_DOMAIN_REWRITES[node.op_type]
    return _STANDARD_REWRITES.get(node.op_type) if node.domain in STANDARD_DOMAINS else None


def is_rewritten(node: onnx.NodeProto, opset: int) -> bool:
    """Whether `write_standard` writes a node as others."""
    return _rewrite_of(node, opset) is not None


def has_runtime_ops(graph: onnx.GraphProto, opset: int) -> bool:
    """Return whether there is a node to be rewritten."""
    return any(is_rewritten(node, opset) for node in graph.node)


def write_standard(model: onnx.ModelProto, shapes: Mapping[str, Sequence[Size]], origin: str) -> None:
    """Rewrite the nodes of `model` itself.

    Parameters
    ----------
    shapes
        Shapes of the graph's inputs by name.
    origin
        Name of the file in messages.

    Raises
    ------
    UnsupportedOpError
        For an attribute or an input that has no form in standard ops.
    """
    graph, opset = model.graph, opset_of(model)
    types = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    types.update({tensor.name: tensor.data_type for tensor in graph.initializer})
    constants = {tensor.name: tensor for tensor in graph.initializer}
    names = NameSupply(set(types) | {name for node in graph.node for name in (*node.input, *node.output)})
    known = _Shapes(model, shapes)
    kept: list[onnx.NodeProto] = []
    for node in graph.node:
        rewrite = _rewrite_of(node, opset)
        if rewrite is None:
            known.add([node])
            kept.append(node)
            continue
        with conversion_errors(lambda node=node: f"{origin}: {describe(node)}"):
            steps = Steps(node, names, types, opset, constants, shape_of=known.of, declared=known.declared)
            rewrite(steps)
        graph.initializer.extend(steps.initializers)
        known.add(steps.nodes, steps.initializers)
        kept.extend(steps.nodes)
    replace_nodes(graph, kept)


class _Shapes:
    """Shapes of what the nodes so far made, inferred when they are asked for.

    Parameters
    ----------
    model
        Its inputs and constants are known; its nodes are told by `add`. Its value_info helps where inference fails.
    shapes
        Shapes of its inputs by name, in place of its own.
    """

    def __init__(self, model: onnx.ModelProto, shapes: Mapping[str, Sequence[Size]]) -> None:
        graph = model.graph
        self._declared = {value.name: _declared(value) for value in (*graph.value_info, *graph.output, *graph.input)}
        self._declared.update({wide(name): shape for name, shape in self._declared.items()})
        self._light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
        self._light.graph.name = "shapes"
        self._known: dict[str, tuple[int | str, ...] | None] = {}
        for value in graph.input:
            shape = [size if isinstance(size, int) else size_text(size) for size in shapes.get(value.name, ())]
            given = tuple(shape) if value.name in shapes else self._declared[value.name]
            self._input(value.name, value.type.tensor_type.elem_type, given)
        self._constants(graph.initializer)
        self._is_new = False

    def add(self, nodes: Sequence[onnx.NodeProto], constants: Sequence[onnx.TensorProto] = ()) -> None:
        """Take in nodes, and constants that they read."""
        self._constants(constants)
        self._light.graph.node.extend(_stand_in(self._light.graph, node) for node in nodes)
        self._is_new = True

    def declared(self, name: str) -> tuple[int | str, ...] | None:
        """Return what the file declares of a tensor's shape."""
        return self._declared.get(name)

    def of(self, name: str) -> tuple[int | str, ...] | None:
        """Return the shape of a tensor, None where even its rank is unknown."""
        if self._known.get(name) is None and self._is_new:
            inferred = with_inferred_shapes(self._light).graph
            self._known.update({value.name: _declared(value) for value in inferred.value_info})
            self._is_new = False
        shape, declared = self._known.get(name), self._declared.get(name)
        if shape is None or declared is None or len(shape) != len(declared):
            return shape or declared
        return tuple(own if isinstance(own, int) else other for own, other in zip(shape, declared, strict=True))

    def _input(self, name: str, elem_type: int, shape: Sequence[int | str] | None) -> None:
        self._light.graph.input.append(onnx.helper.make_tensor_value_info(name, elem_type, shape))
        self._known[name] = None if shape is None else tuple(shape)

    def _constants(self, constants: Sequence[onnx.TensorProto]) -> None:
        listed = {value.name for value in self._light.graph.input} if constants else set[str]()
        for tensor in constants:
            if _is_small(tensor):
                self._light.graph.initializer.append(tensor)
                self._known[tensor.name] = tuple(tensor.dims)
            elif tensor.name not in listed:
                self._input(tensor.name, tensor.data_type, list(tensor.dims))


def _is_small(tensor: onnx.TensorProto) -> bool:
    size = 1
    for dim in tensor.dims:
        size *= dim
    return size <= _MAX_VALUES and tensor.data_location != onnx.TensorProto.EXTERNAL


def _declared(value: onnx.ValueInfoProto) -> tuple[int | str, ...] | None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in tensor.shape.dim)


def _stand_in(graph: onnx.GraphProto, node: onnx.NodeProto) -> onnx.NodeProto:
    """Return a node that has a shape in place of one that ONNX does not know: a product with packed weights is one."""
    if node.op_type != "MatMulNBits":
        return node
    attrs = {attribute.name: attribute.i for attribute in node.attribute}
    weights = f"{node.output[0]}::weights"
    graph.input.append(onnx.helper.make_tensor_value_info(weights, onnx.TensorProto.FLOAT, [attrs["K"], attrs["N"]]))
    return onnx.helper.make_node("MatMul", [node.input[0], weights], [node.output[0]])
