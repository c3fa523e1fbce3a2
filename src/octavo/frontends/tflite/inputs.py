"""What the inputs of a .tflite file state of their shapes, with what the caller of `load` says of them. Reads no op.

A file states a shape for each input, and may state a second one in which dimensions of any size are -1. Such a dimension is
called by its input and axis ("pixels_dim2"), and one of the first axis "batch". It is open where the caller names it, or where
another than the first is open, too. Most files leave the batch alone open: then a model is of the one sample that is declared.
"""

from __future__ import annotations

import re
from typing import Any

from ...errors import ModelError
from ..input_shapes import Asked, InputShapes, combined
from ..symbols import symbol_name
from .source import TfliteGraph

BATCH = "batch"
FIXED = re.compile(r"_fixed_\d_\d+_(\d+)")
"""Names of dimensions that a caller gives another size than the file's, which the name ends in."""


def input_shapes(graph: TfliteGraph, asked: Asked) -> InputShapes | None:
    """Return the inputs' shapes by their names; None where they are those that the file states.

    Raises
    ------
    ModelError
        For options that do not fit.
    """
    inputs: dict[str, Any] = {graph.tensors[index].name: graph.tensors[index] for index in graph.inputs}
    asked.check(inputs)
    for name, given in asked.shapes.items():
        if len(given) != len(inputs[name].shape) or any(not isinstance(dim, str) and dim < 1 for dim in given) or "" in given:
            raise ModelError(
                f"{asked.origin}: shape {tuple(given)} for input {name!r} does not fit {inputs[name].shape}, the file's"
            )
    dynamic = {name: _dynamic(name, tensor.signature) for name, tensor in inputs.items()}
    is_open = BATCH in asked.sizes or any(axis for axes in dynamic.values() for axis in axes)
    declared: dict[str, tuple[int | str, ...]] = {
        name: tuple((dynamic[name].get(axis) or dim) if is_open else dim for axis, dim in enumerate(tensor.shape))
        for name, tensor in inputs.items()
    }
    result = combined(declared, asked)
    result.symbols.restrict(asked.sizes, asked.origin)
    same = all(tuple(result.shapes[name]) == tensor.shape for name, tensor in inputs.items() if result.is_static)
    return None if result.is_static and same else result


def has_open_batch(graph: TfliteGraph) -> bool:
    """Return whether a file states one sample, and leaves their number open and nothing else."""
    tensors = [graph.tensors[index] for index in graph.inputs]
    return bool(tensors) and all(tensor.signature == (-1, *tensor.shape[1:]) and tensor.shape[0] == 1 for tensor in tensors)


def _dynamic(name: str, signature: tuple[int, ...]) -> dict[int, str]:
    """Return the names of the dimensions that a file leaves open, by axis."""
    return {axis: symbol_name(f"{name}_dim{axis}") if axis else BATCH for axis, dim in enumerate(signature) if dim < 0}


def with_names(graph: TfliteGraph, inputs: InputShapes) -> tuple[InputShapes, dict[str, int]]:
    """Return shapes in which dimensions are open, too, that are fixed to another size than the file's; and these sizes.

    What the file says of results, in constants of reshapes, is for its own sizes: a name shows where a size goes, a number
    does not.
    """
    values: dict[str, int] = {}
    declared: dict[str, tuple[int | str, ...]] = {}
    tensors = {graph.tensors[index].name: graph.tensors[index] for index in graph.inputs}
    for name, shape in inputs.shapes.items():
        dims = list(inputs.declared[name])
        for axis, (size, before) in enumerate(zip(shape, tensors[name].shape, strict=True)):
            if isinstance(size, int):
                dims[axis] = size
            if isinstance(size, int) and size != before:
                dims[axis] = f"_fixed_{axis == 0:d}_{before}_{size}"
                values[str(dims[axis])] = size
        declared[name] = tuple(dims)
    return combined(declared, Asked({}, {}, "")), values
