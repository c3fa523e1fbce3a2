"""Kernel calls of composites: observe. Reads no QDQ graph."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm.relax import Expr, Var

from .....ir.composites.float_ops import Observation, ObserveOp
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import ObserveSpec


def observe_spec(
    op: Observation, shape: Sequence[int], *, is_nhwc: bool, low: float = -math.inf, high: float = math.inf
) -> ObserveSpec:
    """Return what the kernel is asked for; `shape` is the tensor's in memory, `is_nhwc` if that is permuted from NCHW."""
    if is_nhwc:
        batch, height, width, channels = shape
        outer = batch * height * width
        return ObserveSpec(outer=outer, channels=channels, inner=1, plane=height * width, low=low, high=high)
    axis = op.channel_axis
    if axis is None:
        return ObserveSpec(outer=math.prod(shape), channels=1, inner=1, low=low, high=high)
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    return ObserveSpec(outer=outer, channels=shape[axis], inner=inner, low=low, high=high)


def write_observation(
    op: Observation, context: KernelContext, name: str, value: Expr, inputs: dict[str, Var], spec: ObserveSpec
) -> Expr:
    """Write the observer's call over a value in memory; return that value, clamped if the spec clamps."""
    arguments = [value, *op.states(inputs)]
    kernel = kernels.observe(spec, isa=context.isa)
    if spec.clamps:
        return context.call(name, kernel, arguments, shape_of(value), "float32")
    context.keep(context.call(f"{name}_seen", kernel, arguments, (1,), "int32"))
    return value


@emits(ObserveOp)
def emit_observe(op: ObserveOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    tensor = inputs[op.tensor]
    is_nhwc = op.observation.channel_axis == 1 and context.storage.is_kept_nhwc(tensor)
    value = context.storage.get(tensor, is_nhwc=is_nhwc)
    spec = observe_spec(op.observation, shape_of(value), is_nhwc=is_nhwc)
    write_observation(op.observation, context, output.name, value, inputs, spec)
    context.put(output, value, is_nhwc=is_nhwc)
