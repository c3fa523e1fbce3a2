"""Reading quantized values in a QDQ graph: which integers and parameters stand behind a float expression.

Everything is found by following definitions; nothing is recognised by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.ir import GenericConst
from tvm.relax import Expr, Var

from ...numerics import PerAxis, PerTensor, QuantParams
from ...runtime.tensors import values_of
from ...target.op_facts import SHARES_PARAMETERS
from ..graph.dataflow import DataflowView, call_to, dtype_of
from ..graph.moving import CONSTANT_MOVERS, apply_mover
from ..graph.nodes import elements


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Dequantized:
    """A float value that is dequantize(source): `source` is the integer expression, `var` the float variable."""

    source: Expr
    params: QuantParams
    var: Var | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ConstantValue:
    """A constant with its quantization, every array of the constant's own shape (broadcast, so cheap).

    `values` are integers when `scale` is set, floats when it is None. `name` is the variable that names the tensor, "" if none.
    `members` are the variables that compute it.
    """

    values: npt.NDArray[Any]
    scale: npt.NDArray[np.float32] | None
    zero_point: npt.NDArray[np.int32] | None
    name: str
    members: tuple[Var, ...]


def numpy_constant(expr: Expr) -> npt.NDArray[Any] | None:
    """Return a literal's value, or None if the expression isn't one. The array is the literal's own memory, and read-only."""
    if type(expr) is not GenericConst:
        return None
    values = values_of(expr.value)
    values.flags.writeable = False
    return values


def params_of(call: Any, dtype: str) -> QuantParams | None:
    """Return the parameters of a quantize or dequantize call over integers of `dtype`; None if they aren't constants."""
    data, *parameters = elements(call.args)
    scale, zero_point = (numpy_constant(each) for each in parameters[:2])
    if scale is None or zero_point is None:
        return None
    if scale.size == 1:
        return _checked_params(dtype, scale.reshape(()), zero_point.reshape(()), PerTensor())
    ndim = len(data.ty.shape.values)
    axis = int(call.attrs.axis) % ndim
    return _checked_params(dtype, scale.reshape(-1), np.broadcast_to(zero_point.reshape(-1), scale.shape), PerAxis(axis))


def _checked_params(
    dtype: str, scale: npt.NDArray[Any], zero_point: npt.NDArray[Any], granularity: PerTensor | PerAxis
) -> QuantParams | None:
    try:
        return QuantParams(
            dtype=dtype, scale=scale.astype(np.float32), zero_point=zero_point.astype(np.int32), granularity=granularity
        )
    except ValueError:
        return None


def dequantized(view: DataflowView, expr: Expr) -> Dequantized | None:
    """Return what `expr` dequantizes, or None if it isn't the result of a dequantize with constant parameters."""
    call = call_to(view.definition(expr), "dequantize")
    if call is None:
        return None
    source = call.args[0]
    params = params_of(call, dtype_of(source))
    if params is None:
        return None
    return Dequantized(source=source, params=params, var=view.binding_of(expr))


def constant_value(view: DataflowView, expr: Expr) -> ConstantValue | None:
    """Return the constant behind `expr` through dequantize, reshape, transposition and flip; None if it isn't constant."""
    literal = numpy_constant(expr)
    if literal is not None:
        return ConstantValue(values=literal, scale=None, zero_point=None, name="", members=())
    var = view.binding_of(expr)
    definition = view.definition(expr)
    literal = numpy_constant(definition)
    if literal is not None:
        # The variable itself must come along: whoever reads it inside a composite reads it by name.
        members = () if var is None else (var,)
        return ConstantValue(values=literal, scale=None, zero_point=None, name=getattr(expr, "name", ""), members=members)
    call = call_to(definition, "dequantize", "astype", *CONSTANT_MOVERS)
    if call is None or var is None:
        return None
    inner = constant_value(view, call.args[0])
    if inner is None:
        return None
    members = (*inner.members, var)
    if call_to(call, "dequantize") is not None:
        return _dequantized_constant(call, inner, var, members)
    if call_to(call, "astype") is not None:
        if inner.scale is not None:
            return None
        values = inner.values.astype(str(call.attrs.dtype))
        return ConstantValue(values=values, scale=None, zero_point=None, name=inner.name, members=members)
    return ConstantValue(
        values=apply_mover(call, inner.values),
        scale=None if inner.scale is None else apply_mover(call, inner.scale),
        zero_point=None if inner.zero_point is None else apply_mover(call, inner.zero_point),
        name=inner.name,
        members=members,
    )


def _dequantized_constant(call: Any, inner: ConstantValue, var: Var, members: tuple[Var, ...]) -> ConstantValue | None:
    if inner.scale is not None:
        return None
    params = params_of(call, str(inner.values.dtype))
    if params is None:
        return None
    shape = [1] * inner.values.ndim
    if isinstance(params.granularity, PerAxis):
        shape[params.granularity.axis] = -1
    return ConstantValue(
        values=inner.values,
        scale=np.broadcast_to(params.scale.reshape(shape), inner.values.shape),
        zero_point=np.broadcast_to(params.zero_point.reshape(shape), inner.values.shape),
        name=var.name,
        members=members,
    )


def real_values(constant: ConstantValue) -> npt.NDArray[np.float32]:
    """Return a constant's real numbers, as dequantize gives them."""
    if constant.scale is None or constant.zero_point is None:
        return constant.values.astype(np.float32, copy=False)
    return (constant.values.astype(np.int64) - constant.zero_point).astype(np.float32) * constant.scale


def integer_params(view: DataflowView, expr: Expr) -> QuantParams | None:
    """Return the parameters of an integer activation, from the op that made it or from one that reads it.

    Looks through clip, max pooling and data movement, which keep scale and zero point.
    """
    seen = expr
    while True:
        call = call_to(view.definition(seen), "quantize", *SHARES_PARAMETERS)
        if call is None:
            break
        if call_to(call, "quantize") is not None:
            return params_of(call, dtype_of(seen))
        seen = call.args[0]
    return _params_from_readers(view, expr, depth=8)


def _params_from_readers(view: DataflowView, expr: Expr, depth: int) -> QuantParams | None:
    if depth == 0 or not isinstance(expr, Var):
        return None
    for user in view.users(expr):
        value = view.definition(user)
        call = call_to(value, "dequantize")
        if call is not None:
            return params_of(call, dtype_of(expr))
        if call_to(value, *SHARES_PARAMETERS) is not None:
            params = _params_from_readers(view, user, depth - 1)
            if params is not None:
                return params
    return None
