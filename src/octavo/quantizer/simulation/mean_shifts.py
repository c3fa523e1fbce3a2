"""Mean shifts of rounded tensors that corrected biases take out again: which channels they are of. It rounds nothing.

What rounding or clipping a tensor moves on average, channel by channel, moves the sums of the products that read it by as much
for every sample, and a corrected bias has it in it. Only what varies is left; but a function in between makes one of the other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax
from tvm.relax import Var

from ...ir.graph.dataflow import DataflowView, op_name, static_shape
from ...target.op_facts import FACTS, movers

_SUMS = ("add", "subtract", "concat", "nn.avg_pool2d")
"""Linear ops that leave axes where they are."""


def channel_axes(view: DataflowView, constants: Collection[str]) -> dict[str, int]:
    """Return the axis of the channels of each tensor that products alone read, through linear ops at most.

    Parameters
    ----------
    constants
        The names of the model's parameters: products of two activations have no bias.
    """
    found: dict[Var, int] = {}
    for var in (*reversed([binding.var for binding in view.bindings]), *view.function.params):
        users = view.users(var)
        axes = {_axis_read(view, var, user, found, constants) for user in users}
        axis = axes.pop() if len(axes) == 1 and not view.is_returned(var) else None
        if axis is not None:
            found[var] = axis
    return {var.name: axis for var, axis in found.items()}


def mean_shift(
    rounded: Sequence[npt.NDArray[np.float32]], exact: Sequence[npt.NDArray[np.float32]], axis: int
) -> npt.NDArray[np.float32]:
    """Return what samples of a tensor are off on average, channel by channel, broadcast to its rank."""
    others = tuple(each for each in range(rounded[0].ndim) if each != axis)
    shifts = [
        np.mean(one - other, axis=others, dtype=np.float64, keepdims=True) for one, other in zip(rounded, exact, strict=True)
    ]
    return np.mean(shifts, axis=0).astype(np.float32)


def _axis_read(view: DataflowView, var: Var, user: Var, found: dict[Var, int], constants: Collection[str]) -> int | None:
    """Return the axis of a tensor's channels as one op that reads it has them; None where its mean is more than a bias."""
    value = view.definition(user)
    name, shape, result = op_name(value), static_shape(var), static_shape(user)
    if not isinstance(value, relax.Call) or shape is None or result is None:
        return None
    facts = FACTS.get(name)
    if facts is not None and facts.weight is not None:
        weight = value.args[facts.weight]
        if (isinstance(weight, Var) and weight.name not in constants) or not value.args[0].same_as(var):
            return None
        layout = str(getattr(value.attrs, "data_layout", ""))
        return layout.index("C") if "C" in layout else len(shape) - 1
    axis = found.get(user)
    if axis is None:
        return None
    if name in _SUMS and len(shape) == len(result):
        return axis
    if name == "mean":
        attrs: Any = value.attrs
        gone = range(len(shape)) if attrs.axis is None else [int(each) % len(shape) for each in attrs.axis]
        return axis if attrs.keepdims else [each for each in range(len(shape)) if each not in gone][axis]
    if name in movers("view"):
        before, after = ([each for each, size in enumerate(sizes) if size != 1] for sizes in (shape, result))
        if [shape[each] for each in before] == [result[each] for each in after] and axis in after:
            return before[after.index(axis)]
    return None
