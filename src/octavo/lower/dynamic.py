"""Inputs quantized at run time, and integer results that are scaled afterwards: what hybrid layers are made of.

Two forms lead to the same kernels, with parameters that the form of `graph.dynamic` computes:

    matmul(dequantize(x_q, scale, zero_point), dequantize(w_q, ...)) + bias                        weights with scales
    astype(matmul(astype(x_q) - zero_point, astype(w_q) - w_zero), float) * (scale * w_scale) + bias     integer sums (ONNX)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var

from .. import kernels
from ..graph.dataflow import DataflowView, call_to, dtype_of, static_shape
from ..graph.dynamic import FoundDynamic, find_dynamic
from ..graph.rules import Rejection
from ..kernels import DynamicSpec
from ..numerics import QuantParams
from ..numerics.dynamic import DynamicStyle, style_name
from .context import KernelContext, shape_of
from .values import ConstantValue, constant_value, numpy_constant

UNIT = QuantParams.per_tensor("uint8", 1.0, 0)
"""Parameters of reals, and of an input whose own come at run time: they leave multipliers as the weights have them."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DynamicInput:
    """A float32 activation that is quantized at run time, and the variables that quantize it and dequantize or center it."""

    found: FoundDynamic
    members: tuple[Var, ...]

    @property
    def source(self) -> Var:
        """The float32 variable."""
        return self.found.x

    @property
    def params(self) -> QuantParams:
        """Stand-ins: scale and zero point are not known."""
        return UNIT


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DynamicForm:
    """A float32 activation that the kernel quantizes first, with parameters for each of `scales` parts of its first axis."""

    name: str
    shape: tuple[int, ...]
    style: DynamicStyle
    scales: int

    def info(self) -> dict[str, Any]:
        """Return its entry of a quantize_info: its parameters are known at run time only."""
        unknown = dict.fromkeys(("scale", "zero_point", "axis", "qmin", "qmax"))
        return {"id": self.name, "dtype": "float32", **unknown, "quantized_at_run_time": style_name(self.style)}

    def read(self, context: KernelContext, inputs: dict[str, Var], *, is_nhwc: bool) -> list[Expr]:
        """Write its quantization, once for all kernels that read it, and return integers and parameters."""
        var = inputs[self.name]
        key = (var, self.style, self.scales, is_nhwc)
        if key not in context.quantized:
            x = context.storage.get(var, is_nhwc=is_nhwc)
            size = math.prod(self.shape) // self.scales
            spec = DynamicSpec(rows=self.scales, size=size, style=self.style, threads=context.threads)
            suffix = f"{style_name(self.style)}{self.scales}" + ("_nhwc" if is_nhwc else "")
            name = f"{var.name}_{suffix}"
            kernel = kernels.dynamic_parameters(spec, isa=context.isa)
            parameters = context.call(f"{name}_parameters", kernel, [x], (self.scales, 2), "float32")
            kernel = kernels.dynamic_quantize(spec, isa=context.isa)
            integers = context.call(f"{name}_u8", kernel, [x, parameters], shape_of(x))
            context.quantized[key] = [integers, parameters]
        return context.quantized[key]


def dynamic_form(x: DynamicInput) -> DynamicForm:
    """Return the form of an input that is quantized at run time."""
    scales = x.found.shape[0] if x.found.style == "litert" else 1
    return DynamicForm(name=x.source.name, shape=x.found.shape, style=x.found.style, scales=scales)


def dynamic_input(view: DataflowView, expr: Expr) -> DynamicInput | None:
    """Return the float32 value behind dequantize(x_q, scale, zero_point), or behind x_q less its zero point in int32."""
    call = call_to(view.definition(expr), "dequantize")
    if call is not None:
        is_constant = numpy_constant(view.definition(call.args[1])) is not None
        found = None if is_constant else find_dynamic(view, *call.args[:3])
        if found is None or (found.style == "litert" and int(call.attrs.axis) != 0):
            return None
        return DynamicInput(found=found, members=(*found.members, *_names(view, expr)))
    centered = call_to(view.definition(expr), "subtract")
    if centered is None or dtype_of(expr) != "int32":
        return None
    wide = call_to(view.definition(centered.args[0]), "astype")
    found = None if wide is None else find_dynamic(view, wide.args[0], None, centered.args[1])
    if found is None:
        return None
    return DynamicInput(found=found, members=(*found.members, *_names(view, centered.args[0]), *_names(view, expr)))


def dynamic_members(view: DataflowView) -> set[Var]:
    """Return the variables of all quantizations at run time: several kernels may hold the same one, which runs once."""
    members: set[Var] = set()
    for binding in view.bindings:
        if call_to(binding.value, "dequantize", "subtract") is not None:
            found = dynamic_input(view, binding.var)
            members.update(() if found is None else found.members)
    return members


