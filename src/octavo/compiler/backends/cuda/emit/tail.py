"""Ops that follow a product in its kernel: which ones can, and where the tensor lies that they read beside."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .....ir.composites.attributes import Composite
from .....ir.composites.base import CompositeOp, FunctionResult, QuantizedOutput
from .....ir.composites.elementwise import AddOp, PairwiseOp
from .....ir.composites.elementwise import Operand as Side
from .....ir.composites.weighted import BatchMatmulOp, Conv2dOp, DynamicTensor, MatmulOp
from ..emission import TO_NHWC, Emission, Value
from ..kernels.conv.spec import has_own_zero_points
from ..kernels.elementwise.pair import PairFunction
from ..kernels.matmuls.output import Output
from ..kernels.matmuls.tail import Tail
from .elementwise import function_of

_EVERY: npt.NDArray[np.uint8] = np.arange(256, dtype=np.uint8)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Followers:
    """What follows a product in its kernel, none at first.

    Parameters
    ----------
    tail
        As the kernel takes it.
    shape, is_nhwc
        Of the product's result, and how it lies.
    dtype
        Of what is written.
    beside
        The tensor that the tail reads.
    """

    shape: tuple[int, ...]
    is_nhwc: bool
    dtype: str
    tail: Tail = field(default_factory=Tail)
    beside: Value | None = None


def ended_by(own: Output, followers: Followers | None) -> Output:
    """Return how the kernel of a product ends that ends so on its own."""
    return own if followers is None or not followers.tail.ops else own.followed_by(followers.tail, followers.dtype)


def read_by(own: list[Value], followers: Followers | None) -> list[Value]:
    """Return what the kernel of a product reads that reads these on its own."""
    return own if followers is None or followers.beside is None else [*own, followers.beside]


def followers_of(op: CompositeOp) -> Followers | None:
    """Return what can follow an op in its kernel, none yet; None where it is no product of known parameters to integers."""
    if not isinstance(op, Conv2dOp | MatmulOp | BatchMatmulOp):
        return None
    if isinstance(op, Conv2dOp | MatmulOp) and (isinstance(op.x, DynamicTensor) or has_own_zero_points(op.x)):
        return None
    y = op.y.y if isinstance(op.y, FunctionResult) else op.y
    if not isinstance(y, QuantizedOutput):
        return None
    is_nhwc = isinstance(op, Conv2dOp) and op.layout == "NCHW"
    return Followers(shape=y.shape, is_nhwc=is_nhwc, dtype=y.tensor.params.dtype)


def may_follow(composite: Composite, name: str) -> bool:
    """Return whether an op may follow another one, whose result it calls so: a table of it, or a function of two tensors."""
    return _table(composite, name) is not None or _sides(composite.op, name) is not None


def followed(
    before: Followers, composite: Composite, name: str, values: Mapping[str, Value], emission: Emission
) -> Followers | None:
    """Return followers with an op behind them.

    Parameters
    ----------
    name
        What the op calls the result in front of it.
    values
        The tensors that it reads beside, by the names that it calls them.

    Returns
    -------
    Followers
        None where the kernel cannot compute it: a second function of two tensors, or one that lies otherwise.
    """
    table = _table(composite, name)
    if table is not None:
        entries, dtype = table
        return replace(before, tail=before.tail.with_table(entries, before.dtype, composite.op_name), dtype=dtype)
    sides = _sides(composite.op, name)
    if sides is None or before.tail.pair is not None:
        return None
    beside = _beside(before, sides.other, values, emission)
    if beside is None:
        return None
    tail = before.tail.with_pair(sides.function, beside.dtype, is_first_operand=sides.is_first_operand)
    return replace(before, tail=tail, dtype=sides.dtype, beside=beside)


def _table(composite: Composite, name: str) -> tuple[npt.NDArray[np.integer[Any]], str] | None:
    """Return an op's table with an entry for each integer that it reads, least first, and the dtype of its result."""
    own = composite.op.element_function()
    if own is None or [tensor.name for tensor in own.operands.values()] != [name]:
        return None
    (x,), y = own.operands.values(), own.result.tensor
    if x.shape != y.shape:
        return None
    return (own.of(_EVERY).astype(np.int16) - y.relabelling).astype(y.params.dtype), y.params.dtype


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Sides:
    """A function of a product's integers and another tensor's, all of one shape."""

    function: PairFunction
    other: Side
    is_first_operand: bool
    dtype: str


def _sides(op: CompositeOp, name: str) -> _Sides | None:
    if isinstance(op, AddOp):
        a, b = Side(tensor=op.a, values=None), Side(tensor=op.b, values=op.b_values)
    elif isinstance(op, PairwiseOp):
        a, b = op.a, op.b
    else:
        return None
    is_first = a.values is None and a.tensor.name == name
    own, other = (a, b) if is_first else (b, a)
    fits = other.tensor.shape == op.y.shape if other.values is None else other.values.size == math.prod(op.y.shape)
    if own.tensor.shape != op.y.shape or not fits:
        return None
    return _Sides(function=function_of(op), other=other, is_first_operand=is_first, dtype=op.y.tensor.params.dtype)


def _beside(before: Followers, side: Side, values: Mapping[str, Value], emission: Emission) -> Value | None:
    """Return the tensor that is read beside, None where it lies in another layout than the result."""
    if side.values is None:
        return emission.lying_as_it_is(values[side.tensor.name], is_nhwc=before.is_nhwc)
    constant = side.values.reshape(before.shape).astype(side.tensor.params.dtype)
    given = emission.given(constant.transpose(TO_NHWC) if before.is_nhwc else constant)
    return replace(given, shape=before.shape, is_nhwc=before.is_nhwc)
