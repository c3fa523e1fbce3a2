"""Rule of sums and extremes of int16 tensors over any axes; what it matches is what the 8-bit rule matches."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from tvm.relax import Var

from ..graph.dataflow import DataflowView
from ..graph.rules import Region, Rejection
from ..kernels.int16_elementwise import INT16_MAX_COUNT
from ..kernels.int16_reduce import Int16ReduceSpec, int16_reduce
from ..target import OpSupport
from .context import KernelContext, ratio
from .forms import Form
from .reduce import ReduceForm, match_reduce, run_of
from .rounding import is_fixed_int16
from .storage import TO_NHWC


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Int16ReduceForm(Form):
    """A sum, a maximum or a minimum, whose facts the 8-bit rule found."""

    base: ReduceForm

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role."""
        return self.base.quantize_info()

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        base = self.base
        assert base.kind != "mean", "means have a rule of their own"
        run = run_of(context, inputs[base.x.name], base.x.shape, base.axes, f"{output.name}_rows")
        shape = base.y.tensor.shape
        is_nhwc = run.is_nhwc and len(shape) == 4
        spec = Int16ReduceSpec(
            kind=base.kind,
            outer=run.outer,
            count=run.extent,
            inner=run.inner,
            multiplier=ratio(base.x.params, base.y.tensor.params),
            input_zero_point=base.x.zero_point,
            output=base.y.spec(),
            threads=context.threads,
        )
        shape = tuple(shape[axis] for axis in TO_NHWC) if is_nhwc else shape
        value = context.call(output.name, int16_reduce(spec, isa=context.isa), [run.value], shape, "int16")
        context.put(output, value, is_nhwc=is_nhwc)


def match_int16_sum_or_extreme(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim what `match_reduce` claims; sums where the source is a TFLite file, extremes that keep their parameters."""
    found = match_reduce(view, core, support)
    if isinstance(found, Rejection):
        return found
    form: ReduceForm = found.form
    x, y = form.x, form.y.tensor
    if (x.kernel_dtype, y.kernel_dtype) != ("int16", "int16"):
        return Rejection(reason=f"of {x.name} and its result one has 16 bits and one has not; the 16-bit kernel takes both")
    if form.kind != "sum":
        if x.params != y.params:
            return Rejection(reason="it changes scale or zero point; the 16-bit kernel of an extreme keeps them")
        return replace(found, form=Int16ReduceForm(base=form))
    count = math.prod(x.shape[axis] for axis in form.axes)
    if not is_fixed_int16(view):
        return Rejection(reason="sums of int16 are integer in TFLite files alone; the frameworks of other sources add in float")
    if count > INT16_MAX_COUNT // 2:
        return Rejection(reason=f"it sums {count} int16 values at once; the kernel takes {INT16_MAX_COUNT // 2}")
    return replace(found, form=Int16ReduceForm(base=form))
