"""Ops over int32: 8-bit integers less their zero points, and sums that are read as they are or scaled to reals afterwards.

ConvInteger and MatMulInteger come so, and hand-made exporters write the steps between them and a float result::

    sums = matmul(astype(x_q) - zero_point, astype(w_q) - w_zero_point); y = astype(sums, float) * (scale * w_scale) + bias

Only finds; what becomes of it is the rules' doing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var

from ...numerics import INTEGER_RANGE, QuantParams
from ...numerics.rounding.requantize import ScaledRounding
from ..graph.dataflow import DataflowView, call_to, dtype_of, static_shape
from ..graph.rules import Rejection
from .runtime_inputs import DynamicInput, names_of
from .values import ConstantValue, constant_value

_BYTES = ("int8", "uint8")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CenteredInput:
    """An 8-bit activation less one constant zero point, in int32: its scale is 1."""

    source: Var
    params: QuantParams
    members: tuple[Var, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Centered:
    """int32 integers - zero_point: the 8-bit `stored` integers, their zero points, and the variables in between."""

    stored: Expr
    zero_point: npt.NDArray[np.int32]
    members: tuple[Var, ...]


def _centered(view: DataflowView, expr: Expr) -> _Centered | None:
    """Return what is behind int32 operands whose zero points are constants of the dtype's range and keep the shape."""
    members: list[Var] = [*names_of(view, expr)]
    zero_point: npt.NDArray[Any] = np.zeros((), np.int32)
    shape = static_shape(expr)
    centered = call_to(view.definition(expr), "subtract")
    if centered is not None:
        zeros = constant_value(view, centered.args[1])
        if zeros is None or zeros.scale is not None or static_shape(centered.args[0]) != shape:
            return None
        zero_point, expr = zeros.values, centered.args[0]
        members += [*zeros.members, *names_of(view, expr)]
    wide = call_to(view.definition(expr), "astype")
    if wide is None or dtype_of(expr) != "int32" or dtype_of(wide.args[0]) not in _BYTES:
        return None
    low, high = INTEGER_RANGE[dtype_of(wide.args[0])]
    if zero_point.size and not low <= zero_point.min() <= zero_point.max() <= high:
        return None
    return _Centered(stored=wide.args[0], zero_point=zero_point.astype(np.int32), members=tuple(dict.fromkeys(members)))


def centered_input(view: DataflowView, expr: Expr) -> CenteredInput | Rejection:
    """Return the 8-bit activation behind an int32 operand."""
    found = _centered(view, expr)
    name = getattr(expr, "name", "constant")
    if found is None or not isinstance(found.stored, Var):
        return Rejection(reason=f"int32 operand {name} is no 8-bit tensor less its constant zero point; make it that")
    zeros = np.unique(found.zero_point)
    if zeros.size != 1:
        return Rejection(reason=f"operand {found.stored.name} has zero points of its own for each row; kernels take one")
    params = QuantParams.per_tensor(dtype_of(found.stored), 1.0, int(zeros[0]))
    return CenteredInput(source=found.stored, params=params, members=found.members)


def integer_weight(view: DataflowView, expr: Expr) -> ConstantValue | None:
    """Return the 8-bit constant behind int32 weights, less their zero points if they have some; scales are 1."""
    found = _centered(view, expr)
    stored = None if found is None else constant_value(view, found.stored)
    if found is None or stored is None or stored.scale is not None or str(stored.values.dtype) not in _BYTES:
        return None
    values = stored.values
    return ConstantValue(
        values=values,
        scale=np.broadcast_to(np.float32(1), values.shape),
        zero_point=np.broadcast_to(found.zero_point, values.shape),
        name=stored.name or getattr(expr, "name", ""),
        members=tuple(dict.fromkeys((*stored.members, *found.members))),
    )


def centered_members(view: DataflowView) -> set[Var]:
    """Return the variables of all 8-bit values in int32: several kernels may hold the same one, which costs none anything."""
    members: set[Var] = set()
    for binding in view.bindings:
        if call_to(binding.value, "astype", "subtract") is not None and dtype_of(binding.var) == "int32":
            found = _centered(view, binding.var)
            members.update(() if found is None else found.members)
    return members


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scaling:
    """The way from int32 sums to reals: its variables, the last of them, and the constant factors, one for each channel.

    `rounding` is "stepwise" where one product scales the sums, as ONNX's files write it.
    """

    members: tuple[Var, ...]
    output: Var
    factor: npt.NDArray[np.float32]
    rounding: ScaledRounding


def follow_scaling(view: DataflowView, sums: Var, x: CenteredInput | DynamicInput, channel_axis: int) -> Scaling | None:
    """Walk from int32 sums through the conversion to float and the products with the input's scale and constants.

    None where the sums are read in any other way. An input quantized at run time must meet its scale, once.

    Before::

        lv = R.astype(sums, "float32"); s = R.multiply(x_scale, w_scale); y = R.multiply(lv, s)
    """
    shape, user = static_shape(sums), view.only_user(sums)
    if shape is None or user is None or call_to(view.definition(user), "astype") is None or dtype_of(user) != "float32":
        return None
    dynamic = x if isinstance(x, DynamicInput) else None
    members, current, seen, products = [user], user, 0, 0
    factor = np.ones(shape[channel_axis], np.float32)
    while (user := view.only_user(current)) is not None:
        call = call_to(view.definition(user), "multiply")
        if call is None:
            break
        other = call.args[1] if isinstance(call.args[0], Var) and call.args[0].same_as(current) else call.args[0]
        factors = _factors(view, other, dynamic)
        along = None if factors is None else _per_channel(factors[1], len(shape), channel_axis % len(shape))
        if factors is None or along is None or static_shape(user) != shape or factors[0] + seen > 1:
            break
        with np.errstate(over="ignore", under="ignore"):
            product = (factor * along).astype(np.float32)
        if not (np.isfinite(product).all() and (product > 0).all()):  # no scale, then
            break
        seen += factors[0]
        products += 1
        factor = product
        members += [*factors[2], user]
        current = user
    if dynamic is not None and seen != 1:
        return None
    rounding: ScaledRounding = "stepwise" if products == 1 else "fused"
    return Scaling(members=tuple(members), output=current, factor=factor, rounding=rounding)


def _factors(view: DataflowView, expr: Expr, x: DynamicInput | None) -> tuple[int, npt.NDArray[Any], tuple[Var, ...]] | None:
    """Split a product into how often it holds the input's scale, and the constants; None if it holds anything else."""
    if x is not None and _is_scale(view, expr, x):
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
    return sum(part[0] for part in found), product, (*members, *names_of(view, expr))


def _is_scale(view: DataflowView, expr: Expr, x: DynamicInput) -> bool:
    """Return whether it is the input's own scale: of all that the "onnx" form binds only that comes from a where."""
    is_member = isinstance(expr, Var) and any(expr.same_as(member) for member in x.found.members)
    return is_member and x.found.style == "onnx" and call_to(view.definition(expr), "where") is not None


def _per_channel(values: npt.NDArray[Any], rank: int, axis: int) -> npt.NDArray[Any] | None:
    """Return one value for each channel, or one for all; None if the constant varies along other axes."""
    if values.ndim > rank:
        return None
    padded = (1,) * (rank - values.ndim) + values.shape
    return None if any(dim != 1 and at != axis for at, dim in enumerate(padded)) else values.reshape(-1)
