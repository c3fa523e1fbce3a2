"""What the inputs of an ONNX graph state of their shapes, with what the caller of `load` says of them. Reads no node.

A dimension is open where the file gives it a name instead of a size, or nothing at all. Dimensions of one name have one size. A
name that is arithmetic of others ("past + sequence") is that. One without a name is called by its input and axis ("pixels_dim2").
"""

from __future__ import annotations

import math
from typing import Any

import onnx

from ...errors import ModelError, shape_advice
from ..input_shapes import Asked, InputShapes, ShapeOption, combined
from ..symbols import symbol_name
from .graph import MICROSOFT, dtype_name, graph_inputs

_PASTS: dict[tuple[str, str], tuple[tuple[int, ...], int]] = {
    ("Attention", ""): ((4, 5), 2),
    ("Attention", MICROSOFT): ((4,), 3),
    ("GroupQueryAttention", MICROSOFT): ((3, 4), 2),
    ("MultiHeadAttention", MICROSOFT): ((6, 7), 2),
    ("QAttention", MICROSOFT): ((8,), 3),
}
"""By op and domain: which inputs are pasts, and the axis along which these grow."""
_MAX_ELEMENTS = 2**47
"""As many bytes as a process can address."""


def input_shapes(graph: onnx.GraphProto, asked: Asked) -> InputShapes:
    """Read the inputs' shapes.

    Raises
    ------
    ModelError
        For an input that is no tensor of numbers, states no shape or has no elements, and for options that do not fit.
    """
    inputs = {value.name: value for value in graph_inputs(graph)}
    asked.check(inputs)
    dims_of = {name: _declared_shape(value, asked.shapes.get(name), asked.origin, graph) for name, value in inputs.items()}
    result = combined(dims_of, asked)
    _allow_empty(result, graph)
    result.symbols.restrict(asked.sizes, asked.origin)
    return result


def _declared_shape(value: Any, given: ShapeOption | None, origin: str, graph: onnx.GraphProto) -> tuple[int | str, ...]:
    """Return the dimensions that the file states; one of 0 is meant where the graph only ever extends it, as it does a past."""
    name = value.name
    if not value.type.HasField("tensor_type"):
        raise ModelError(f"{origin}: input {name!r} is no tensor (a sequence, map or optional), which is not supported")
    tensor = value.type.tensor_type
    if not dtype_name(tensor.elem_type):
        raise ModelError(f"{origin}: input {name!r} states no element type")
    if tensor.elem_type == onnx.TensorProto.STRING:
        raise ModelError(f"{origin}: input {name!r} is text, and kernels take numbers only; cut off what reads it")
    if given is not None:
        if any(not isinstance(dim, str) and dim < 0 for dim in given) or "" in given:
            raise ModelError(f"{origin}: shape {tuple(given)} for input {name!r} must hold no negative sizes")
        if tensor.HasField("shape") and len(tensor.shape.dim) != len(given):
            raise ModelError(
                f"{origin}: shape {tuple(given)} for input {name!r} has {len(given)} dimensions, "
                f"the model states {len(tensor.shape.dim)}"
            )
    elif not tensor.HasField("shape"):
        raise ModelError(f"{origin}: input {name!r} states no shape; give one: {shape_advice(name)}")
    dims = tuple(_declared_dim(name, axis, dim, origin if given is None else "") for axis, dim in enumerate(tensor.shape.dim))
    _check_count(name, tuple(dims if given is None else given), origin)
    empty = [axis for axis, dim in enumerate(dims) if dim == 0]
    if given is None and not all(_is_extended(graph, name, axis, len(dims)) for axis in empty):
        raise ModelError(
            f"{origin}: input {name!r} of shape ({', '.join(map(str, dims))}) has no elements; "
            f"where a dimension of 0 stands for any size give one: {shape_advice(name)}"
        )
    return dims


def _check_count(name: str, dims: tuple[int | str, ...], origin: str) -> None:
    """Raise ModelError for a tensor of more elements than any memory holds."""
    if math.prod(dim for dim in dims if isinstance(dim, int)) > _MAX_ELEMENTS:
        raise ModelError(
            f"{origin}: input {name!r} of shape ({', '.join(map(str, dims))}) has more elements than any memory holds; "
            f"give it another one: {shape_advice(name)}"
        )


def _declared_dim(name: str, axis: int, dim: Any, origin: str) -> int | str:
    """Return one dimension; ModelError for one that is no size, but where `origin` is ""."""
    if origin and dim.HasField("dim_value") and dim.dim_value < -1:
        raise ModelError(
            f"{origin}: input {name!r} has {dim.dim_value} along axis {axis}, which is no size; give one: {shape_advice(name)}"
        )
    if dim.HasField("dim_value") and dim.dim_value >= 0:  # some exporters write an unknown one as -1
        return dim.dim_value
    return dim.dim_param if dim.dim_param.strip() not in ("", "?") else symbol_name(f"{name}_dim{axis}")


def _allow_empty(inputs: InputShapes, graph: onnx.GraphProto) -> None:
    """Let a size be 0 that is only ever added to: that of a past, which Concat or attention extends along its axis."""
    for name in inputs.symbols.bounds:
        places = [(each, dims.index(name)) for each, dims in inputs.declared.items() if name in map(str, dims)]
        if places and all(_is_extended(graph, each, axis, len(inputs.declared[each])) for each, axis in places):
            inputs.symbols.allow_zero(name)


def _is_extended(graph: onnx.GraphProto, name: str, axis: int, rank: int) -> bool:
    """Whether all that reads an input, but for its shape, is Concat with something else along an axis, or takes it for a past."""
    readers = [node for node in graph.node if name in node.input and node.op_type != "Shape"]
    readers = [node for node in readers if not _is_past(node, name, axis)]
    if not readers:
        return any(_is_past(node, name, axis) for node in graph.node)
    axes = [next(attr.i for attr in node.attribute if attr.name == "axis") for node in readers if _joins_others(node, name)]
    return len(axes) == len(readers) and all(each % rank == axis for each in axes)


def _is_past(node: onnx.NodeProto, name: str, axis: int) -> bool:
    """Whether a node takes an input for a past that grows along an axis."""
    places, along = _PASTS.get((node.op_type, node.domain), ((), 0))
    return axis == along and all(each != name or place in places for place, each in enumerate(node.input)) and name in node.input


def _joins_others(node: onnx.NodeProto, name: str) -> bool:
    return node.op_type == "Concat" and set(node.input) != {name}
