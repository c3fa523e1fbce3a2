"""Rules of ops that only move or clamp values: reshape, squeeze, transposition, relu and clip alone, a change of parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var

from .. import kernels
from ..graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ..graph.rules import Region, Rejection
from ..kernels import RequantizeSpec
from ..numerics import INTEGER_RANGE, QuantParams, requantize_tensor
from ..numerics.quantized.rescale import rescale_table
from ..target import OpSupport
from .context import KernelContext, ratio, shape_of
from .forms import ElementFunction, Form, OutputForm, TensorForm
from .lookup import LookupForm
from .rounding import rounding_of
from .storage import TO_NHWC
from .tail import check_activation, clamp_in_integers, clip_bounds, follow_to_quantize, integer_clamp
from .values import dequantized, integer_params

_CLAMPS = OpSupport(op="clip", fusions=("nn.relu", "clip"))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MoveForm(Form):
    """Data movement (reshape, squeeze, transposition), or none at all (a clamp, a change of parameters).

    `axes` is the permutation of a transposition, None for a reshape.
    """

    x: TensorForm
    y: OutputForm
    axes: tuple[int, ...] | None

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role."""
        return {"input": self.x.info(), "output": self.y.info()}

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        var = inputs[self.x.name]
        keeps_shape = self.axes is None and self.x.shape == self.y.tensor.shape
        is_nhwc = context.storage.is_kept_nhwc(var) and (keeps_shape or self.axes == TO_NHWC or self._is_flat_image)
        value = context.storage.get(var, is_nhwc=is_nhwc)
        if self.axes is not None and not is_nhwc:
            value = context.permute(f"{output.name}_moved", value, self.axes)
        elif shape_of(value) != self.y.tensor.shape and not (is_nhwc and keeps_shape):
            value = context.reshape(f"{output.name}_moved", value, self.y.tensor.shape)
        if changes(self.x, self.y):
            value = requantized(context, output.name, value, self.x.params, self.y)
        context.put(output, value, is_nhwc=is_nhwc and keeps_shape)

    def element_function(self) -> ElementFunction | None:
        """Return the change of parameters or the clamp, where nothing is moved."""
        if self.axes is not None or self.x.shape != self.y.tensor.shape or self.x.kernel_dtype != "uint8":
            return None
        out, multiplier = self.y.spec(), ratio(self.x.params, self.y.tensor.params)

        def of(x: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
            result = requantize_tensor(
                x,
                input_zero_point=self.x.zero_point,
                multiplier=multiplier,
                zero_point=out.zero_point,
                qmin=out.qmin,
                qmax=out.qmax,
            )
            return result.astype(np.uint8)

        return ElementFunction(operands={"input": self.x}, result=self.y, of=of)

    @property
    def _is_flat_image(self) -> bool:
        """Whether an NCHW image is reshaped in a way that NHWC memory serves as well: height and width are 1."""
        return self.axes is None and len(self.x.shape) == 4 and self.x.shape[2] == self.x.shape[3] == 1


def match_move(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim quantize(move(dequantize(x))), or a movement of integers, as one composite "octavo.move"."""
    call = view.definition(core)
    axes = _axes(view, core)
    if dtype_of(core) in INTEGER_RANGE:
        return _integer_move(view, core, axes, support)
    x = dequantized(view, call.args[0])
    shape = None if x is None else static_shape(x.source)
    if x is None or not isinstance(x.source, Var) or shape is None:
        name = getattr(call.args[0], "name", "constant")
        return Rejection(reason=f"input {name} is float; quantize and dequantize it (constant scale) before this op")
    problem = check_activation(x.source.name, x.params, support)
    if problem is not None:
        return problem
    tail = follow_to_quantize(view, core, _CLAMPS if op_name(call) in ("nn.relu", "clip") else support)
    if isinstance(tail, Rejection):
        return tail
    y = _with_own_clamp(call, tail.form)
    if isinstance(y, Rejection):
        return y
    form = MoveForm(x=TensorForm(name=x.source.name, shape=shape, params=x.params), y=y, axes=axes)
    return Region(
        core=core,
        output=tail.output,
        members=(*([x.var] if x.var is not None else []), core, *tail.members),
        inputs=(x.source,),
        attrs={"quantize_info": form.quantize_info()},
        form=form,
    )


def match_requantize(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim quantize(dequantize(x)): a change of scale, zero point or dtype."""
    call = call_to(view.definition(core), "quantize")
    assert call is not None
    x = dequantized(view, call.args[0])
    shape, params = static_shape(core), integer_params(view, core)
    if x is None or not isinstance(x.source, Var) or shape is None or params is None:
        return Rejection(reason=f"input {getattr(call.args[0], 'name', 'constant')} is float")
    problem = check_activation(x.source.name, x.params, support) or check_activation(core.name, params, support)
    if problem is not None:
        return problem
    output, qmin, qmax = integer_clamp(view, core, params.qmin, params.qmax)
    y = OutputForm(tensor=TensorForm(name=output.name, shape=shape, params=params), qmin=qmin, qmax=qmax)
    source = TensorForm(name=x.source.name, shape=shape, params=x.params)
    form: Form = MoveForm(x=source, y=y, axes=None)
    if rounding_of(view, "quantize") == "half_up" and ratio(x.params, params) != 1.0:
        form = LookupForm(x=source, y=y, table=rescale_table(x.params, params, qmin=qmin, qmax=qmax))
    return Region(
        core=core,
        output=output,
        members=(*([x.var] if x.var is not None else []), core, *(() if output.same_as(core) else (output,))),
        inputs=(x.source,),
        attrs={"quantize_info": form.quantize_info()},
        form=form,
    )


def _axes(view: DataflowView, core: Var) -> tuple[int, ...] | None:
    call = call_to(view.definition(core), "permute_dims")
    shape = static_shape(core)
    if call is None or shape is None:
        return None
    if call.attrs.axes is None:
        return tuple(reversed(range(len(shape))))
    return tuple(int(axis) % len(shape) for axis in call.attrs.axes)


def _with_own_clamp(call: object, y: OutputForm) -> OutputForm | Rejection:
    clamp = call_to(call, "nn.relu", "clip")
    if clamp is None:
        return y
    bounds = (0.0, math.inf) if call_to(clamp, "nn.relu") is not None else clip_bounds(clamp)
    if bounds is None:
        return Rejection(reason="the bounds of the clip are not constants; make them so")
    low, high = clamp_in_integers(y.tensor.params, *bounds)
    return OutputForm(tensor=y.tensor, qmin=max(low, y.qmin), qmax=min(high, y.qmax))


def _integer_move(view: DataflowView, core: Var, axes: tuple[int, ...] | None, support: OpSupport) -> Region | Rejection:
    call = view.definition(core)
    source = call.args[0]
    params = integer_params(view, source) or integer_params(view, core)
    shape, out_shape = static_shape(source), static_shape(core)
    if params is None or not isinstance(source, Var) or shape is None or out_shape is None:
        return Rejection(reason=f"input {getattr(source, 'name', 'constant')} has no known scale or shape; dequantize it")
    problem = check_activation(source.name, params, support)
    if problem is not None:
        return problem
    qmin, qmax = params.qmin, params.qmax
    clip = call_to(call, "clip")
    if clip is not None:
        bounds = clip_bounds(clip)
        if bounds is None:
            return Rejection(reason="the bounds of the clip are not constants; make them so")
        qmin, qmax = max(qmin, math.ceil(max(bounds[0], qmin))), min(qmax, math.floor(min(bounds[1], qmax)))
    elif call_to(call, "nn.relu") is not None:
        return Rejection(reason="relu over integers ignores the zero point; write it between dequantize and quantize")
    y = OutputForm(tensor=TensorForm(name=core.name, shape=out_shape, params=params), qmin=qmin, qmax=qmax)
    form = MoveForm(x=TensorForm(name=source.name, shape=shape, params=params), y=y, axes=axes)
    return Region(
        core=core, output=core, members=(core,), inputs=(source,), attrs={"quantize_info": form.quantize_info()}, form=form
    )


def changes(x: TensorForm, y: OutputForm) -> bool:
    """Return whether a value's integers change, as kernels see them, on the way from `x` to `y`, besides moving."""
    out = y.spec()
    same = x.zero_point == out.zero_point and ratio(x.params, y.tensor.params) == 1.0
    return not same or (out.qmin, out.qmax) != INTEGER_RANGE[y.tensor.kernel_dtype]


def requantized(context: KernelContext, name: str, value: Expr, params: QuantParams, y: OutputForm) -> Var:
    """Write a change of parameters: `value` holds integers of `params` as kernels read them."""
    relabelling = 128 if params.dtype == "int8" else 0
    spec = RequantizeSpec(
        size=int(np.prod(shape_of(value))),
        multiplier=ratio(params, y.tensor.params),
        input_zero_point=int(params.zero_point) + relabelling,
        output=y.spec(),
        threads=context.threads,
    )
    return context.call(name, kernels.requantize(spec, isa=context.isa), [value], shape_of(value))
