"""Kernel calls of composites: float_group_norm. Reads no QDQ graph."""

from __future__ import annotations

import math

from tvm.relax import Var

from .....ir.composites.float_ops import FloatGroupNormOp
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import ChannelGroups, FloatGroupNormSpec
from .softmax import write_rows


@emits(FloatGroupNormOp)
def emit_float_group_norm(op: FloatGroupNormOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    x, *beside = (inputs[name] for name in op.inputs)
    groups = channel_groups(shape_of(x), op.axis, op.groups, context.threads)
    spec = FloatGroupNormSpec(groups=groups, epsilon=op.epsilon, function=op.function)
    kernel = kernels.float_group_norm(spec, gamma=op.gamma, beta=op.beta, isa=context.isa)
    write_rows(context, x, output, op.axis, kernel, "float32", beside=beside)


def channel_groups(shape: tuple[int, ...], axis: int, groups: int, threads: int) -> ChannelGroups:
    """Return a tensor with channels along `axis` as kernels see it."""
    pixels = math.prod(shape[1:]) // shape[axis]
    return ChannelGroups(images=shape[0], pixels=pixels, channels=shape[axis], groups=groups, threads=threads)
