"""Our converters of ONNX ops that repeat or pick values (Gather, Tile, Expand), of parts without elements (Concat, Split), and of
what old operator sets say by attributes (Slice).

Plain ops, where TVM's leave PrimFuncs or worse.

All shapes are static here. Indices and repetitions that are constants are written as such, which is what integer kernels and
constant folding need; indices that arrive at run time are brought into range, for TVM by default reads memory
at whatever they say.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst as Constant

from ...ir.untyped import ops
from ..frontend import RejectedOpError
from ..relax_ops import nonnegative_indices, shape_of
from .ops import Converter, NodeContext


def _gather(context: NodeContext, inputs: list[Any]) -> Any:
    """Take along one axis; the dimensions of the indices take the axis' place, so a scalar one drops it."""
    data, indices = inputs[0], inputs[1]
    if isinstance(data, Constant) and isinstance(indices, Constant):
        return None
    if not isinstance(getattr(indices, "ty", None), relax.TensorType) or not isinstance(data.ty, relax.TensorType):
        return None
    shape, wanted = shape_of(data), shape_of(indices)
    if not shape:
        raise RejectedOpError("it takes from a scalar")
    axis = int(context.attrs.get("axis", 0))
    if not -len(shape) <= axis < len(shape):
        raise RejectedOpError(f"axis {axis} is none of {shape}")
    axis %= len(shape)
    size = shape[axis]
    emit = context.builder.emit
    if not isinstance(indices, Constant):
        indices = emit(ops.reshape(emit(ops.astype(indices, "int64")), [-1]))
    flat = nonnegative_indices(emit, indices, size, f"on axis {axis} of {shape}")
    if isinstance(flat, np.ndarray):
        flat = relax.const(flat.reshape(-1), "int64")
    taken = ops.take(data, flat, axis=axis, mode="clip")
    if len(wanted) == 1:
        return taken
    return ops.reshape(emit(taken), [*shape[:axis], *wanted, *shape[axis + 1 :]])


def _tile(context: NodeContext, inputs: list[Any]) -> Any:
    if not isinstance(inputs[1], Constant):
        return None
    repeats = [int(value) for value in inputs[1].value.numpy().reshape(-1)]
    if len(repeats) != len(shape_of(inputs[0])) or min(repeats, default=1) < 1:
        raise RejectedOpError(f"repeats {repeats} do not fit an input of shape {shape_of(inputs[0])}")
    return inputs[0] if set(repeats) <= {1} else ops.tile(inputs[0], repeats)


def _expand(context: NodeContext, inputs: list[Any]) -> Any:
    """Repeat along axes of size 1; an axis of the target that is 1 keeps the input's size."""
    if isinstance(inputs[1], relax.ShapeExpr):
        dims: Any = inputs[1].values
        declared = [int(dim) for dim in dims]
    elif isinstance(inputs[1], Constant):
        declared = [int(value) for value in inputs[1].value.numpy().reshape(-1)]
    else:
        return None
    shape = shape_of(inputs[0])
    rank = max(len(shape), len(declared))
    wide, target = [1] * (rank - len(shape)) + shape, [1] * (rank - len(declared)) + declared
    if any(have not in (want, 1) and want != 1 for have, want in zip(wide, target, strict=True)) or min(target, default=1) < 1:
        raise RejectedOpError(f"an input of shape {shape} does not broadcast to {declared}")
    data = inputs[0] if wide == shape else context.builder.emit(ops.reshape(inputs[0], wide))
    repeats = [want if have == 1 else 1 for have, want in zip(wide, target, strict=True)]
    return data if set(repeats) <= {1} else ops.tile(data, repeats)


def _concat(context: NodeContext, inputs: list[Any]) -> Any:
    """Leave out parts without elements, which TVM generates no code for; leave all others to TVM."""
    if not all(isinstance(getattr(value, "ty", None), relax.TensorType) for value in inputs):
        return None
    kept = [value for value in inputs if 0 not in shape_of(value)]
    if len(kept) == len(inputs) or not kept:
        return None
    return kept[0] if len(kept) == 1 else ops.concat(kept, int(context.attrs["axis"]))


def _split(context: NodeContext, inputs: list[Any]) -> Any:
    """Cut off parts one by one where some have no elements; leave all others to TVM."""
    data = inputs[0]
    sizes = inputs[1].value.numpy().tolist() if len(inputs) > 1 and isinstance(inputs[1], Constant) else []
    sizes = context.ints("split", sizes)
    if 0 not in sizes:
        return None
    shape = shape_of(data)
    axis = int(context.attrs.get("axis", 0)) % len(shape)
    parts: list[Any] = []
    for start, size in zip(np.cumsum([0, *sizes]).tolist(), sizes, strict=False):
        empty = np.zeros([*shape[:axis], 0, *shape[axis + 1 :]], str(data.ty.dtype))
        part = ops.strided_slice(data, [axis], [start], [start + size]) if size else relax.const(empty)
        parts.append(context.builder.emit(part) if size else part)
    return relax.Tuple(parts)


def _slice(context: NodeContext, inputs: list[Any]) -> Any:
    """Cut as attributes say, before opset 10; leave what inputs say to TVM."""
    if context.opset >= 10:
        return None
    starts, ends = context.ints("starts", ()), context.ints("ends", ())
    axes = context.ints("axes", range(len(starts)))
    if not len(starts) == len(ends) == len(axes):
        raise RejectedOpError(f"it has starts {starts}, ends {ends} and axes {axes}, which must be as many")
    return ops.strided_slice(inputs[0], axes, starts, ends)


CONVERTERS: dict[str, Converter] = {
    "Concat": _concat,
    "Expand": _expand,
    "Gather": _gather,
    "Slice": _slice,
    "Split": _split,
    "Tile": _tile,
}
"""Our converters by ONNX op."""
