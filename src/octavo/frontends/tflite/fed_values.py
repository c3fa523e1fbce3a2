"""Inputs of a .tflite file whose values decide shapes: which these are, and what values of theirs fit.

Knows ops by the operands that must be known before a run. Converts nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import DataError, ModelError
from ...ir.graph.unbound import bound_value
from .source import TfliteGraph, TfliteTensor

_REDUCTIONS = ("ALL", "ANY", "MAX", "MIN", "PROD")
_DECIDING: Mapping[str, Sequence[int]] = {
    **dict.fromkeys((f"REDUCE_{name}" for name in _REDUCTIONS), (1,)),
    **dict.fromkeys(("MEAN", "SUM", "ARG_MAX", "ARG_MIN", "CUMSUM", "EXPAND_DIMS", "REVERSE_V2", "TRANSPOSE"), (1,)),
    **dict.fromkeys(("BROADCAST_TO", "MIRROR_PAD", "PAD", "PADV2", "RESHAPE", "TILE", "TOPK_V2", "ONE_HOT"), (1,)),
    **dict.fromkeys(("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "SEGMENT_SUM", "SPARSE_TO_DENSE"), (1,)),
    **dict.fromkeys(("BATCH_TO_SPACE_ND", "SLICE", "SPACE_TO_BATCH_ND"), (1, 2)),
    **dict.fromkeys(("FILL", "SPLIT", "TRANSPOSE_CONV"), (0,)),
    "NON_MAX_SUPPRESSION_V4": (2, 3, 4),
    "NON_MAX_SUPPRESSION_V5": (2, 3, 4, 5),
    "RANGE": (0, 1, 2),
    "SCATTER_ND": (2,),
    "SPLIT_V": (2,),
    "STRIDED_SLICE": (1, 2, 3),
}
"""Op -> which of its operands must be known before a run; a loop that is left has no others."""
_MAX_ELEMENTS = {"i": 64, "u": 64, "b": 64, "f": 16}
"""By kind of dtype: how many numbers an input may hold that is taken for one of sizes, axes or counts."""


def deciding_inputs(graph: TfliteGraph) -> tuple[str, ...]:
    """Return the inputs whose values decide shapes; none where one of them is data, which differs with each call."""
    makers = {index: op for op in graph.ops for index in op.outputs}
    todo = [op.inputs[place] for op in graph.ops for place in _DECIDING.get(op.name, ()) if place < len(op.inputs)]
    todo.extend(index for op in graph.ops if op.name == "WHILE" for index in op.inputs)
    seen: set[int] = set()
    while todo:
        index = todo.pop()
        if index in seen:
            continue
        seen.add(index)
        if index in makers and makers[index].name not in ("SHAPE", "RANK"):
            todo.extend(makers[index].inputs)
    found = [graph.tensors[index] for index in graph.inputs if index in seen]
    return tuple(tensor.name for tensor in found) if all(_is_small(tensor) for tensor in found) else ()


def _is_small(tensor: TfliteTensor) -> bool:
    return len(tensor.shape) <= 1 and math.prod(tensor.shape) <= _MAX_ELEMENTS.get(np.dtype(tensor.dtype).kind, 1)


def checked_values(graph: TfliteGraph, values: Mapping[str, Any], origin: str) -> dict[str, npt.NDArray[Any]]:
    """Return values of inputs as arrays that fit them.

    Raises
    ------
    ModelError
        A value of no input, or one that does not fit it.
    """
    inputs = {graph.tensors[index].name: graph.tensors[index] for index in graph.inputs}
    unknown = [name for name in values if name not in inputs]
    if unknown:
        raise ModelError(f"{origin}: there is no input {unknown[0]!r} to give a value; the inputs are {', '.join(inputs)}")
    try:
        return {name: bound_value(name, value, inputs[name].dtype, inputs[name].shape) for name, value in values.items()}
    except DataError as error:
        raise ModelError(f"{origin}: {error}") from None
