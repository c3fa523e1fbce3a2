"""Rewrite a copy of an ONNX graph into what TVM's importer reads well, and list its tensors. Builds no Relax.

Inputs get their shapes, QOperator nodes are written as QDQ, Constant nodes and all arithmetic on constants and static
shapes turned into initializers; arithmetic on open sizes is left to `convert`. Names of tensors stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.defs
import onnx.helper
import onnx.numpy_helper

from ...errors import UnsupportedOpError
from ..frontend import UnknownOpError, conversion_errors
from ..source_tensor import SourceTensor
from ..symbols import Size, size_text
from .graph import MICROSOFT, STANDARD_DOMAINS, describe, dtype_name, graph_inputs, opset_of, replace_nodes
from .large_tensors import tensor_array
from .qoperator import QdqRewriter
from .quantized_constants import quantized_constant, widen
from .roundings import roundings_in
from .row_products import read_row_products
from .shape_inference import with_inferred_shapes

_KNOWN_DOMAINS = STANDARD_DOMAINS | {MICROSOFT}
# Folding these would lose quantization parameters, hide an alias, or freeze a random number.
_AFFINE = ("QuantizeLinear", "DequantizeLinear")
_NEVER_FOLDED = frozenset(
    {*_AFFINE, "DynamicQuantizeLinear", "Identity", "Dropout", "Bernoulli", "Multinomial"}
    | {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
_COMPUTED_TYPES = frozenset(
    {"bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))}
    | {"float16", "bfloat16", "float32", "float64"}
)
_MAX_FOLDED_ELEMENTS = 2**22
_MAX_FOLDING_ROUNDS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedOnnx:
    """A graph ready for conversion.

    Parameters
    ----------
    graph
        The rewritten copy; each node's name is the index of its line in `nodes`.
    nodes
        Nodes as the source has them, for messages.
    opset
        Version of the standard operator set.
    sources
        Every tensor, in the order of the source graph: inputs, then for each node its constants and its outputs.
    shapes
        Of every tensor of `graph`; None where even the rank is unknown.
    roundings
        Of QuantizeLinears by their outputs, where the file says them.
    """

    graph: onnx.GraphProto
    nodes: tuple[onnx.NodeProto, ...]
    opset: int
    sources: tuple[SourceTensor, ...]
    shapes: Mapping[str, tuple[int | str, ...] | None]
    roundings: Mapping[str, str]


def prepare(
    source: onnx.ModelProto,
    shapes: Mapping[str, Sequence[Size]],
    supported: Callable[[onnx.NodeProto], bool],
    origin: str,
) -> PreparedOnnx:
    """Return the rewritten graph and its tensors.

    Parameters
    ----------
    source
        A checked model without functions and branches; left as it is.
    shapes
        Shapes of graph inputs by name; others state theirs.
    supported
        Whether there is a converter for a node.
    origin
        Name of the file in messages.

    Raises
    ------
    UnsupportedOpError
        For the first node that cannot be imported.
    """
    _reject_unsupported(source.graph.node, supported, origin)
    model, nodes = _with_shapes(source, shapes, origin)
    opset = opset_of(model)
    read_row_products(model.graph)
    _to_qdq(model.graph, nodes, opset, origin)
    narrow = widen(model.graph)
    model, types = _fold(model)
    _reject_types(model.graph, nodes, types, origin)
    _reject_axes(model.graph, nodes, types, opset, origin)
    types.update({name: (types[name][0], dtype) for name, dtype in narrow.items()})
    return PreparedOnnx(
        graph=model.graph,
        nodes=nodes,
        opset=opset,
        sources=_list_sources(model.graph, nodes, types),
        shapes={name: shape for name, (shape, _) in types.items()},
        roundings=roundings_in(source),
    )


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of an ONNX graph without a run.

    Parameters
    ----------
    values
        Constants, and what depends on them and on static shapes alone, by name.
    shapes
        Of every tensor; None where even the rank is unknown. A dimension that is open is a text.
    """

    values: Mapping[str, npt.NDArray[Any]]
    shapes: Mapping[str, tuple[int | str, ...] | None]


