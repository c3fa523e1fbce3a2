"""Inputs of an ONNX graph whose values decide shapes or branches: which these are, and the graph with them as constants.

Knows ops by the inputs that must be known before a run. Converts nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.numpy_helper

from ...errors import DataError, ModelError
from ...ir.graph.unbound import bound_value
from .graph import STANDARD_DOMAINS, dtype_name, graph_inputs

_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_WINDOWS = ("BlackmanWindow", "HammingWindow", "HannWindow")
_DECIDING: Mapping[str, Sequence[int]] = {
    **dict.fromkeys((f"Reduce{name}" for name in _REDUCTIONS), (1,)),
    **dict.fromkeys(("Reshape", "Expand", "Tile", "CumSum", "CumProd", "Trilu", "Split", "SplitToSequence"), (1,)),
    **dict.fromkeys(("Squeeze", "Unsqueeze", "TopK", "OneHot", "AffineGrid", "CenterCropPad", "Upsample"), (1,)),
    **dict.fromkeys((*_WINDOWS, "ConstantOfShape", "If"), (0,)),
    "Range": (0, 1, 2),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "Pad": (1, 2, 3),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "MaxUnpool": (2,),
    "Dropout": (1, 2),
    "Loop": (0, 1),
    "Compress": (1,),
    "Col2Im": (1, 2),
    "DFT": (1, 2),
    "STFT": (1, 3),
    "NonMaxSuppression": (2, 3, 4),
}
"""Op -> which of its inputs must be known before a run, as far as they are not sizes."""
_MAX_ELEMENTS = {"i": 64, "u": 64, "b": 64, "f": 16}
"""By kind of dtype: how many numbers an input may hold that is taken for one of sizes, axes, counts, scales, flags."""


def deciding_inputs(graph: onnx.GraphProto, shapes: Mapping[str, Sequence[Any]]) -> tuple[str, ...]:
    """Return the inputs whose values decide shapes and branches; none where one of them is data, which differs with each call.

    Parameters
    ----------
    graph
        A graph in which functions are inlined.
    shapes
        Shape of each graph input by name.
    """
    return _small_inputs_of(graph, list(_deciding_names(graph.node)), shapes)


def are_decided_by_small_inputs(graph: onnx.GraphProto, names: Iterable[str], shapes: Mapping[str, Sequence[Any]]) -> bool:
    """Return whether values depend on inputs, and on none that is data, which differs with each call."""
    return bool(_small_inputs_of(graph, names, shapes))


def _small_inputs_of(graph: onnx.GraphProto, names: Iterable[str], shapes: Mapping[str, Sequence[Any]]) -> tuple[str, ...]:
    """Return the inputs on whose values others depend; none where one of them is data."""
    makers = {name: node for node in graph.node for name in node.output if name}
    inputs = {value.name: value for value in graph_inputs(graph)}
    found: set[str] = set()
    seen: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if not name or name in seen:
            continue
        seen.add(name)
        if name in inputs:
            found.add(name)
        elif name in makers and makers[name].op_type not in ("Shape", "Size"):
            todo.extend(makers[name].input)
            todo.extend(name for attribute in makers[name].attribute for name in _read_in(attribute))
    if any(not _is_small(inputs[name], shapes.get(name, ())) for name in found):
        return ()
    return tuple(name for name in inputs if name in found)


def _deciding_names(nodes: Iterable[onnx.NodeProto]) -> Iterable[str]:
    """Yield what must be known, in graphs inside of nodes, too."""
    for node in nodes:
        if node.domain in STANDARD_DOMAINS:
            yield from (node.input[place] for place in _DECIDING.get(node.op_type, ()) if place < len(node.input))
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _deciding_names(attribute.g.node)


def _read_in(attribute: onnx.AttributeProto) -> Iterable[str]:
    """Yield the names that a graph inside of a node reads: what it does not make is of the graph around."""
    if attribute.HasField("g"):
        for node in attribute.g.node:
            yield from node.input
            yield from (name for inner in node.attribute for name in _read_in(inner))


def _is_small(value: Any, shape: Sequence[Any]) -> bool:
    tensor = value.type.tensor_type
    dtype = np.dtype(dtype_name(tensor.elem_type))
    sizes = [size for size in shape if isinstance(size, int)]
    return len(sizes) == len(shape) <= 1 and math.prod(sizes) <= _MAX_ELEMENTS.get(dtype.kind, 1)


def with_values(model: onnx.ModelProto, values: Mapping[str, Any], origin: str) -> onnx.ModelProto:
    """Return a copy of a model in which inputs are constants.

    Raises
    ------
    ModelError
        A value of no input, or one that does not fit it.
    """
    inputs = {value.name: value for value in graph_inputs(model.graph)}
    unknown = [name for name in values if name not in inputs]
    if unknown:
        raise ModelError(f"{origin}: there is no input {unknown[0]!r} to give a value; the inputs are {', '.join(inputs)}")
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, value in values.items():
        dtype, shape = declared(inputs[name])
        try:
            arrays[name] = bound_value(name, value, dtype, shape)
        except DataError as error:
            raise ModelError(f"{origin}: {error}") from None
    made = onnx.ModelProto()
    made.CopyFrom(model)
    kept = [value for value in made.graph.input if value.name not in arrays]
    copies = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in kept]
    del made.graph.input[:]
    made.graph.input.extend(copies)
    made.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return made


def declared(value: Any) -> tuple[str, tuple[int | None, ...] | None]:
    """Return dtype and shape of an input as a file states them, None for what it leaves open."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return dtype_name(tensor.elem_type), None
    return dtype_name(tensor.elem_type), tuple(dim.dim_value if dim.dim_value > 0 else None for dim in tensor.shape.dim)
