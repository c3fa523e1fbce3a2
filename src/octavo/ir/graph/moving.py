"""What ops that move each element of their operand once do to an array: views, transposition, flip. Reads no other ops."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ...runtime.shapes import evaluated
from ...target.op_facts import movers
from .dataflow import DataflowView, call_to, static_shape

ScalarT = TypeVar("ScalarT", bound=np.generic)

CONSTANT_MOVERS = movers("view", "transpose", "reverse")
"""The ops through which a constant is still read as one."""


def call_behind_views(view: DataflowView, var: Any, *names: str) -> Any | None:
    """Return the call of one of these ops that a value holds the numbers of, in whatever shape; None where it is none."""
    value = view.definition(var)
    while (reshaped := call_to(value, *movers("view"))) is not None:
        value = view.definition(reshaped.args[0])
    return call_to(value, *names)


def apply_mover(call: Any, array: npt.NDArray[ScalarT], sizes: Mapping[str, int] = MappingProxyType({})) -> npt.NDArray[ScalarT]:
    """Return what one of the `CONSTANT_MOVERS` ops, whose result has a known shape, gives of an array, at these open sizes."""
    if call_to(call, "permute_dims") is not None:
        axes = call.attrs.axes
        return np.transpose(array, None if axes is None else [int(axis) for axis in axes])
    if call_to(call, "flip") is not None:
        return np.flip(array, int(call.attrs.axis))
    return array.reshape(evaluated(static_shape(call) or (), sizes))
