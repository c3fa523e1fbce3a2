"""Rule of softmax and its logarithm; rows that do not lie together are brought so, by our layout or a transposition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.relax import Expr, Var

from .. import kernels
from ..graph.dataflow import DataflowView, call_to, static_shape
from ..graph.rules import Region, Rejection
from ..kernels import Kernel, SoftmaxSpec
from ..numerics import LOG_SOFTMAX_MIN_SCALE, SOFTMAX_MAX_COLUMNS
from ..target import OpSupport
from .context import KernelContext, shape_of
from .forms import Form, OutputForm, TensorForm
from .rounding import rounding_of
from .tail import check_activation, follow_to_quantize
from .values import Dequantized, dequantized, numpy_constant


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SoftmaxForm(Form):
    """softmax(beta * x), or its logarithm, along `axis` of the source's layout."""

    x: TensorForm
    y: OutputForm
    axis: int
    beta: float
    is_log: bool
    rounding: str = "half_even"

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role, and the rounding where it is not half to even."""
        info = {"input": self.x.info(), "output": self.y.info()}
        return info if self.rounding == "half_even" else {**info, "rounding": self.rounding}

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        columns = self.x.shape[self.axis]
        spec = SoftmaxSpec(
            rows=math.prod(self.x.shape) // columns,
            columns=columns,
            scale=float(np.float32(self.x.params.scale) * np.float32(self.beta)),
            out_scale=self._out_scale(),
            output=self.y.spec(),
            threads=context.threads,
        )
        kernel = (kernels.log_softmax if self.is_log else kernels.softmax)(spec, isa=context.isa)
        write_rows(context, inputs[self.x.name], output, self.axis, kernel)

    def _out_scale(self) -> float:
        """Return the real value of a step, or with "whole_steps" the next that goes into 1 a whole number of times."""
        scale = np.float32(self.y.tensor.params.scale)
        steps = np.floor(np.float32(1) / scale) if self.rounding == "whole_steps" else np.float32(0)
        return float(np.float32(1) / steps) if steps >= 1 else float(scale)


def write_rows(
    context: KernelContext,
    x: Var,
    output: Var,
    axis: int,
    kernel: Kernel,
    dtype: str = "uint8",
    *,
    beside: Sequence[Var] = (),
) -> None:
    """Write the call of a kernel on rows along `axis` of `x`, which is moved to the end for it where it lies elsewhere.

    So is that of the tensors of the same shape that it reads `beside`.
    """
    shape, tensors = shape_of(x), (x, *beside)
    if _is_last(shape, axis) or (len(shape) == 4 and axis == 1):
        is_nhwc = not _is_last(shape, axis)
        values = [context.storage.get(tensor, is_nhwc=is_nhwc) for tensor in tensors]
        context.put(output, context.call(output.name, kernel, values, shape_of(values[0]), dtype), is_nhwc=is_nhwc)
        return
    order = (*(other for other in range(len(shape)) if other != axis), axis)
    rows: list[Expr] = [
        context.permute(f"{output.name}_in_rows{number or ''}", context.storage.get(tensor, is_nhwc=False), order)
        for number, tensor in enumerate(tensors)
    ]
    result = context.call(f"{output.name}_by_row", kernel, rows, shape_of(rows[0]), dtype)
    back = tuple(order.index(other) for other in range(len(shape)))
    context.put(output, context.permute(output.name, result, back), is_nhwc=False)
    context.does_the_work(kernel)


def match_softmax(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim quantize(softmax(dequantize(x))), or quantize(log_softmax(...)), or of a positive constant times dequantize(x)."""
    call = call_to(view.definition(core), "nn.softmax", "nn.log_softmax")
    assert call is not None
    found = _source(view, call.args[0])
    if isinstance(found, Rejection):
        return found
    x, beta, members = found
    shape = static_shape(x.source)
    if not isinstance(x.source, Var) or shape is None:
        return Rejection(reason=f"the input of {core.name} is a constant, or its shape is not static")
    axis = int(call.attrs.axis) % len(shape)
    if shape[axis] > SOFTMAX_MAX_COLUMNS:
        return Rejection(reason=f"its rows hold {shape[axis]} values; the kernel takes {SOFTMAX_MAX_COLUMNS}")
    problem = check_activation(x.source.name, x.params, support)
    if problem is not None:
        return problem
    tail = follow_to_quantize(view, core, support)
    if isinstance(tail, Rejection):
        return tail
    is_log = call_to(call, "nn.log_softmax") is not None
    if is_log and float(tail.form.tensor.params.scale) < LOG_SOFTMAX_MIN_SCALE:
        return Rejection(reason=f"its result has steps of {float(tail.form.tensor.params.scale)}, too small for the kernel")
    source = TensorForm(name=x.source.name, shape=shape, params=x.params)
    # A factor in between keeps a softmax from the kernels that round otherwise.
    rounding = "half_even" if is_log or beta != 1.0 else rounding_of(view, "nn.softmax")
    form = SoftmaxForm(x=source, y=tail.form, axis=axis, beta=beta, is_log=is_log, rounding=rounding)
    return Region(
        core=core,
        output=tail.output,
        members=(*members, core, *tail.members),
        inputs=(x.source,),
        attrs={"quantize_info": form.quantize_info()},
        form=form,
    )


def _source(view: DataflowView, arg: Expr) -> tuple[Dequantized, float, tuple[Var, ...]] | Rejection:
    """Return what is dequantized, the factor beta, and the variables between (in order)."""
    name = getattr(arg, "name", "constant")
    x, beta = dequantized(view, arg), 1.0
    members: tuple[Var, ...] = ()
    scaled = call_to(view.definition(arg), "multiply")
    if scaled is not None:
        sides = [(dequantized(view, a), numpy_constant(view.definition(b))) for a, b in (scaled.args, scaled.args[::-1])]
        x, factor = next(((a, b) for a, b in sides if a is not None and b is not None and b.size == 1), (None, None))
        var = view.binding_of(arg)
        beta = float(np.asarray(factor).reshape(())) if factor is not None else 0.0
        members = () if var is None else (var,)
    if x is None:
        return Rejection(reason=f"input {name} is float; quantize and dequantize it (constant scale) before this op")
    if not beta > 0.0:
        return Rejection(reason=f"its input is multiplied by {beta}; the kernel takes positive factors")
    return x, beta, (*(() if x.var is None else (x.var,)), *members)


def _is_last(shape: tuple[int, ...], axis: int) -> bool:
    return math.prod(shape[axis + 1 :]) == 1
