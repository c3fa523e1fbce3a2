"""Rule of the ops of two tensors: multiply, subtract, the additions whose shapes `add` does not take, maximum and minimum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from tvm import relax
from tvm.relax import Expr, Var

from .. import kernels
from ..graph.dataflow import DataflowView, call_to, op_name, static_shape
from ..graph.rules import Region, Rejection
from ..kernels import PairwiseSpec
from ..numerics import maximum, minimum, requantize, requantize_multiplier
from ..target import OpSupport
from .context import KernelContext, shape_of
from .forms import ElementFunction, Form, OutputForm, TensorForm
from .rounding import float_sum_of, integer_sum, rounding_of
from .storage import TO_NHWC
from .tail import check_activation, follow_to_quantize, unquantized
from .values import ConstantValue, Dequantized, constant_value, dequantized

Kind = Literal["add", "sub", "mul", "max", "min"]
_USUAL: dict[Kind, str] = {"add": "half_up", "sub": "half_up", "mul": "half_even", "max": "half_even", "min": "half_even"}
"""How each rounds where the source says nothing else, as LiteRT does."""

_KINDS: dict[str, Kind] = {"add": "add", "subtract": "sub", "multiply": "mul", "maximum": "max", "minimum": "min"}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Operand:
    """One of two operands: a variable's tensor, or a constant in `values` (its own integers)."""

    tensor: TensorForm
    values: npt.NDArray[Any] | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PairwiseForm(Form):
    """a op b + clamp, over shapes that broadcast."""

    kind: Kind
    a: Operand
    b: Operand
    y: OutputForm
    rounding: str

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role, and the rounding where it is not the op's usual one."""
        info = {"input0": self.a.tensor.info(), "input1": self.b.tensor.info(), "output": self.y.info()}
        return info if self.rounding == _USUAL[self.kind] else {**info, "rounding": self.rounding}

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        is_nhwc = self.is_nhwc(context, inputs)
        a, b = (self._read(context, inputs, operand, is_nhwc=is_nhwc) for operand in (self.a, self.b))
        shape = self.y.tensor.shape
        sum_constants, relabelling = None, 0
        if self.kind in ("add", "sub"):
            tensors = self.a.tensor, self.b.tensor, self.y.tensor
            sum_constants, relabelling = float_sum_of(self.rounding, *tensors, subtract=self.kind == "sub")
        spec = PairwiseSpec(
            kind=self.kind,
            a_shape=shape_of(a),
            b_shape=shape_of(b),
            a_scale=float(self.a.tensor.params.scale),
            a_zero_point=self.a.tensor.zero_point,
            b_scale=float(self.b.tensor.params.scale),
            b_zero_point=self.b.tensor.zero_point,
            out_scale=float(self.y.tensor.params.scale),
            output=self.y.spec(),
            float_sum=sum_constants,
            relabelling=relabelling,
            stored_even=self.kind == "mul" and self.rounding == "half_even_stored",
            threads=context.threads,
        )
        kernel = kernels.pairwise(spec, isa=context.isa)
        shape = tuple(shape[axis] for axis in TO_NHWC) if is_nhwc else shape
        context.put(output, context.call(output.name, kernel, [a, b], shape), is_nhwc=is_nhwc)

    def element_function(self) -> ElementFunction | None:
        """Return the op, where no operand is widened but a constant of one element."""
        shape = self.y.tensor.shape
        sides = (self.a, self.b)
        if any(operand.tensor.shape != shape if operand.values is None else operand.values.size != 1 for operand in sides):
            return None
        if any(tensor.kernel_dtype != "uint8" for tensor in (self.a.tensor, self.b.tensor, self.y.tensor)):
            return None
        variables = {f"input{i}": operand.tensor for i, operand in enumerate(sides) if operand.values is None}

        def of(*values: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
            given = iter(values)
            a, b = (next(given) if operand.values is None else _as_bytes(operand) for operand in sides)
            return self._oracle(a, b)

        return ElementFunction(operands=variables, result=self.y, of=of)

    def _oracle(self, a: npt.NDArray[np.uint8], b: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the results for the integers of a and b as kernels hold them."""
        out = self.y.spec()
        if self.kind in ("add", "sub"):
            tensors = self.a.tensor, self.b.tensor, self.y
            return integer_sum(self.rounding, *tensors, a, b, subtract=self.kind == "sub")
        if self.kind in ("max", "min"):
            choose = maximum if self.kind == "max" else minimum
            return choose(a, b, qmin=out.qmin, qmax=out.qmax).astype(np.uint8)
        scales = (float(tensor.params.scale) for tensor in (self.a.tensor, self.b.tensor, self.y.tensor))
        product = (a.astype(np.int32) - self.a.tensor.zero_point) * (b.astype(np.int32) - self.b.tensor.zero_point)
        stored = self.rounding == "half_even_stored"
        bounds = (out.zero_point, out.qmin, out.qmax)
        return requantize(product, requantize_multiplier(*scales), *bounds, stored_even=stored).astype(np.uint8)

    def is_nhwc(self, context: KernelContext, inputs: dict[str, Var]) -> bool:
        """Whether to compute in the permuted layout: where an operand lies so, and every variable has four dimensions."""
        variables = [operand for operand in (self.a, self.b) if operand.values is None]
        if len(self.y.tensor.shape) != 4 or any(len(operand.tensor.shape) != 4 for operand in variables):
            return False
        return any(context.storage.is_kept_nhwc(inputs[operand.tensor.name]) for operand in variables)

    def _read(self, context: KernelContext, inputs: dict[str, Var], operand: Operand, *, is_nhwc: bool) -> Expr:
        if operand.values is None:
            return context.storage.get(inputs[operand.tensor.name], is_nhwc=is_nhwc)
        values = _as_bytes(operand)
        if is_nhwc:
            values = values.reshape((1,) * (4 - values.ndim) + values.shape).transpose(TO_NHWC)
        return relax.const(np.ascontiguousarray(values))


def _as_bytes(operand: Operand) -> npt.NDArray[np.uint8]:
    """Return a constant's integers as kernels hold them."""
    assert operand.values is not None
    return (operand.values.astype(np.int16) + operand.tensor.relabelling).astype(np.uint8)


def match_pairwise(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim quantize(clamp(dequantize(a) op dequantize(b))); one of them may be a quantized constant."""
    call = call_to(view.definition(core), *_KINDS)
    assert call is not None
    sides: list[Dequantized] = []
    operands: list[Operand] = []
    members: dict[Var, None] = {}
    for arg in call.args:
        side = dequantized(view, arg)
        if side is None:
            return unquantized(arg)
        constant = constant_value(view, side.source)
        shape = static_shape(side.source)
        name = getattr(side.source, "name", "constant")
        if shape is None:
            return Rejection(reason=f"the shape of {name} is not static")
        problem = check_activation(name, side.params, support)
        if problem is not None:
            return problem
        sides.append(side)
        members.update(
            dict.fromkeys((*(() if constant is None else constant.members), *(() if side.var is None else (side.var,))))
        )
        operands.append(_operand(name, shape, side, constant))
    if all(operand.values is not None for operand in operands):
        return Rejection(reason="both operands are constants; fold them before loading")
    tail = follow_to_quantize(view, core, support)
    if isinstance(tail, Rejection):
        return tail
    kind = _KINDS[op_name(call)]
    if kind in ("max", "min") and any(side.params != tail.form.tensor.params for side in sides):
        return Rejection(reason="its operands and its result differ in scale, zero point or dtype")
    rounding = rounding_of(view, op_name(call), _USUAL[kind])
    form = PairwiseForm(kind=kind, a=operands[0], b=operands[1], y=tail.form, rounding=rounding)
    pairs = zip(sides, operands, strict=True)
    variables = [side.source for side, operand in pairs if operand.values is None and isinstance(side.source, Var)]
    return Region(
        core=core,
        output=tail.output,
        members=(*members, core, *tail.members),
        inputs=tuple(dict.fromkeys(variables)),
        attrs={"quantize_info": form.quantize_info()},
        form=form,
    )


def _operand(name: str, shape: tuple[int, ...], side: Dequantized, constant: ConstantValue | None) -> Operand:
    values = None if constant is None else constant.values
    return Operand(tensor=TensorForm(name=name, shape=shape, params=side.params), values=values)
