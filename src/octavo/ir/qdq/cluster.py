"""Clusters: the float ops of single elements that stand between dequantized tensors and one quantize, and what they compute.

A rule makes a table of them. Nothing here knows how many tensors a table can have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var

from ...numerics import ELEMENTWISE
from ...numerics.quantized.compare import COMPARISONS
from ...target.vocabulary import FIXED_POINT
from ..graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ..graph.rules import Rejection
from .rounding import operand_rounding
from .values import ConstantValue, Dequantized, constant_value, dequantized

PRELU = "nn.prelu"
"""The one function of single elements whose second operand is aligned at an axis of its own, not at the last."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ManyConstant:
    """A constant of several elements: `key` is what reads it by, `shape` is aligned with the result's at the end."""

    key: Expr
    value: ConstantValue
    shape: tuple[int, ...]

    @property
    def real(self) -> npt.NDArray[Any]:
        """Its values, dequantized where it is quantized, of `shape`."""
        return real_of(self.value).reshape(self.shape)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Cluster:
    """The ops before one quantize.

    Parameters
    ----------
    tensors
        What is dequantized, each tensor once.
    constants
        Constants of several elements.
    members
        Variables of the ops and of all that they read, in the order of the function, without the quantize.
    quantize
        The variable of the result.
    """

    tensors: tuple[Dequantized, ...]
    constants: tuple[ManyConstant, ...]
    members: tuple[Var, ...]
    quantize: Var


def ends_of(view: DataflowView, core: Var) -> list[Var] | Rejection:
    """Return the quantizes that the float value `core` leads to through elementwise ops alone."""
    known = _first_rejection(view, core)
    if known is not None:
        return known
    ends: dict[Var, None] = {}
    seen: set[Var] = set()
    waiting = [core]
    while waiting:
        var = waiting.pop()
        if call_to(view.definition(var), "quantize") is not None:
            ends[var] = None
            continue
        if var in seen:
            continue
        seen.add(var)
        rejection = _rejection(view, var)
        if rejection is not None:
            return rejection
        waiting.extend(view.users(var))
    return list(ends) if ends else Rejection(reason=f"the result of {core.name} is never quantized; quantize it")


_FIRST: WeakKeyDictionary[DataflowView, dict[int, Rejection | None]] = WeakKeyDictionary()
"""What the last users of last users lead to, by the hash of each variable on the way."""


def _first_rejection(view: DataflowView, core: Var) -> Rejection | None:
    """Return what is wrong with the first value behind `core` that can't be, going to the last user of each; None at a quantize.

    It is where a walk over all users begins. All on the way there end at the same value: a long residual stream is walked once.
    """
    known = _FIRST.setdefault(view, {})
    passed: list[int] = []
    found: Rejection | None = None
    var = core
    while call_to(view.definition(var), "quantize") is None:
        if hash(var) in known:
            found = known[hash(var)]
            break
        passed.append(hash(var))
        found, users = _rejection(view, var), view.users(var)
        if found is not None or not users:
            break
        var = users[-1]
    known |= dict.fromkeys(passed, found)
    return found


def _rejection(view: DataflowView, var: Var) -> Rejection | None:
    """Return why no quantize can follow a float value through elementwise ops; None where its users decide."""
    value = view.definition(var)
    if not is_elementwise(value):
        return Rejection(reason=f"{var.name} ({op_name(value)}) is float and no elementwise op; quantize its result")
    if view.is_returned(var) and dtype_of(var) == "bool":
        return Rejection(reason=f"its result {var.name} is boolean values of float operands; quantize these")
    if view.is_returned(var):
        return Rejection(reason=f"its result {var.name} is returned in float, and no quantize stands before")
    return None


def cluster_before(view: DataflowView, end: Var) -> Cluster | Rejection:
    """Collect all that the quantize `end` is computed from, back to what is dequantized."""
    call = call_to(view.definition(end), "quantize")
    assert call is not None, f"{end.name} is no quantize"
    tensors: list[Dequantized] = []
    constants: list[ManyConstant] = []
    members: dict[Var, None] = {}
    waiting: list[tuple[Expr, tuple[int, ...] | None]] = [(call.args[0], None)]
    while waiting:
        operand, aligned = waiting.pop()
        if prim_value(operand) is not None:
            continue
        constant = constant_value(view, operand)
        if constant is not None:
            members.update(dict.fromkeys(constant.members))
            if constant.values.size != 1:
                shape = constant.values.shape if aligned is None else aligned
                constants.append(ManyConstant(key=_key(view, operand), value=constant, shape=shape))
            continue
        var = view.binding_of(operand)
        if var is None:
            return Rejection(reason=f"operand {name_of(operand)} is float")
        if aligned is not None:
            return Rejection(reason=f"the slopes {var.name} are no constant; make them one")
        if var in members:
            continue
        members[var] = None
        x = dequantized(view, var)
        if x is not None:
            if not any(same_tensor(x, other) for other in tensors):
                tensors.append(x)
            continue
        value: Any = view.definition(var)
        if not is_elementwise(value):
            return Rejection(reason=f"{var.name} ({op_name(value)}) is float and no elementwise op; quantize its result")
        if op_name(value) in COMPARISONS and operand_rounding(view, value) == FIXED_POINT:
            return Rejection(reason=f"{var.name} compares in fixed point, as its source does; a table compares real numbers")
        waiting.extend((arg, _alignment(value, position)) for position, arg in reversed(list(enumerate(value.args))))
    ordered = tuple(sorted(members, key=view.place_of))
    return Cluster(tensors=tuple(tensors), constants=tuple(constants), members=ordered, quantize=end)


