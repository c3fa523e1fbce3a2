"""Constants that have a scale and a zero point for each block of neighbours along an axis: how they are written, and read again.

`relax.dequantize` has parameters per axis alone: each block is a row of its own, in between two moves ::

    rows = R.reshape(R.permute_dims(R.reshape(w_q, (out, blocks, block)), ...), (out * blocks, block))
    real = R.dequantize(rows, scale, zero_point, axis=0)
    w = R.reshape(R.permute_dims(R.reshape(real, (out, blocks, block)), ...), (out, in))
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax
from tvm.relax import Expr

from ...numerics import PerBlock, QuantParams
from ..graph.dataflow import static_shape
from ..graph.nodes import constant
from ..untyped import ops
from .values import ConstantValue


def write_blocks(integers: Expr, params: QuantParams, emit: Callable[[Any], Any], dtype: str = "float32") -> Any:
    """Return the dequantized value of a tensor of whole blocks; `emit` binds what it is made of.

    Parameters
    ----------
    dtype
        Of the scales, and of the result.
    """
    blocks, shape = params.granularity, static_shape(integers)
    assert isinstance(blocks, PerBlock), "checked by the caller"
    assert shape is not None, "checked by the caller"
    axis, size = blocks.axis, blocks.size
    scale, zero_point = params.scale.reshape(-1), params.zero_point.reshape(-1)
    count = scale.size
    cut = [*shape[:axis], shape[axis] // size, size, *shape[axis + 1 :]]
    order = [at for at in range(len(cut)) if at != axis + 1] + [axis + 1]
    is_last = order == list(range(len(cut)))

    def permuted(value: Any, axes: list[int]) -> Any:
        return value if is_last else emit(ops.permute_dims(value, axes))

    rows = integers if is_last else permuted(emit(ops.reshape(integers, cut)), order)
    rows = emit(ops.reshape(rows, [count, size] if count > 1 else [1, math.prod(shape)]))
    parameters = (scale, zero_point) if count > 1 else (scale.reshape(()), zero_point.reshape(()))
    real = emit(
        ops.dequantize(rows, relax.const(parameters[0].astype(dtype), dtype), constant(parameters[1]), axis=0, out_dtype=dtype)
    )
    if not is_last:
        back = sorted(range(len(order)), key=order.__getitem__)
        real = permuted(emit(ops.reshape(real, [cut[at] for at in order])), back)
    return ops.reshape(real, list(shape))


def block_size(weight: ConstantValue) -> int:
    """Return how many neighbours along the first axis share a scale and a zero point wherever these are, at most."""
    assert weight.scale is not None, "checked by the caller"
    assert weight.zero_point is not None, "checked by the caller"
    size = len(weight.values)
    for values in (weight.scale, weight.zero_point):
        changes = np.flatnonzero((values[1:] != values[:-1]).any(axis=tuple(range(1, values.ndim)))) + 1
        size = math.gcd(size, *(int(change) for change in changes))
    return size


def of_blocks(values: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """Return one of each `size` neighbours along the first axis."""
    return np.ascontiguousarray(values[::size])
