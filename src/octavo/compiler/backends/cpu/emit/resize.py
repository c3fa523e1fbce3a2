"""Kernel calls of composites: resize. Reads no QDQ graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm.relax import Expr, Var

from .....ir.composites.outputs import output_spec
from .....ir.composites.reduction import FloatResizeOp, OpenTaps, ResizeOp, taps_along
from .....ir.qdq.matchers.move.move import changes
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import FloatResizeSpec, Kernel, ResizeSpec
from .move import requantized


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TappedInput:
    """What any kernel reads, and the facts that every spec has.

    Parameters
    ----------
    value
        The image as it is kept, channels last.
    is_nhwc
        Whether it lies otherwise in the source, so that its channels were moved.
    facts
        Arguments that the specs share.
    result_shape
        [batch, height, width, channels] of the result.
    """

    value: Expr
    is_nhwc: bool
    facts: dict[str, Any]
    result_shape: tuple[int, int, int, int]

    @classmethod
    def of(cls, context: KernelContext, op: ResizeOp | FloatResizeOp, inputs: dict[str, Var]) -> TappedInput:
        """Read the input of an op."""
        is_nhwc, rows, columns = op.layout == "NCHW", op.rows, op.columns
        value = context.storage.get(inputs[op.x.name], is_nhwc=is_nhwc)
        batch, height, width, channels = shape_of(value)
        facts: dict[str, Any] = {"batch": batch, "in_height": height, "in_width": width, "channels": channels}
        facts |= {"rows": rows, "columns": columns, "threads": context.threads}
        result_shape = (batch, taps_along(rows), taps_along(columns), channels)
        return cls(value=value, is_nhwc=is_nhwc, facts=facts, result_shape=result_shape)


@emits(ResizeOp)
def emit_resize(op: ResizeOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    image = TappedInput.of(context, op, inputs)
    dtype = op.x.kernel_dtype
    spec = ResizeSpec(**image.facts, dtype=dtype, rounding=op.rounding)
    changed = changes(op.x, op.y)
    name = f"{output.name}_resized" if changed else output.name
    args = [image.value, *_tables(context, output, op, [(kernels.linear_taps, 3, "int32")])]
    value = context.call(name, kernels.resize_bilinear(spec, isa=context.isa), args, image.result_shape, dtype)
    if changed:
        value = requantized(context, output.name, value, op.x.params, op.y)
    context.put(output, value, is_nhwc=image.is_nhwc)


@emits(FloatResizeOp)
def emit_float_resize(op: FloatResizeOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    image = TappedInput.of(context, op, inputs)
    spec = FloatResizeSpec(
        **image.facts,
        in_scale=float(op.x.params.scale),
        input_zero_point=op.x.zero_point,
        out_scale=float(op.y.tensor.params.scale),
        output=output_spec(op.y),
        cuts_off=op.cuts_off,
    )
    tables: list[TapKernel] = [(kernels.float_tap_places, 2, "int32"), (kernels.float_tap_weights, 2, "float32")]
    args = [image.value, *_tables(context, output, op, tables)]
    value = context.call(output.name, kernels.float_resize_bilinear(spec, isa=context.isa), args, image.result_shape)
    context.put(output, value, is_nhwc=image.is_nhwc)


TapKernel = tuple[Callable[..., Kernel], int, str]
"""What makes a kernel of open taps, the columns of its table and their dtype."""


def _tables(context: KernelContext, output: Var, op: ResizeOp | FloatResizeOp, kinds: list[TapKernel]) -> list[Expr]:
    """Call the kernels of the tables of open taps, of rows and of columns; known ones are constants of the kernel."""
    found: list[Expr] = []
    for make, columns, dtype in kinds:
        for axis, taps in (("rows", op.rows), ("columns", op.columns)):
            if isinstance(taps, OpenTaps):
                kernel, shape = make(taps, isa=context.isa), (taps.out_extent * columns,)
                found.append(context.call(f"{output.name}_{kernel.name}_{axis}".replace(".", "_"), kernel, [], shape, dtype))
    return found