def is_elementwise(value: Any) -> bool:
    """Return whether a bound value is a function of single elements."""
    cast = call_to(value, "astype")
    if cast is not None:
        return str(cast.attrs.dtype) in ("float32", "bool")
    return call_to(value, PRELU, *ELEMENTWISE) is not None


def operations(view: DataflowView, cluster: Cluster) -> list[Any]:
    """Return the calls of the ops, without dequantizes and constants."""
    values = [view.definition(var) for var in cluster.members if constant_value(view, var) is None]
    return [value for value in values if call_to(value, "dequantize") is None]


def evaluated(
    view: DataflowView, cluster: Cluster, tensors: list[npt.NDArray[np.floating[Any]]], constants: list[npt.NDArray[Any]]
) -> npt.NDArray[np.floating[Any]]:
    """Return the cluster's real result, before its quantize, for these real values of its tensors and of its constants.

    It is float64 where the tensors' values are. The arrays broadcast; each stands for the tensor or constant of its place.
    """
    values: dict[Var, npt.NDArray[Any]] = {}

    def of(operand: Expr) -> npt.NDArray[Any]:
        plain = prim_value(operand)
        if plain is not None:
            return np.full(1, plain, np.float32)
        key = _key(view, operand)
        for constant, real in zip(cluster.constants, constants, strict=True):
            if constant.key.same_as(key):
                return real
        single = constant_value(view, operand)
        if single is not None:
            return real_of(single).reshape(1)
        assert isinstance(key, Var)
        return values[key]

    with np.errstate(all="ignore"):  # operands that the network never meets may overflow or have no result
        for var in cluster.members:
            value: Any = view.definition(var)
            if constant_value(view, var) is not None:
                continue
            x = dequantized(view, var)
            if x is not None:
                values[var] = next(real for t, real in zip(cluster.tensors, tensors, strict=True) if same_tensor(t, x))
            elif call_to(value, "astype") is not None:
                values[var] = of(value.args[0]).astype(str(value.attrs.dtype))
            elif call_to(value, PRELU) is not None:
                real, slope = (of(arg) for arg in value.args)
                values[var] = np.where(real < 0, real * slope, real)
            else:
                values[var] = ELEMENTWISE[op_name(value)](*(of(arg) for arg in value.args), **attributes(value))
    call: Any = view.definition(cluster.quantize)
    shape = np.broadcast_shapes(*(array.shape for array in (*tensors, *constants)))
    dtype = np.result_type(np.float32, *tensors)
    return np.broadcast_to(of(call.args[0]), shape).astype(dtype)


def attributes(value: Any) -> dict[str, float]:
    """Return the attributes that an elementwise function takes, by name."""
    names = {"nn.leakyrelu": ("alpha",), "nn.softplus": ("beta", "threshold")}.get(op_name(value), ())
    return {name: float(getattr(value.attrs, name)) for name in names}


def real_of(constant: ConstantValue) -> npt.NDArray[Any]:
    """Return a constant's real values: dequantized where it is quantized, as they are (bool, too) elsewhere."""
    if constant.scale is None or constant.zero_point is None:
        return constant.values
    return ((constant.values.astype(np.int64) - constant.zero_point).astype(np.float32) * constant.scale).astype(np.float32)


def prim_value(operand: Expr) -> float | None:
    """Return a literal number that is no tensor (a bound of clip), None for anything else."""
    value = getattr(operand, "value", None)
    return float(value) if isinstance(value, (int, float)) else None


def same_tensor(a: Dequantized, b: Dequantized) -> bool:
    """Return whether the same integers are dequantized alike."""
    same = a.params.dtype == b.params.dtype and np.array_equal(a.params.scale, b.params.scale)
    return a.source.same_as(b.source) and same and np.array_equal(a.params.zero_point, b.params.zero_point)


def name_of(expr: Expr) -> str:
    """Return a variable's name, "constant" for anything else."""
    return str(getattr(expr, "name", "constant"))


def _key(view: DataflowView, operand: Expr) -> Expr:
    """Return what tells an operand from the others: the variable that is bound to its value, or the literal itself."""
    var = view.binding_of(operand)
    return operand if var is None else var


def _alignment(value: Any, position: int) -> tuple[int, ...] | None:
    """Return the shape that aligns an operand with the result at the end, None where it is aligned so."""
    shape = static_shape(value.args[0])
    if call_to(value, PRELU) is None or position == 0 or shape is None:
        return None
    axis = int(value.attrs.axis) % len(shape)
    return (shape[axis], *(1 for _ in shape[axis + 1 :]))