def known_of(source: onnx.ModelProto, shapes: Mapping[str, Sequence[Size]], origin: str) -> Known:
    """Return what is known of a model for inputs of these shapes."""
    model, _ = _with_shapes(source, shapes, origin)
    model, types = _fold(model)
    values = {tensor.name: tensor_array(tensor) for tensor in model.graph.initializer}
    return Known(values, {name: shape for name, (shape, _) in types.items()})


def _with_shapes(
    source: onnx.ModelProto, shapes: Mapping[str, Sequence[Size]], origin: str
) -> tuple[onnx.ModelProto, tuple[onnx.NodeProto, ...]]:
    """Return a copy of these inputs, without Constant nodes, its nodes named by their numbers, and the nodes as they were."""
    model = onnx.ModelProto()
    model.CopyFrom(source)
    _fix_input_shapes(model.graph, shapes)
    _forget_shapes(model.graph)
    nodes = tuple(_copy(node) for node in model.graph.node)
    for index, node in enumerate(model.graph.node):
        node.name = str(index)
        while len(node.output) > 1 and not node.output[-1]:  # left out, which TVM counts
            node.output.pop()
    _constants_to_initializers(model.graph, nodes, origin)
    return model, nodes


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    """Copy a node without its attributes' payload."""
    return onnx.NodeProto(
        op_type=node.op_type, name=node.name, domain=node.domain, input=list(node.input), output=list(node.output)
    )


def _reject_unsupported(nodes: Iterable[onnx.NodeProto], supported: Callable[[onnx.NodeProto], bool], origin: str) -> None:
    for node in nodes:
        if node.domain not in _KNOWN_DOMAINS:
            raise UnknownOpError(
                f"{origin}: {describe(node)} belongs to a custom operator set, which Octavo does not know; export the model with "
                "ONNX's own ops, or end it before this op (onnx.utils.extract_model) and compute the op yourself"
            )
        if not supported(node):
            raise UnknownOpError(
                f"{origin}: {describe(node)} is not supported by the importer; export the model with other ops in its place, or "
                "end it before this op (onnx.utils.extract_model) and compute the op yourself"
            )


def _reject_types(graph: onnx.GraphProto, nodes: tuple[onnx.NodeProto, ...], types: _Types, origin: str) -> None:
    """Refuse what reads or makes tensors of types in which nothing is computed: floats of 8 or 4 bits, complex numbers, text."""
    for node in graph.node:
        for name in (*node.input, *node.output):
            dtype = types.get(name, (None, ""))[1]
            if dtype and dtype not in _COMPUTED_TYPES:
                raise UnknownOpError(
                    f"{origin}: {describe(nodes[int(node.name)])}: its tensor {name!r} is of {dtype}, in which nothing can be "
                    "computed; export the model in float32 or in integers"
                )


