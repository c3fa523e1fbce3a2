"""Rule of sums and extremes of int16 tensors over any axes; what it matches is what the 8-bit rule matches."""

from __future__ import annotations

import math
from dataclasses import replace

from tvm.relax import Var

from ...composites.reduction import Int16ReduceOp, ReduceOp
from ...graph.dataflow import DataflowView
from ...graph.rules import Region, Rejection
from ...numerics.limits import INT16_MAX_COUNT
from ...target import OpSupport
from ..rounding import is_fixed_int16
from .reduce import match_reduce


def match_int16_sum_or_extreme(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim what `match_reduce` claims; sums where the source is a TFLite file, extremes that keep their parameters."""
    found = match_reduce(view, core, support)
    if isinstance(found, Rejection):
        return found
    form: ReduceOp = found.form
    x, y = form.x, form.y.tensor
    if (x.kernel_dtype, y.kernel_dtype) != ("int16", "int16"):
        return Rejection(reason=f"of {x.name} and its result one has 16 bits and one has not; the 16-bit kernel takes both")
    if form.kind != "sum":
        if x.params != y.params:
            return Rejection(reason="it changes scale or zero point; the 16-bit kernel of an extreme keeps them")
        return replace(found, form=Int16ReduceOp(base=form))
    count = math.prod(x.shape[axis] for axis in form.axes)
    if not is_fixed_int16(view):
        return Rejection(reason="sums of int16 are integer in TFLite files alone; the frameworks of other sources add in float")
    if count > INT16_MAX_COUNT // 2:
        return Rejection(reason=f"it sums {count} int16 values at once; the kernel takes {INT16_MAX_COUNT // 2}")
    return replace(found, form=Int16ReduceOp(base=form))
