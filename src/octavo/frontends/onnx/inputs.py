"""What the inputs of an ONNX graph state of their shapes, with what the caller of `load` says of them. Reads no node.

A dimension is open where the file gives it a name instead of a size, or nothing at all. Dimensions of one name have one size. A
name that is arithmetic of others ("past + sequence") is that. One without a name is called by its input and axis ("pixels_dim2").
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from ...errors import ModelError, check_type, shape_advice
from ..symbols import Size, SizeOption, Symbols, symbol_name
from .graph import dtype_name, graph_inputs

ShapeOption = Sequence[int | str]
"""How a caller of `load` states a shape: sizes, and names of dimensions that stay open."""
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, kw_only=True, slots=True)
class InputShapes:
    """The shape of every input.

    Parameters
    ----------
    declared
        Input -> its dimensions: sizes, and names of open ones.
    symbols
        What is known of these.
    """

    declared: Mapping[str, tuple[int | str, ...]]
    symbols: Symbols

    @property
    def shapes(self) -> dict[str, tuple[Size, ...]]:
        """Input -> its shape, as much of it as is known now."""
        return {name: tuple(self._size(dim) for dim in dims) for name, dims in self.declared.items()}

    def _size(self, dim: int | str) -> Size:
        return dim if isinstance(dim, int) else self.symbols.parse(dim)

    @property
    def is_static(self) -> bool:
        """Whether nothing is open."""
        return all(isinstance(size, int) for shape in self.shapes.values() for size in shape)

    @property
    def open_batch(self) -> str | None:
        """The symbol that the first dimension of every input is and no other dimension has; None if there is none."""
        shapes = list(self.shapes.values())
        firsts = {str(shape[0]) for shape in shapes if shape and not isinstance(shape[0], int)}
        rest = [size for shape in shapes for size in shape[1:]]
        ends = all(shape and not isinstance(shape[0], int) for shape in shapes)
        if not ends or not shapes or not all(isinstance(size, int) for size in rest):
            return None
        return firsts.pop()

    def of_batch(self, size: int) -> InputShapes:
        """Return the shapes for a batch of one size."""
        return static_shapes({name: (size, *(int(dim) for dim in shape[1:])) for name, shape in self.shapes.items()})


def static_shapes(shapes: Mapping[str, Sequence[int]]) -> InputShapes:
    """Return shapes without open dimensions."""
    return InputShapes(declared={name: tuple(shape) for name, shape in shapes.items()}, symbols=Symbols(()))


def input_shapes(
    graph: onnx.GraphProto, shapes: Mapping[str, ShapeOption], sizes: Mapping[str, SizeOption], origin: str
) -> InputShapes:
    """Read the inputs' shapes.

    Parameters
    ----------
    shapes
        Shapes of inputs by name, in place of the file's.
    sizes
        Sizes or bounds of dimensions by name.

    Raises
    ------
    ModelError
        For an input that is no tensor of numbers, states no shape or has no elements, and for options that do not fit.
    """
    inputs = {value.name: value for value in graph_inputs(graph)}
    _check_options(inputs, shapes, origin)
    dims_of = {name: _declared_shape(value, shapes.get(name), origin) for name, value in inputs.items()}
    declared: dict[str, tuple[int | str, ...]] = {}
    given = _given_by_name(dims_of, shapes, origin)
    for name, dims in dims_of.items():
        if name in shapes:
            declared[name] = tuple(dim if isinstance(dim, str) else int(dim) for dim in shapes[name])
        else:
            declared[name] = tuple(given.get(dim, dim) if isinstance(dim, str) else dim for dim in dims)
    result = _with_symbols(declared)
    _allow_empty(result, graph)
    result.symbols.restrict(sizes, origin)
    return result


def _with_symbols(declared: Mapping[str, tuple[int | str, ...]]) -> InputShapes:
    """Make a symbol of each open dimension that is no arithmetic of others."""
    texts = [dim for dims in declared.values() for dim in dims if isinstance(dim, str)]
    plain = [text for text in texts if _NAME.fullmatch(text)]
    known = Symbols(map(symbol_name, plain))
    names: list[str] = []
    for text in texts:
        if text not in plain:
            try:
                known.parse(text)
                continue
            except KeyError:
                pass
        names.append(symbol_name(text))
    return InputShapes(declared=declared, symbols=Symbols(names))


def _check_options(inputs: Mapping[str, Any], shapes: Mapping[str, ShapeOption], origin: str) -> None:
    unknown = [name for name in shapes if name not in inputs]
    if unknown:
        raise ModelError(f"{origin}: there is no input {unknown[0]!r} to give a shape; the inputs are {', '.join(inputs)}")
    for name, given in shapes.items():
        expected = f"a tuple of whole numbers and names as the shape of input {name!r}"
        check_type(given, tuple | list, ModelError, expected)
        for dim in given:
            check_type(dim, int | np.integer | str, ModelError, expected)


def _declared_shape(value: Any, given: ShapeOption | None, origin: str) -> tuple[int | str, ...]:
    """Return the dimensions that the file states."""
    name = value.name
    if not value.type.HasField("tensor_type"):
        raise ModelError(f"{origin}: input {name!r} is no tensor (a sequence, map or optional), which is not supported")
    tensor = value.type.tensor_type
    if not dtype_name(tensor.elem_type):
        raise ModelError(f"{origin}: input {name!r} states no element type")
    if tensor.elem_type == onnx.TensorProto.STRING:
        raise ModelError(f"{origin}: input {name!r} is text, and kernels take numbers only; cut off what reads it")
    if given is not None:
        if any(not isinstance(dim, str) and dim < 1 for dim in given) or "" in given:
            raise ModelError(f"{origin}: shape {tuple(given)} for input {name!r} must hold positive sizes only")
        if tensor.HasField("shape") and len(tensor.shape.dim) != len(given):
            raise ModelError(
                f"{origin}: shape {tuple(given)} for input {name!r} has {len(given)} dimensions, "
                f"the model states {len(tensor.shape.dim)}"
            )
    elif not tensor.HasField("shape"):
        raise ModelError(f"{origin}: input {name!r} states no shape; give one: {shape_advice(name)}")
    dims = tuple(_declared_dim(name, axis, dim) for axis, dim in enumerate(tensor.shape.dim))
    if given is None and 0 in dims:
        raise ModelError(
            f"{origin}: input {name!r} of shape ({', '.join(map(str, dims))}) has no elements; "
            f"where a dimension of 0 stands for any size give one: {shape_advice(name)}"
        )
    return dims


def _declared_dim(name: str, axis: int, dim: Any) -> int | str:
    if dim.HasField("dim_value") and dim.dim_value >= 0:  # some exporters write an unknown one as negative
        return dim.dim_value
    return dim.dim_param if dim.dim_param.strip() not in ("", "?") else symbol_name(f"{name}_dim{axis}")


def _given_by_name(
    dims_of: Mapping[str, tuple[int | str, ...]], shapes: Mapping[str, ShapeOption], origin: str
) -> dict[str, int | str]:
    """Return what the given shapes say of names, which hold for inputs that are given none."""
    others = {dim for name, dims in dims_of.items() if name not in shapes for dim in dims}
    found: dict[str, int | str] = {}
    for name, given in shapes.items():
        for dim, new in zip(dims_of[name], given, strict=False):
            if isinstance(dim, str) and dim in others and found.setdefault(dim, new) != new:
                raise ModelError(f"{origin}: shapes give dimension {dim!r} the sizes {found[dim]} and {new}; give one")
    return {dim: new if isinstance(new, str) else int(new) for dim, new in found.items()}


def _allow_empty(inputs: InputShapes, graph: onnx.GraphProto) -> None:
    """Let a size be 0 that is only ever added to: that of a past, which Concat extends along its axis."""
    for name in inputs.symbols.bounds:
        places = [(each, dims.index(name)) for each, dims in inputs.declared.items() if name in map(str, dims)]
        if places and all(_is_extended(graph, each, axis, len(inputs.declared[each])) for each, axis in places):
            inputs.symbols.allow_zero(name)


def _is_extended(graph: onnx.GraphProto, name: str, axis: int, rank: int) -> bool:
    """Whether all that reads an input, but for its shape, is Concat with something else along an axis."""
    readers = [node for node in graph.node if name in node.input and node.op_type != "Shape"]
    axes = [next(attr.i for attr in node.attribute if attr.name == "axis") for node in readers if _joins_others(node, name)]
    return len(axes) == len(readers) > 0 and all(each % rank == axis for each in axes)


def _joins_others(node: onnx.NodeProto, name: str) -> bool:
    return node.op_type == "Concat" and set(node.input) != {name}