def _reject_axes(graph: onnx.GraphProto, nodes: tuple[onnx.NodeProto, ...], types: _Types, opset: int, origin: str) -> None:
    """Refuse axes that tensors cannot have: TVM keeps 32 bits of them, which may be an axis."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        shape = types.get(node.input[0], (None, ""))[0] if node.input else None
        if shape is None or node.domain not in STANDARD_DOMAINS or not onnx.defs.has(node.op_type, opset, ""):
            continue
        said = [onnx.helper.get_attribute_value(each) for each in node.attribute if each.name in ("axis", "axes", "perm")]
        inputs = zip(node.input, onnx.defs.get_schema(node.op_type, opset, "").inputs, strict=False)
        read = [constants[name] for name, each in inputs if each.name in ("axis", "axes") and name in constants]
        for values in (*said, *map(tensor_array, read)):
            axes = [int(axis) for axis in np.ravel(values)]
            most = len(shape) + len(axes)  # dimensions of the result, which may have more
            wrong = next((axis for axis in axes if abs(axis) > most), None)
            if wrong is not None:
                raise UnsupportedOpError(
                    f"{origin}: {describe(nodes[int(node.name)])}: axis {wrong} is none of a tensor of {len(shape)} dimensions"
                )


def _fix_input_shapes(graph: onnx.GraphProto, shapes: Mapping[str, Sequence[Size]]) -> None:
    for value in (value for value in graph_inputs(graph) if value.name in shapes):
        tensor = value.type.tensor_type
        tensor.ClearField("shape")
        tensor.shape.SetInParent()
        for size in shapes[value.name]:
            dim = tensor.shape.dim.add()
            if isinstance(size, int):
                dim.dim_value = size
            else:
                dim.dim_param = size_text(size)


def _forget_shapes(graph: onnx.GraphProto) -> None:
    """Drop the shapes declared for everything but inputs: they may be of another batch size."""
    del graph.value_info[:]
    for value in graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")


def _constants_to_initializers(graph: onnx.GraphProto, nodes: tuple[onnx.NodeProto, ...], origin: str) -> None:
    kept: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type != "Constant" or node.domain not in STANDARD_DOMAINS:
            kept.append(node)
            continue
        value = _constant_value(node)
        if value is None:
            raise UnsupportedOpError(f"{origin}: {describe(nodes[int(node.name)])} holds a sparse tensor or text")
        constant = value if isinstance(value, onnx.TensorProto) else onnx.numpy_helper.from_array(value)
        graph.initializer.add().CopyFrom(constant)
        graph.initializer[-1].name = node.output[0]
    replace_nodes(graph, kept)


def _to_qdq(graph: onnx.GraphProto, nodes: tuple[onnx.NodeProto, ...], opset: int, origin: str) -> None:
    """Write QOperator nodes as QDQ, so that shape inference, folding and conversion meet standard ops only."""
    rewriter = QdqRewriter(graph, opset)
    kept: list[onnx.NodeProto] = []
    for node in graph.node:
        with conversion_errors(lambda at=int(node.name): f"{origin}: {describe(nodes[at])}"):
            rewritten = rewriter.rewrite(node)
        kept.extend((node,) if rewritten is None else rewritten.nodes)
        graph.initializer.extend(() if rewritten is None else rewritten.initializers)
    replace_nodes(graph, kept)


def _constant_value(node: onnx.NodeProto) -> onnx.TensorProto | npt.NDArray[Any] | None:
    """Return the value of a Constant node; None where it is no plain number."""
    attribute = node.attribute[0]
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.name == "value":
        return value
    if attribute.name in ("value_float", "value_floats"):
        return np.asarray(value, np.float32)
    if attribute.name in ("value_int", "value_ints"):
        return np.asarray(value, np.int64)
    return None


_Types = dict[str, tuple[tuple[int | str, ...] | None, str]]


def _infer(model: onnx.ModelProto) -> tuple[onnx.ModelProto, _Types]:
    """Return the model with inferred shapes, and each value's shape (None: unknown rank) and dtype."""
    inferred = with_inferred_shapes(model)
    types: _Types = {}
    for value in (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output):
        tensor = value.type.tensor_type
        shape = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim)
        types[value.name] = (shape if tensor.HasField("shape") else None, dtype_name(tensor.elem_type))
    for constant in inferred.graph.initializer:
        types[constant.name] = (tuple(constant.dims), dtype_name(constant.data_type))
    return inferred, types


def _fold(model: onnx.ModelProto) -> tuple[onnx.ModelProto, _Types]:
    """Compute what depends on constants and static shapes alone; each round may make more shapes known."""
    for _ in range(_MAX_FOLDING_ROUNDS):
        model, types = _infer(model)
        constants = {tensor.name: tensor for tensor in model.graph.initializer}
        scales = {node.input[1] for node in model.graph.node if node.op_type in _AFFINE and len(node.input) > 1}
        kept: list[onnx.NodeProto] = []
        for node in model.graph.node:
            folded = _evaluate(node, constants, types, model.opset_import, is_scale=scales.issuperset(node.output))
            if node.op_type == "Identity" and node.input[0] in constants:  # it stays an alias, of a known value
                constants[node.output[0]] = constants[node.input[0]]
            if folded is None:
                kept.append(node)
                continue
            for tensor in folded:
                constants[tensor.name] = tensor
                model.graph.initializer.append(tensor)
        if len(kept) == len(model.graph.node):
            return model, types
        replace_nodes(model.graph, kept)
        _forget_shapes(model.graph)
    return _infer(model)


