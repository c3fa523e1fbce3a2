"""Rule of take by indices that are known at run time only: rows of an activation, or of a constant table (an embedding)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax
from tvm.relax import Expr, Var

from .. import kernels
from ..graph.dataflow import DataflowView, dtype_of, static_shape
from ..graph.rules import Region, Rejection
from ..kernels import TakeSpec
from ..target import OpSupport
from .context import KernelContext
from .forms import Form, OutputForm, TensorForm
from .move import changes, requantized
from .tail import check_activation, follow_to_quantize
from .values import constant_value, dequantized


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TakeForm(Form):
    """x[..., indices, ...] along `axis`; `values` are x's integers where it is a constant."""

    x: TensorForm
    values: npt.NDArray[Any] | None
    indices: str
    axis: int
    y: OutputForm

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role; indices are none of them."""
        return {"input": self.x.info(), "output": self.y.info()}

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        indices = inputs[self.indices]
        places = static_shape(indices)
        assert places is not None, "the rule sees to it"
        shape, axis = self.x.shape, self.axis
        dtype: Any = dtype_of(indices)
        spec = TakeSpec(
            outer=math.prod(shape[:axis]),
            extent=shape[axis],
            inner=math.prod(shape[axis + 1 :]),
            count=math.prod(places),
            index_dtype=dtype,
            dtype=self.x.kernel_dtype,
            threads=context.threads,
        )
        kernel = kernels.take(spec, isa=context.isa)
        changed = changes(self.x, self.y)
        args = [self._source(context, inputs), context.storage.source(indices)]
        value = context.call(f"{output.name}_taken" if changed else output.name, kernel, args, self.y.tensor.shape, spec.dtype)
        if changed:
            value = requantized(context, output.name, value, self.x.params, self.y)
        context.put(output, value, is_nhwc=False)

    def _source(self, context: KernelContext, inputs: dict[str, Var]) -> Expr:
        if self.values is None:
            return context.storage.get(inputs[self.x.name], is_nhwc=False)
        return relax.const((self.values.astype(np.int32) + self.x.relabelling).astype(self.x.kernel_dtype))


def match_take(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim quantize(take(dequantize(x), indices)) of indices that are no constant."""
    call: Any = view.definition(core)
    x, indices = dequantized(view, call.args[0]), call.args[1]
    places = static_shape(indices)
    shape = None if x is None else static_shape(x.source)
    if x is None or shape is None or x.var is None:
        return Rejection(reason=f"input {getattr(call.args[0], 'name', 'constant')} is float, or its shape is not static")
    if not isinstance(indices, Var) or places is None or dtype_of(indices) not in ("int32", "int64") or call.attrs.axis is None:
        return Rejection(reason="its indices are no variable of int32 or int64 and static shape along one axis")
    if str(call.attrs.mode) not in ("clip", "fast") or 0 in (*shape, *places):
        return Rejection(reason=f"it takes {places} from {shape} in mode {call.attrs.mode}")
    name = getattr(x.source, "name", x.var.name)
    problem = check_activation(name, x.params, support)
    if problem is not None:
        return problem
    tail = follow_to_quantize(view, core, support)
    if isinstance(tail, Rejection):
        return tail
    constant = constant_value(view, x.source)
    form = TakeForm(
        x=TensorForm(name=name, shape=shape, params=x.params),
        values=None if constant is None else constant.values,
        indices=indices.name,
        axis=int(call.attrs.axis) % len(shape),
        y=tail.form,
    )
    inside = () if constant is None else constant.members
    return Region(
        core=core,
        output=tail.output,
        members=(*inside, x.var, core, *tail.members),
        inputs=(*((x.source,) if constant is None and isinstance(x.source, Var) else ()), indices),
        attrs={"quantize_info": form.quantize_info()},
        form=form,
    )
