"""Rules of the edges of integer regions: a quantize of a float tensor, a dequantize for a float reader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.relax import Var

from .. import kernels
from ..graph.dataflow import DataflowView, call_to, dtype_of, static_shape
from ..graph.rules import Region, Rejection
from ..kernels import DequantizeSpec, QuantizeSpec
from ..target import OpSupport
from .context import KernelContext, shape_of
from .forms import Form, OutputForm, TensorForm
from .storage import SOURCE
from .tail import check_activation, integer_clamp
from .values import params_of


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class QuantizeForm(Form):
    """float32 to integers at the edge of an integer region."""

    source: str
    y: OutputForm

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role."""
        return {"output": self.y.info()}

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        x = context.storage.source(inputs[self.source])
        spec = QuantizeSpec(
            size=int(np.prod(self.y.tensor.shape)),
            scale=float(self.y.tensor.params.scale),
            zero_point=self.y.tensor.zero_point,
            dtype=self.y.tensor.kernel_dtype,
            threads=context.threads,
        )
        kernel = kernels.quantize(spec, isa=context.isa)
        value = context.call(output.name, kernel, [x], self.y.tensor.shape, self.y.tensor.kernel_dtype)
        context.put(output, value, is_nhwc=False)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DequantizeForm(Form):
    """Integers to float32 at the edge of an integer region."""

    x: TensorForm
    result: str

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role."""
        return {"input": self.x.info()}

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        var = inputs[self.x.name]
        # In the source's layout: bytes are quicker to permute than floats.
        x = context.storage.get(var, is_nhwc=False)
        spec = DequantizeSpec(
            size=int(np.prod(self.x.shape)),
            scale=float(self.x.params.scale),
            zero_point=self.x.zero_point,
            dtype=self.x.kernel_dtype,
            threads=context.threads,
        )
        value = context.call(output.name, kernels.dequantize(spec, isa=context.isa), [x], shape_of(x), "float32")
        context.storage.put(output, SOURCE, value)


def match_quantize(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim a quantize whose input stays float."""
    call = call_to(view.definition(core), "quantize")
    assert call is not None
    source, shape = call.args[0], static_shape(core)
    params = params_of(call, dtype_of(core))
    if not isinstance(source, Var) or shape is None or params is None or dtype_of(source) != "float32":
        return Rejection(reason=f"{core.name}: needs a float32 variable of static shape and constant scale and zero point")
    problem = check_activation(core.name, params, support)
    if problem is not None:
        return problem
    output, qmin, qmax = integer_clamp(view, core, params.qmin, params.qmax)
    if (qmin, qmax) != (params.qmin, params.qmax):
        output, qmin, qmax = core, params.qmin, params.qmax
    tensor = TensorForm(name=output.name, shape=shape, params=params)
    form = QuantizeForm(source=source.name, y=OutputForm(tensor=tensor, qmin=qmin, qmax=qmax))
    members = (core,) if output.same_as(core) else (core, output)
    return Region(
        core=core, output=output, members=members, inputs=(source,), attrs={"quantize_info": form.quantize_info()}, form=form
    )


def match_dequantize(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim a dequantize that float ops or the caller read."""
    call = call_to(view.definition(core), "dequantize")
    assert call is not None
    source, shape = call.args[0], static_shape(core)
    params = params_of(call, dtype_of(source))
    if not isinstance(source, Var) or shape is None or params is None or dtype_of(core) != "float32":
        return Rejection(reason=f"{core.name}: needs an integer variable of static shape and constant scale and zero point")
    problem = check_activation(source.name, params, support)
    if problem is not None:
        return problem
    form = DequantizeForm(x=TensorForm(name=source.name, shape=shape, params=params), result=core.name)
    return Region(
        core=core, output=core, members=(core,), inputs=(source,), attrs={"quantize_info": form.quantize_info()}, form=form
    )