def _evaluate(
    node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto], types: _Types, opsets: Any, *, is_scale: bool
) -> list[onnx.TensorProto] | None:
    """Compute the outputs of a node of known inputs; None where that is impossible, unwise or too large.

    `is_scale`: the output is the scale of a quantized tensor, which may be dequantized itself (integers for each block).
    """
    if node.op_type == "QuantizeLinear":
        return quantized_constant(node, constants)
    is_kept = node.op_type in _NEVER_FOLDED and not (is_scale and node.op_type == "DequantizeLinear")
    if is_kept or node.domain not in STANDARD_DOMAINS:
        return None
    if node.op_type == "Slice":  # of nothing is known, whatever it reads
        shape, dtype = types.get(node.output[0], (None, ""))
        if shape is not None and _is_static(shape) and 0 in shape and dtype in _COMPUTED_TYPES:
            return [_without_elements(node.output[0], shape, dtype)]
    feeds: dict[str, npt.NDArray[Any]] = {}
    for name in (name for name in node.input if name):
        shape = types.get(name, (None, ""))[0]
        if name not in constants and not (node.op_type in ("Shape", "Size") and shape is not None and _is_static(shape)):
            return None
    for output in node.output:
        shape = types.get(output, (None, ""))[0]
        if shape is None or not _is_static(shape) or math.prod(int(dim) for dim in shape) > _MAX_FOLDED_ELEMENTS:
            return None
    for name in (name for name in node.input if name):
        if name in constants:
            feeds[name] = tensor_array(constants[name])
        else:
            # The values do not matter to Shape and Size; a broadcast zero takes no memory.
            feeds[name] = np.broadcast_to(np.float32(0), [int(dim) for dim in types[name][0] or ()])
    # Imported here for it takes a third of a second, and most models have nothing to fold.
    from onnx.reference import ReferenceEvaluator

    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    inputs = [onnx.ValueInfoProto(name=name) for name in feeds]
    single = onnx.helper.make_model(onnx.helper.make_graph([node], "fold", inputs, outputs), opset_imports=opsets)
    try:
        values: Any = ReferenceEvaluator(single).run(None, feeds)
        found = [_as_inferred(value, types.get(name, (None, ""))[1]) for value, name in zip(values, node.output, strict=True)]
        return [onnx.numpy_helper.from_array(value, name) for value, name in zip(found, node.output, strict=True)]
    except Exception:
        # The reference lacks a few ops and variants; the frontend then decides.
        return None


def _without_elements(name: str, shape: Sequence[int | str], dtype: str) -> onnx.TensorProto:
    return onnx.TensorProto(name=name, dims=[int(size) for size in shape], data_type=_TYPE_OF[dtype], raw_data=b"")


def _as_inferred(value: Any, dtype: str) -> npt.NDArray[Any]:
    """Return a value in the type that ONNX states; the reference computes some ops of short floats in float32."""
    array = np.asarray(value)
    if not dtype or str(array.dtype) == dtype:
        return array
    return array.astype(onnx.helper.tensor_dtype_to_np_dtype(_TYPE_OF[dtype]))


_TYPE_OF = {dtype_name(number): number for number in onnx.TensorProto.DataType.values()}


def _is_static(shape: tuple[int | str, ...]) -> bool:
    return all(isinstance(dim, int) for dim in shape)


def _list_sources(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto], types: _Types) -> tuple[SourceTensor, ...]:
    outputs = {value.name for value in graph.output}
    constants = {tensor.name for tensor in graph.initializer}
    found: dict[str, SourceTensor] = {}

    def add(name: str, kind: Any, node: onnx.NodeProto | None = None) -> None:
        if not name or name in found:
            return
        shape, dtype = types.get(name, (None, ""))
        found[name] = SourceTensor(
            name=name,
            kind=kind,
            op=node.op_type if node else "",
            layer=node.name if node else "",
            shape=("?",) if shape is None else shape,
            dtype=dtype,
            is_output=name in outputs,
        )

    produced = {name for node in nodes for name in node.output}
    for value in graph_inputs(graph):
        add(value.name, "input")
    for node in nodes:
        for name in node.input:
            if name in constants and name not in produced:
                add(name, "constant")
        for name in node.output:
            add(name, "constant" if node.op_type == "Constant" else "activation", node)
    for tensor in graph.initializer:
        add(tensor.name, "constant")
    return tuple(found.values())
