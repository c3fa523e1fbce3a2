"""Rules of comparisons of quantized tensors and of logic on truth values: their results are bool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from tvm import relax
from tvm.relax import Expr, Var

from ..graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ..graph.rules import Region, Rejection
from ..kernels.truth import CompareSpec, LogicalSpec, Side, compare, logical
from ..numerics.quantized.compare import COMPARISONS, CompareRounding, Comparison
from ..target import OpSupport
from .context import KernelContext
from .forms import UNQUANTIZED, Form, TensorForm
from .pairwise import Operand
from .rounding import is_fixed_int16, rounding_of
from .tail import check_activation, unquantized
from .values import constant_value, dequantized

COMPARE_OPS = tuple(COMPARISONS)
LOGICAL_OPS = ("logical_and", "logical_or", "logical_not")


def _truth(name: str) -> dict[str, Any]:
    return {"id": name, **UNQUANTIZED, "dtype": "bool"}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CompareForm(Form):
    """a kind b, over shapes that broadcast, to bool."""

    kind: Comparison
    a: Operand
    b: Operand
    rounding: CompareRounding
    name: str
    shape: tuple[int, ...]

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role, and what of them is compared."""
        sides = {"input0": self.a.tensor.info(), "input1": self.b.tensor.info()}
        return {**sides, "output": _truth(self.name), "rounding": self.rounding}

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        sides = [
            Side(
                shape=operand.tensor.shape,
                dtype=operand.tensor.kernel_dtype,
                scale=float(operand.tensor.params.scale),
                zero_point=operand.tensor.zero_point,
            )
            for operand in (self.a, self.b)
        ]
        spec = CompareSpec(kind=self.kind, a=sides[0], b=sides[1], rounding=self.rounding, threads=context.threads)
        values = [held(context, inputs, operand) for operand in (self.a, self.b)]
        value = context.call(output.name, compare(spec, isa=context.isa), values, self.shape, "bool")
        context.put(output, value, is_nhwc=False)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LogicalForm(Form):
    """Logic of truth values, over shapes that broadcast."""

    kind: Literal["and", "or", "not"]
    operands: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    name: str
    shape: tuple[int, ...]

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role; none is quantized."""
        return {**{f"input{i}": _truth(name) for i, name in enumerate(self.operands)}, "output": _truth(self.name)}

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        spec = LogicalSpec(kind=self.kind, shapes=self.shapes, threads=context.threads)
        values = [context.storage.source(inputs[name]) for name in self.operands]
        value = context.call(output.name, logical(spec, isa=context.isa), values, self.shape, "bool")
        context.put(output, value, is_nhwc=False)


def held(context: KernelContext, inputs: dict[str, Var], operand: Operand) -> Expr:
    """Return an operand's integers as kernels hold them, in the source's layout."""
    if operand.values is None:
        return context.storage.get(inputs[operand.tensor.name], is_nhwc=False)
    values = operand.values.astype(np.int32) + operand.tensor.relabelling
    return relax.const(np.ascontiguousarray(values.astype(operand.tensor.kernel_dtype)))


def match_compare(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim dequantize(a) op dequantize(b), one of them maybe a quantized constant; the result is bool, and ends it."""
    call = call_to(view.definition(core), *COMPARE_OPS)
    assert call is not None
    shape = static_shape(core)
    operands: list[Operand] = []
    members: dict[Var, None] = {}
    inputs: dict[Var, None] = {}
    for arg in call.args:
        side = dequantized(view, arg)
        if side is None:
            return unquantized(arg)
        constant, own = constant_value(view, side.source), static_shape(side.source)
        name = getattr(side.source, "name", "constant")
        if own is None or shape is None:
            return Rejection(reason=f"the shape of {name} is not static")
        problem = check_activation(name, side.params, support)
        if problem is not None:
            return problem
        members.update(dict.fromkeys(() if constant is None else constant.members))
        members.update(dict.fromkeys(() if side.var is None else (side.var,)))
        tensor = TensorForm(name=name, shape=own, params=side.params)
        operands.append(Operand(tensor=tensor, values=None if constant is None else constant.values))
        if constant is None and isinstance(side.source, Var):
            inputs[side.source] = None
    if not inputs:
        return Rejection(reason="both operands are constants; fold them before loading")
    assert shape is not None, "the loop saw it"
    a, b = operands
    kind = cast(Comparison, op_name(call))
    form = CompareForm(kind=kind, a=a, b=b, rounding=_rounding(view, kind, a.tensor, b.tensor), name=core.name, shape=shape)
    return Region(
        core=core,
        output=core,
        members=(*members, core),
        inputs=tuple(inputs),
        attrs={"quantize_info": form.quantize_info()},
        form=form,
    )


def _rounding(view: DataflowView, kind: str, a: TensorForm, b: TensorForm) -> CompareRounding:
    if a.params == b.params and (a.kernel_dtype == "int16" or rounding_of(view, kind) != "fixed_point"):
        return "integers"
    both_int16 = a.params.dtype == b.params.dtype == "int16"
    if both_int16 and is_fixed_int16(view):
        return "integers"  # TFLite compares int16 as it is, whatever the scales
    return "fixed_point" if rounding_of(view, kind) == "fixed_point" else "float32"


def match_logical(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim logic of truth values that are computed or fed."""
    del support
    call = call_to(view.definition(core), *LOGICAL_OPS)
    assert call is not None
    shapes, shape = [static_shape(arg) for arg in call.args], static_shape(core)
    operands = [arg for arg in call.args if isinstance(arg, Var) and dtype_of(arg) == "bool"]
    if len(operands) != len(call.args) or shape is None or None in shapes:
        return Rejection(reason=f"an operand of {core.name} is a constant, no truth values, or of a shape that is not static")
    form = LogicalForm(
        kind=cast(Literal["and", "or", "not"], op_name(call).removeprefix("logical_")),
        operands=tuple(operand.name for operand in operands),
        shapes=tuple(own for own in shapes if own is not None),
        name=core.name,
        shape=shape,
    )
    return Region(
        core=core,
        output=core,
        members=(core,),
        inputs=tuple(dict.fromkeys(operands)),
        attrs={"quantize_info": form.quantize_info()},
        form=form,
    )
