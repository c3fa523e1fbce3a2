"""Rule of concat: of dequantized tensors, or of integers that share scale and zero point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax
from tvm.relax import Expr, Var

from .. import kernels
from ..graph.dataflow import DataflowView, call_to, dtype_of, static_shape
from ..graph.rules import Region, Rejection
from ..kernels import ConcatSpec
from ..numerics import INTEGER_RANGE, PerTensor, QuantParams
from ..target import OpSupport
from .add import tensor_of
from .context import KernelContext, ratio, shape_of
from .forms import Form, OutputForm, TensorForm
from .storage import TO_NHWC
from .tail import check_activation, follow_to_quantize, integer_clamp, unquantized
from .values import Dequantized, constant_value, dequantized, integer_params


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ConcatForm(Form):
    """Concatenation along `axis` of the source's layout; `constants` are the integers of those inputs that are constants."""

    inputs: tuple[TensorForm, ...]
    y: OutputForm
    axis: int
    constants: Mapping[int, npt.NDArray[Any]]

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role."""
        return {**{f"input{i}": tensor.info() for i, tensor in enumerate(self.inputs)}, "output": self.y.info()}

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        args, is_nhwc = self.operands(context, inputs)
        shape = self.y.tensor.shape
        axis = self.axis
        if is_nhwc:
            shape, axis = tuple(shape[a] for a in TO_NHWC), TO_NHWC.index(axis)
        spec = ConcatSpec(
            outer=int(np.prod(shape[:axis], dtype=np.int64)),
            inners=tuple(int(np.prod(shape_of(arg)[axis:], dtype=np.int64)) for arg in args),
            multipliers=tuple(ratio(tensor.params, self.y.tensor.params) for tensor in self.inputs),
            zero_points=tuple(tensor.zero_point for tensor in self.inputs),
            output=self.y.spec(),
            threads=context.threads,
        )
        kernel = kernels.concat(spec, isa=context.isa)
        context.put(output, context.call(output.name, kernel, args, shape), is_nhwc=is_nhwc)

    def operands(self, context: KernelContext, inputs: dict[str, Var]) -> tuple[list[Expr], bool]:
        """Return what is concatenated as kernels read it, and whether that is NHWC."""
        variables = {i: inputs[tensor.name] for i, tensor in enumerate(self.inputs) if i not in self.constants}
        is_nhwc = len(self.y.tensor.shape) == 4 and any(context.storage.is_kept_nhwc(var) for var in variables.values())
        args = [
            context.storage.get(variables[i], is_nhwc=is_nhwc) if i in variables else self._constant(i, is_nhwc=is_nhwc)
            for i in range(len(self.inputs))
        ]
        return args, is_nhwc

    def _constant(self, position: int, *, is_nhwc: bool) -> Expr:
        values = self.constants[position]
        held = (values.astype(np.int32) + self.inputs[position].relabelling).astype(self.inputs[position].kernel_dtype)
        return relax.const(np.ascontiguousarray(held.transpose(TO_NHWC) if is_nhwc else held))


def match_concat(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim quantize(concat(dequantize(x0), ...)), or a concat of integers that share scale and zero point."""
    call = call_to(view.definition(core), "concat")
    assert call is not None
    fields = view.definition(call.args[0])
    shape = static_shape(core)
    if not isinstance(fields, relax.Tuple) or shape is None:
        return Rejection(reason=f"the inputs of {core.name} are not a literal tuple of static shapes")
    axis = 0 if call.attrs.axis is None else int(call.attrs.axis) % len(shape)
    tuple_var = view.binding_of(call.args[0])
    grouping = () if tuple_var is None else (tuple_var,)
    if dtype_of(core) in INTEGER_RANGE:
        return _integer_concat(view, core, list(fields.fields), shape, axis, grouping, support)
    sides: list[Dequantized] = []
    constants: dict[int, npt.NDArray[Any]] = {}
    for operand in fields.fields:
        side = dequantized(view, operand)
        if side is None:
            return unquantized(operand)
        constant = None if isinstance(side.source, Var) else constant_value(view, side.source)
        if constant is not None:
            constants[len(sides)] = constant.values
        problem = check_activation(getattr(side.source, "name", "constant"), side.params, support)
        if problem is not None:
            return problem
        sides.append(side)
    tail = follow_to_quantize(view, core, support)
    if isinstance(tail, Rejection):
        return tail
    if len(constants) == len(sides):
        return Rejection(reason="all its operands are constants; fold them before loading")
    form = ConcatForm(inputs=tuple(tensor_of(side) for side in sides), y=tail.form, axis=axis, constants=constants)
    members = dict.fromkeys(side.var for side in sides if side.var is not None)
    return Region(
        core=core,
        output=tail.output,
        members=(*members, *grouping, core, *tail.members),
        inputs=tuple(dict.fromkeys(side.source for side in sides if isinstance(side.source, Var))),
        attrs={"quantize_info": form.quantize_info()},
        form=form,
    )


def _integer_concat(
    view: DataflowView,
    core: Var,
    fields: list[Expr],
    shape: tuple[int, ...],
    axis: int,
    grouping: tuple[Var, ...],
    support: OpSupport,
) -> Region | Rejection:
    y_params = integer_params(view, core)
    tensors: list[TensorForm] = []
    for field in fields:
        params = integer_params(view, field)
        field_shape = static_shape(field)
        if not isinstance(field, Var) or params is None or field_shape is None:
            return Rejection(reason=f"operand {getattr(field, 'name', 'constant')} has no known scale; dequantize it somewhere")
        if y_params is None:
            y_params = params
        problem = check_activation(field.name, params, support)
        if problem is not None:
            return problem
        if not _same_values(params, y_params):
            return Rejection(reason=f"operand {field.name} has another scale or zero point than {core.name}; quantize after it")
        tensors.append(TensorForm(name=field.name, shape=field_shape, params=params))
    assert y_params is not None
    output, qmin, qmax = integer_clamp(view, core, y_params.qmin, y_params.qmax)
    tensor = TensorForm(name=output.name, shape=shape, params=y_params)
    form = ConcatForm(inputs=tuple(tensors), y=OutputForm(tensor=tensor, qmin=qmin, qmax=qmax), axis=axis, constants={})
    tail = () if output.same_as(core) else (output,)
    return Region(
        core=core,
        output=output,
        members=(*grouping, core, *tail),
        inputs=tuple(dict.fromkeys(field for field in fields if isinstance(field, Var))),
        attrs={"quantize_info": form.quantize_info()},
        form=form,
    )


def _same_values(a: QuantParams, b: QuantParams) -> bool:
    return (
        isinstance(a.granularity, PerTensor)
        and isinstance(b.granularity, PerTensor)
        and a.dtype == b.dtype
        and bool(a.scale == b.scale)
        and bool(a.zero_point == b.zero_point)
    )
