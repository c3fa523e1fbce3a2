"""Running sums along an axis in plain ops: TVM's own op does not build. Knows no file format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

# TVM's stubs claim narrower arguments than its ops take.
_ops: Any = relax.op


def running_sum(
    emit: Callable[[Any], Any], data: Any, shape: list[int], axis: int, *, reverse: bool = False, exclusive: bool = False
) -> Any:
    """Add the tensor, moved on by 1, 2, 4 ... places, to itself: as many rounds as the axis has binary digits.

    `axis` is counted from the front; `exclusive` leaves each element out of its own sum.
    """
    size = shape[axis]

    def moved(value: Any, places: int) -> Any:
        dtype = str(data.ty.dtype)
        gap = relax.const(np.zeros([places if i == axis else dim for i, dim in enumerate(shape)], dtype), dtype)
        begin, end = (places, size) if reverse else (0, size - places)
        kept = emit(_ops.strided_slice(value, axes=[axis], begin=[begin], end=[end])) if places < size else None
        parts = [part for part in ([kept, gap] if reverse else [gap, kept]) if part is not None]
        return emit(_ops.concat(parts, axis)) if len(parts) > 1 else parts[0]

    total = moved(data, 1) if exclusive and size else data
    places = 1
    while places < size:
        total = emit(_ops.add(total, moved(total, places)))
        places *= 2
    return total