def integer_weight(view: DataflowView, expr: Expr) -> ConstantValue | None:
    """Return the 8-bit constant behind int32 weights, less their zero points if they have some; scales are 1."""
    members: list[Var] = [*_names(view, expr)]
    zero_point: npt.NDArray[Any] = np.zeros((), np.int32)
    centered = call_to(view.definition(expr), "subtract")
    if centered is not None:
        zeros = constant_value(view, centered.args[1])
        if zeros is None or zeros.scale is not None:
            return None
        zero_point, expr = zeros.values, centered.args[0]
        members += [*zeros.members, *_names(view, expr)]
    wide = call_to(view.definition(expr), "astype")
    stored = None if wide is None else constant_value(view, wide.args[0])
    if (
        stored is None
        or stored.scale is not None
        or dtype_of(expr) != "int32"
        or str(stored.values.dtype) not in ("int8", "uint8")
    ):
        return None
    values = stored.values
    return ConstantValue(
        values=values,
        scale=np.broadcast_to(np.float32(1), values.shape),
        zero_point=np.broadcast_to(zero_point.astype(np.int32), values.shape),
        name=stored.name or getattr(expr, "name", ""),
        members=tuple(dict.fromkeys((*stored.members, *members))),
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scaling:
    """The way from int32 sums to reals: its variables, the last of them, and the constant factors, one for each channel."""

    members: tuple[Var, ...]
    output: Var
    factor: npt.NDArray[np.float32]


def follow_scaling(view: DataflowView, core: Var, x: DynamicInput, channel_axis: int) -> Scaling | Rejection:
    """Walk from int32 sums through the conversion to float and the products with the input's scale and constants.

    Before::

        lv = R.astype(sums, "float32"); s = R.multiply(x_scale, w_scale); y = R.multiply(lv, s)
    """
    shape = static_shape(core)
    user = view.only_user(core)
    if shape is None or user is None or call_to(view.definition(user), "astype") is None or dtype_of(user) != "float32":
        return Rejection(reason=f"the int32 result {core.name} is read as it is, not scaled to float")
    members, current, seen = [user], user, 0
    factor = np.ones(shape[channel_axis], np.float32)
    while (user := view.only_user(current)) is not None:
        call = call_to(view.definition(user), "multiply")
        if call is None:
            break
        other = call.args[1] if isinstance(call.args[0], Var) and call.args[0].same_as(current) else call.args[0]
        factors = _factors(view, other, x)
        along = None if factors is None else _per_channel(factors[1], len(shape), channel_axis % len(shape))
        if factors is None or along is None or static_shape(user) != shape or factors[0] + seen > 1:
            break
        seen += factors[0]
        factor = (factor * along).astype(np.float32)
        members += [*factors[2], user]
        current = user
    if seen != 1:
        return Rejection(reason=f"the int32 result {core.name} is not multiplied by the scale of its input")
    return Scaling(members=tuple(members), output=current, factor=factor)


def _factors(view: DataflowView, expr: Expr, x: DynamicInput) -> tuple[int, npt.NDArray[Any], tuple[Var, ...]] | None:
    """Split a product into how often it holds the input's scale, and the constants; None if it holds anything else."""
    if _is_scale(view, expr, x):
        return 1, np.ones((), np.float32), ()
    constant = constant_value(view, expr)
    if constant is not None:
        return None if constant.scale is not None else (0, constant.values, constant.members)
    call = call_to(view.definition(expr), "multiply", "reshape")
    if call is None:
        return None
    parts = [_factors(view, arg, x) for arg in (call.args if call_to(call, "multiply") is not None else call.args[:1])]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts) or (len(parts) == 1 and found[0][1].size > 1):
        return None
    product = np.ones((), np.float32)
    for _, values, _ in found:
        product = product * values
    members = tuple(var for _, _, inner in found for var in inner)
    return sum(part[0] for part in found), product, (*members, *_names(view, expr))


def _is_scale(view: DataflowView, expr: Expr, x: DynamicInput) -> bool:
    return isinstance(expr, Var) and any(expr.same_as(member) for member in x.found.members) and _made_by_where(view, expr)


def _made_by_where(view: DataflowView, expr: Expr) -> bool:
    """Of all that the "onnx" form binds only the scale comes from a where."""
    return call_to(view.definition(expr), "where") is not None


def _per_channel(values: npt.NDArray[Any], rank: int, axis: int) -> npt.NDArray[Any] | None:
    """Return one value for each channel, or one for all; None if the constant varies along other axes."""
    if values.ndim > rank:
        return None
    padded = (1,) * (rank - values.ndim) + values.shape
    return None if any(dim != 1 and at != axis for at, dim in enumerate(padded)) else values.reshape(-1)


def _names(view: DataflowView, expr: Expr) -> tuple[Var, ...]:
    """Return the variables of an expression that is bound: its own, and the one that it renames."""
    source = view.binding_of(expr)
    own = (expr,) if isinstance(expr, Var) else ()
    return own if source is None or any(source.same_as(var) for var in own) else (*own, source)
