"""Kernel calls of composites: group_norm. Reads no QDQ graph."""

from __future__ import annotations

from tvm.relax import Var

from .....ir.composites.normalization import GroupNormOp
from .....ir.composites.outputs import output_spec
from .. import kernels
from ..context import KernelContext
from ..emitters import emits
from ..kernels import GroupNormSpec
from .float_group_norm import channel_groups
from .softmax import write_rows


@emits(GroupNormOp)
def emit_group_norm(op: GroupNormOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    spec = GroupNormSpec(
        groups=channel_groups(op.x.shape, op.axis, op.groups, context.threads),
        scale=float(op.x.params.scale),
        epsilon=op.epsilon,
        out_scale=float(op.y.tensor.params.scale),
        output=output_spec(op.y),
    )
    kernel = kernels.group_norm(spec, gamma=op.gamma, beta=op.beta, isa=context.isa)
    write_rows(context, inputs[op.x.name], output, op.axis, kernel)
