"""Kernel calls of composites: gather. Reads no QDQ graph."""

from __future__ import annotations

from tvm.relax import Var

from .....ir.composites.movement import GatherOp
from .....ir.qdq.matchers.move import changes
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import GatherSpec
from ..storage import TO_NHWC
from .move import requantized


@emits(GatherOp)
def emit_gather(op: GatherOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    var = inputs[op.x.name]
    shape = tuple(len(indices) for indices in op.maps)
    is_nhwc = len(shape) == 4 and shape == op.y.tensor.shape and context.storage.is_kept_nhwc(var)
    maps = tuple(op.maps[axis] for axis in TO_NHWC) if is_nhwc else op.maps
    value = context.storage.get(var, is_nhwc=is_nhwc)
    dtype = op.x.kernel_dtype
    spec = GatherSpec(shape=shape_of(value), maps=maps, fill=op.fill + op.x.relabelling, dtype=dtype, threads=context.threads)
    kernel = kernels.gather(spec, isa=context.isa)
    changed = changes(op.x, op.y)
    moved = tuple(len(indices) for indices in maps)
    value = context.call(f"{output.name}_moved" if changed else output.name, kernel, [value], moved, dtype)
    if shape != op.y.tensor.shape:
        value = context.reshape(f"{output.name}_shaped", value, op.y.tensor.shape)
    if changed:
        value = requantized(context, output.name, value, op.x.params, op.y)
    context.put(output, value, is_nhwc=is_nhwc)
