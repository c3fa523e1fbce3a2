"""Rule of add."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax
from tvm.relax import Expr, Var

from .. import kernels
from ..graph.dataflow import DataflowView, call_to, static_shape
from ..graph.rules import Region, Rejection
from ..kernels import AddSpec
from ..target import OpSupport
from .context import KernelContext, shape_of
from .forms import ElementFunction, Form, OutputForm, TensorForm
from .rounding import float_sum_of, integer_sum, rounding_of
from .tail import check_activation, follow_to_quantize, unquantized
from .values import Dequantized, constant_value, dequantized


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AddForm(Form):
    """a + b + clamp; b may be broadcast over leading dimensions, or be a constant (`b_values` in b's own integers)."""

    a: TensorForm
    b: TensorForm
    b_values: npt.NDArray[Any] | None
    y: OutputForm
    rounding: str = "half_up"

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role, and the rounding where it is not half up."""
        info = {"input0": self.a.info(), "input1": self.b.info(), "output": self.y.info()}
        return info if self.rounding == "half_up" else {**info, "rounding": self.rounding}

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        a_var, b_var = inputs[self.a.name], inputs.get(self.b.name)
        same = self.a.shape == self.b.shape and b_var is not None
        is_nhwc = same and any(context.storage.is_kept_nhwc(var) for var in (a_var, b_var) if var is not None)
        a = context.storage.get(a_var, is_nhwc=is_nhwc)
        if self.b_values is not None:
            b: Expr = relax.const(_as_uint8(self.b_values))
        else:
            assert b_var is not None
            b = context.storage.get(b_var, is_nhwc=is_nhwc)
        constants, relabelling = float_sum_of(self.rounding, self.a, self.b, self.y.tensor)
        spec = AddSpec(
            size=int(np.prod(self.a.shape)),
            b_size=int(np.prod(self.b.shape)),
            a_scale=float(self.a.params.scale),
            a_zero_point=self.a.zero_point,
            b_scale=float(self.b.params.scale),
            b_zero_point=self.b.zero_point,
            out_scale=float(self.y.tensor.params.scale),
            output=self.y.spec(),
            float_sum=constants,
            relabelling=relabelling,
            threads=context.threads,
        )
        kernel = kernels.add(spec, isa=context.isa)
        context.put(output, context.call(output.name, kernel, [a, b], shape_of(a)), is_nhwc=is_nhwc)

    def element_function(self) -> ElementFunction | None:
        """Return the op, where b is not widened but a constant of one element."""
        fits = self.b.shape == self.a.shape if self.b_values is None else self.b_values.size == 1
        if not fits:
            return None
        if any(tensor.kernel_dtype != "uint8" for tensor in (self.a, self.b, self.y.tensor)):
            return None
        one = None if self.b_values is None else _as_uint8(self.b_values)

        def of(a: npt.NDArray[np.uint8], b: npt.NDArray[np.uint8] | None = None) -> npt.NDArray[np.uint8]:
            other = one if b is None else b
            assert other is not None
            return integer_sum(self.rounding, self.a, self.b, self.y, a, other)

        operands = {"input0": self.a, **({"input1": self.b} if one is None else {})}
        return ElementFunction(operands=operands, result=self.y, of=of)


def match_add(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim quantize(clamp(dequantize(a) + dequantize(b))); b may be a quantized constant or broadcast over leading axes."""
    call = call_to(view.definition(core), "add")
    assert call is not None
    sides = [dequantized(view, arg) for arg in call.args]
    for side, arg in zip(sides, call.args, strict=True):
        if side is None:
            return unquantized(arg)
    a, b = (side for side in sides if side is not None)
    if not isinstance(a.source, Var):
        a, b = b, a
    if not isinstance(a.source, Var):
        return Rejection(reason="both operands are constants; fold them before loading")
    a_shape, b_shape, y_shape = static_shape(a.source), static_shape(b.source), static_shape(core)
    if a_shape is None or b_shape is None or y_shape is None:
        return Rejection(reason=f"the shape of {core.name} or of an operand is not static")
    if a_shape != y_shape and isinstance(b.source, Var):
        (a, a_shape), (b, b_shape) = (b, b_shape), (a, a_shape)
    if a_shape != y_shape or not _is_trailing_part(b_shape, a_shape):
        return Rejection(reason=f"shapes {a_shape} and {b_shape}: one must have the result's shape, the other its trailing part")
    for side in (a, b):
        problem = check_activation(getattr(side.source, "name", "constant"), side.params, support)
        if problem is not None:
            return problem
    tail = follow_to_quantize(view, core, support)
    if isinstance(tail, Rejection):
        return tail
    constant = None if isinstance(b.source, Var) else constant_value(view, b.source)
    form = AddForm(
        a=tensor_of(a),
        b=tensor_of(b),
        b_values=None if constant is None else constant.values,
        y=tail.form,
        rounding=rounding_of(view, "add", "half_up"),
    )
    inputs = tuple(dict.fromkeys(side.source for side in (a, b) if isinstance(side.source, Var)))
    members = tuple(side.var for side in (a, b) if side.var is not None)
    return Region(
        core=core,
        output=tail.output,
        members=(*dict.fromkeys(members), core, *tail.members),
        inputs=inputs,
        attrs={"quantize_info": form.quantize_info()},
        form=form,
    )


def _is_trailing_part(part: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Return whether broadcasting `part` to `whole` repeats it as it lies in memory."""
    while part and part[0] == 1:
        part = part[1:]
    return whole[len(whole) - len(part) :] == part


def tensor_of(side: Dequantized) -> TensorForm:
    """Return a dequantized operand as a form holds it."""
    shape = static_shape(side.source)
    assert shape is not None
    return TensorForm(name=getattr(side.source, "name", "constant"), shape=shape, params=side.params)


def _as_uint8(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return (values.astype(np.int16) + 128).astype(np.uint8) if values.dtype == np.int8 else values.astype(np.uint8)
