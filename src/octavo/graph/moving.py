"""What ops that move each element of their operand once do to an array: views, transposition, flip. Reads no other ops."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..ops import movers
from .dataflow import call_to

ScalarT = TypeVar("ScalarT", bound=np.generic)

MOVED_CONSTANTS = movers("view", "transpose", "reverse")
"""The ops through which a constant is still read as one."""


def moved(call: Any, array: npt.NDArray[ScalarT]) -> npt.NDArray[ScalarT]:
    """Return what one of the `MOVED_CONSTANTS` ops, whose result has a known shape, gives of an array."""
    if call_to(call, "permute_dims") is not None:
        axes = call.attrs.axes
        return np.transpose(array, None if axes is None else [int(axis) for axis in axes])
    if call_to(call, "flip") is not None:
        return np.flip(array, int(call.attrs.axis))
    return array.reshape(tuple(int(dim) for dim in call.ty.shape.values))
