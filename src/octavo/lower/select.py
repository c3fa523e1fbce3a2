"""Rule of choices between two quantized tensors by truth values that are known at run time only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax
from tvm.relax import Expr, Var

from ..graph.dataflow import DataflowView, call_to, dtype_of, static_shape
from ..graph.rules import Region, Rejection
from ..kernels.truth import Chosen, SelectSpec, select
from ..numerics import lookup_table, quantize
from ..target import OpSupport
from .cluster import real_of
from .context import KernelContext
from .forms import Form, OutputForm, TensorForm
from .tail import check_activation, follow_to_quantize, unquantized
from .values import constant_value, dequantized


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Choice:
    """One of two operands: a tensor, or a constant in `values`, integers of the result's own parameters."""

    tensor: TensorForm
    values: npt.NDArray[np.integer] | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SelectForm(Form):
    """a where the condition holds, b elsewhere, over shapes that broadcast; then the output's parameters."""

    condition: str
    condition_shape: tuple[int, ...]
    a: Choice
    b: Choice
    y: OutputForm

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role; the condition is none of them."""
        return {"input0": self.a.tensor.info(), "input1": self.b.tensor.info(), "output": self.y.info()}

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        dtype = self.y.tensor.kernel_dtype
        spec = SelectSpec(
            condition=self.condition_shape,
            a=self._chosen(self.a),
            b=self._chosen(self.b),
            dtype=dtype,
            threads=context.threads,
        )
        values = [
            context.storage.source(inputs[self.condition]),
            *(self._held(context, inputs, side) for side in (self.a, self.b)),
        ]
        value = context.call(output.name, select(spec, isa=context.isa), values, self.y.tensor.shape, dtype)
        context.put(output, value, is_nhwc=False)

    def _chosen(self, side: Choice) -> Chosen:
        y, tensor = self.y, side.tensor
        bounds = (y.tensor.params.qmin, y.tensor.params.qmax)
        same = tensor.params == y.tensor.params and (y.qmin, y.qmax) == bounds
        if side.values is not None or same:
            return Chosen(shape=tensor.shape, dtype=tensor.kernel_dtype)
        table = lookup_table(lambda real: real, tensor.params, y.tensor.params, qmin=y.qmin, qmax=y.qmax)
        # Relabelling leaves the order of integers: the least is entry 0 in either dtype.
        moved = table.astype(np.int32) + y.tensor.relabelling
        return Chosen(shape=tensor.shape, dtype=tensor.kernel_dtype, table=moved.astype(y.tensor.kernel_dtype))

    def _held(self, context: KernelContext, inputs: dict[str, Var], side: Choice) -> Expr:
        if side.values is None:
            return context.storage.get(inputs[side.tensor.name], is_nhwc=False)
        values = side.values.astype(np.int32) + self.y.tensor.relabelling
        return relax.const(np.ascontiguousarray(values.astype(self.y.tensor.kernel_dtype)))


def match_select(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim quantize(clamp(where(condition, dequantize(a), dequantize(b)))); a and b may be constants."""
    call = call_to(view.definition(core), "where")
    assert call is not None
    condition, *args = call.args
    condition_shape = static_shape(condition)
    if not isinstance(condition, Var) or dtype_of(condition) != "bool" or condition_shape is None:
        return Rejection(reason="its condition is no variable of truth values and static shape")
    tail = follow_to_quantize(view, core, support)
    if isinstance(tail, Rejection):
        return tail
    y, members = tail.form, dict[Var, None]()
    sides: list[Choice] = []
    inputs: dict[Var, None] = {condition: None}
    for arg in args:
        constant = constant_value(view, arg)
        if constant is not None:
            integers = np.clip(quantize(real_of(constant).astype(np.float32), y.tensor.params), y.qmin, y.qmax)
            tensor = TensorForm(name=constant.name or "constant", shape=integers.shape, params=y.tensor.params)
            members.update(dict.fromkeys(constant.members))
            sides.append(Choice(tensor=tensor, values=integers))
            continue
        x = dequantized(view, arg)
        shape = None if x is None else static_shape(x.source)
        if x is None or not isinstance(x.source, Var) or shape is None:
            return unquantized(arg)
        problem = check_activation(x.source.name, x.params, support)
        if problem is not None:
            return problem
        members.update(dict.fromkeys(() if x.var is None else (x.var,)))
        inputs[x.source] = None
        sides.append(Choice(tensor=TensorForm(name=x.source.name, shape=shape, params=x.params), values=None))
    form = SelectForm(condition=condition.name, condition_shape=condition_shape, a=sides[0], b=sides[1], y=y)
    return Region(
        core=core,
        output=tail.output,
        members=(*members, core, *tail.members),
        inputs=tuple(inputs),
        attrs={"quantize_info": form.quantize_info()},
        form=form,
    )
