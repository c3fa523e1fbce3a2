"""Composite ops: movement. Plain facts of what one composite computes; nothing is matched and nothing emitted here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ...numerics import requantize_tensor
from ...numerics.affine import TieRounding
from ...numerics.quantized.rescale import fixed_point_table
from ...runtime.size import is_open
from .base import (
    NO_ARITHMETIC,
    Arithmetic,
    CompositeOp,
    ElementFunction,
    QuantizedOutput,
    QuantizedTensor,
    UnaryOp,
    change_of_parameters,
    integer_arithmetic,
    ratio,
)
from .outputs import output_spec


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ConcatOp(CompositeOp):
    """Concatenation along `axis` of the source's layout; `constants` are the integers of those inputs that are constants."""

    inputs: tuple[QuantizedTensor, ...]
    y: QuantizedOutput
    axis: int
    constants: Mapping[int, npt.NDArray[Any]]

    def roles(self) -> dict[str, Any]:
        """Return its tensors by role."""
        return {**{f"input{i}": tensor.info() for i, tensor in enumerate(self.inputs)}, **self.y.roles()}

    def arithmetic(self) -> Arithmetic:
        """Return the change to the result's parameters."""
        return change_of_parameters(*self.inputs, y=self.y)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class QuantizeOp(CompositeOp):
    """float32 to integers at the edge of an integer region: real / scale in float32, whose ties go as `rounding` says."""

    source: str
    y: QuantizedOutput
    rounding: TieRounding = "half_even"

    def roles(self) -> dict[str, Any]:
        """Return its tensors by role."""
        return self.y.roles()

    def arithmetic(self) -> Arithmetic:
        """Return the rounding of real / scale, as the quantize names it."""
        if self.y.fixed_point is None:
            return Arithmetic("float_multiplier", self.rounding)
        return integer_arithmetic(self.y.fixed_point)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DequantizeOp(CompositeOp):
    """Integers to float32 at the edge of an integer region."""

    x: QuantizedTensor
    result: str

    def roles(self) -> dict[str, Any]:
        """Return its tensors by role."""
        return {"input": self.x.info()}

    def arithmetic(self) -> Arithmetic:
        """Return none: the result is no integers."""
        return NO_ARITHMETIC


Outside = Literal["fill", "edge", "reflect", "wrap"]


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexRun:
    """The indices that an axis of open size is read at: start + step * (place // repeat), padding before and after them.

    Parameters
    ----------
    count
        Elements that are read.
    before, after
        Elements of padding.
    outside
        What padding is: the fill, the element at the edge, or those that follow where the axis is turned round at its edges
        ("reflect") or begins anew ("wrap"); whole axes only have another than the fill.
    """

    count: int
    start: int = 0
    step: int = 1
    repeat: int = 1
    before: int = 0
    after: int = 0
    outside: Outside = "fill"

    @property
    def extent(self) -> int:
        """Elements of the result along the axis."""
        return self.before + self.count + self.after


AxisMap = tuple[int, ...] | IndexRun
Maps = tuple[AxisMap, ...]
"""For each axis of the input, the index that each element of the result reads; -1 for padding. A run where it is open."""


def full_axis(extent: int) -> AxisMap:
    """Return the indices of all elements of an axis."""
    return cut_axis(0, extent)


def cut_axis(first: int, extent: int) -> AxisMap:
    """Return the indices of so many elements of an axis."""
    return IndexRun(count=extent, start=first) if is_open(extent) else tuple(range(first, first + extent))


def padded_axis(extent: int, before: int, after: int, outside: Outside = "fill") -> AxisMap:
    """Return the indices of all elements of an axis with padding around them."""
    if is_open(extent):
        return IndexRun(count=extent, before=before, after=after, outside="fill" if before == 0 and after == 0 else outside)
    if outside == "fill":
        return (*(-1,) * before, *range(extent), *(-1,) * after)
    if outside == "wrap":
        return tuple(place % extent for place in range(-before, extent + after))
    return tuple(np.pad(np.arange(extent), (before, after), mode=outside).tolist())


def known_maps(maps: Maps) -> tuple[tuple[int, ...], ...]:
    """Return maps of which no axis is open, for who can't do with others."""
    assert not any(isinstance(indices, IndexRun) for indices in maps), "sizes are known here"
    return tuple(indices for indices in maps if isinstance(indices, tuple))


def extent_of(indices: AxisMap) -> int:
    """Return how many elements the result has along an axis."""
    return indices.extent if isinstance(indices, IndexRun) else len(indices)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DataMovementOp(UnaryOp):
    """An op that moves the values of one tensor."""

    def arithmetic(self) -> Arithmetic:
        """Return the change to the result's parameters."""
        return change_of_parameters(self.x, y=self.y)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GatherOp(DataMovementOp):
    """y[i, j, ...] = x[maps[0][i], maps[1][j], ...], then the output's parameters; `fill` is in x's own integers."""

    maps: Maps
    fill: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MoveOp(DataMovementOp):
    """Data movement (reshape, squeeze, transposition), or none at all (a clamp, a change of parameters).

    `axes` is the permutation of a transposition, None for a reshape.
    """

    axes: tuple[int, ...] | None

    def element_function(self) -> ElementFunction | None:
        """Return the change of parameters or the clamp, where nothing is moved."""
        if self.axes is not None or self.x.shape != self.y.tensor.shape or self.x.kernel_dtype != "uint8":
            return None
        out, multiplier = output_spec(self.y), ratio(self.x.params, self.y.tensor.params)
        if self.y.fixed_point is not None and multiplier != 1.0:
            entries = fixed_point_table(
                self.x.params, self.y.tensor.params, self.y.fixed_point, qmin=self.y.qmin, qmax=self.y.qmax
            )
            table = self.y.tensor.kernel_integers(entries)
            return ElementFunction(operands={"input": self.x}, result=self.y, of=lambda x: table[x])

        def of(x: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
            result = requantize_tensor(
                x,
                input_zero_point=self.x.zero_point,
                multiplier=multiplier,
                zero_point=out.zero_point,
                qmin=out.qmin,
                qmax=out.qmax,
            )
            return result.astype(np.uint8)

        return ElementFunction(operands={"input": self.x}, result=self.y, of=of)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TakeOp(DataMovementOp):
    """x[..., indices, ...] along `axis`; `values` are x's integers where it is a constant. Indices have no role."""

    values: npt.NDArray[Any] | None
    indices: str
    axis: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TopkOp(CompositeOp):
    """The `count` greatest or least elements of x along `axis`, counted in the source's layout; `y` is None for places."""

    x: QuantizedTensor
    y: QuantizedOutput | None
    axis: int
    count: int
    largest: bool

    def roles(self) -> dict[str, Any]:
        """Return its tensors by role; places are no quantized tensor."""
        return {"input": self.x.info(), **({} if self.y is None else self.y.roles())}

    def arithmetic(self) -> Arithmetic:
        """Return none: the result has the parameters of x, or none."""
        return NO_ARITHMETIC
