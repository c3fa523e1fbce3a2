"""The rule of observed tensors: the observer reads the tensor as it lies in memory, in whichever form kernels keep it.

An observed convolution or matmul is claimed by the rule of its own (float_conv2d.py); this one takes what remains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm.relax import Expr, Var

from .. import kernels
from ..graph.dataflow import DataflowView, static_shape
from ..graph.observe import ObserveCall, read_observe
from ..graph.rules import Region, Rejection
from ..kernels import ObserveSpec
from .context import KernelContext, shape_of
from .forms import Form


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """The parameters that an observer writes to, by name, and the channel axis of the tensor in the source's layout."""

    ranges: str
    counts: str
    channel_axis: int | None

    @staticmethod
    def of(call: ObserveCall) -> Observation:
        """Return the observation of a call."""
        return Observation(ranges=call.ranges.name, counts=call.counts.name, channel_axis=call.channel_axis)

    def spec(self, shape: Sequence[int], *, is_nhwc: bool, low: float = -math.inf, high: float = math.inf) -> ObserveSpec:
        """Return what the kernel is asked for; `shape` is the tensor's in memory, `is_nhwc` if that is permuted from NCHW."""
        if is_nhwc:
            batch, height, width, channels = shape
            outer = batch * height * width
            return ObserveSpec(outer=outer, channels=channels, inner=1, plane=height * width, low=low, high=high)
        axis = self.channel_axis
        if axis is None:
            return ObserveSpec(outer=math.prod(shape), channels=1, inner=1, low=low, high=high)
        outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        return ObserveSpec(outer=outer, channels=shape[axis], inner=inner, low=low, high=high)

    def states(self, inputs: dict[str, Var]) -> list[Expr]:
        """Return the parameters that the observer writes to."""
        return [inputs[self.ranges], inputs[self.counts]]

    def write(self, context: KernelContext, name: str, value: Expr, inputs: dict[str, Var], spec: ObserveSpec) -> Expr:
        """Write the observer's call over a value in memory; return that value, clamped if the spec clamps."""
        arguments = [value, *self.states(inputs)]
        kernel = kernels.observe(spec, isa=context.isa)
        if spec.clamps:
            return context.call(name, kernel, arguments, shape_of(value), "float32")
        context.keep(context.call(f"{name}_seen", kernel, arguments, (1,), "int32"))
        return value


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ObserveForm(Form):
    """An observed float32 tensor; what it computes is the tensor itself."""

    tensor: str
    observation: Observation

    def quantize_info(self) -> dict[str, Any]:
        """Return nothing: no tensor of it is quantized."""
        return {}

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        tensor = inputs[self.tensor]
        is_nhwc = self.observation.channel_axis == 1 and context.storage.is_kept_nhwc(tensor)
        value = context.storage.get(tensor, is_nhwc=is_nhwc)
        spec = self.observation.spec(shape_of(value), is_nhwc=is_nhwc)
        self.observation.write(context, output.name, value, inputs, spec)
        context.put(output, value, is_nhwc=is_nhwc)


def match_observe(view: DataflowView, core: Var) -> Region | Rejection:
    """Claim one observing call."""
    call = read_observe(view.definition(core))
    assert call is not None, "the rule names no other op"
    assert static_shape(core) is not None, "only tensors of static shape are observed"
    form = ObserveForm(tensor=call.tensor.name, observation=Observation.of(call))
    return Region(core=core, output=core, members=(core,), inputs=(call.tensor, call.ranges, call.counts), attrs={}, form=form)
