"""How an activation lies in memory between kernels, and the conversions between these layouts.

Kernels read and write uint8 or int16, channels last. A tensor of the source graph may be int8 or uint16 and channels first: then
it is kept relabelled (q + 128, q - 32768) and permuted as long as only kernels read it, and brought back for anybody else.
float32 may be permuted too.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from tvm.relax import Expr, Var

from ....ir.graph.dataflow import dtype_of, static_shape
from . import kernels
from .kernels import Kernel, RelabelSpec, TransposeSpec

TO_NHWC = (0, 2, 3, 1)


TO_NCHW = (0, 3, 1, 2)


RELABELLED = {"int8": "uint8", "uint16": "int16"}
"""Dtypes that kernels hold in another one of as many bits."""


@dataclass(frozen=True, slots=True)
class StorageLayout:
    """`is_nhwc`: permuted from the source's NCHW to NHWC. `is_relabelled`: int8 kept as uint8, or uint16 as int16."""

    is_nhwc: bool = False
    is_relabelled: bool = False


SOURCE = StorageLayout()


class Writes(Protocol):
    """Who writes the calls that bring values into other layouts."""

    def call(self, name: str, kernel: Kernel, args: list[Expr], shape: tuple[int, ...], dtype: str = "uint8") -> Var:
        """Call a kernel on activations as they lie; return the variable of the result."""
        ...

    def reshape(self, name: str, value: Expr, shape: tuple[int, ...]) -> Var:
        """See the same memory under another shape."""
        ...

    def converting(self, var: Var) -> AbstractContextManager[None]:
        """Stand around the calls that bring a value of the source graph into another layout."""
        ...

    def record(self, var: Var, layout: StorageLayout, value: Expr) -> None:
        """Record that `value` holds the source graph's `var` in a layout."""
        ...


class Storage:
    """Holds every value written so far, in each layout it was asked for."""

    def __init__(self, writes: Writes, isa: str, threads: int) -> None:
        self._writes = writes
        self._isa = isa
        self._threads = threads
        self._values: dict[Var, dict[StorageLayout, Expr]] = {}
        self._transposed: dict[Var, tuple[Expr, tuple[int, ...]]] = {}
        self._with_room: dict[Var, tuple[Var, int]] = {}

    def put_with_room(self, var: Var, value: Var, axis: int) -> None:
        """Record that `value` holds the source graph's `var`, with room for more along an axis."""
        self._with_room[var] = value, axis

    def with_room(self, var: Expr) -> tuple[Var, int] | None:
        """Return what holds a value with room along an axis, and the axis; None where it is dense."""
        return self._with_room.get(var) if isinstance(var, Var) else None

    def put(self, var: Var, layout: StorageLayout, value: Expr) -> None:
        """Record that `value` holds the source graph's `var` in `layout`."""
        self._values.setdefault(var, {})[layout] = value

    def put_source(self, var: Var, value: Expr) -> None:
        """Record a value that no kernel made: it has the source graph's layout."""
        self.put(var, SOURCE, value)

    def first(self) -> dict[Var, tuple[StorageLayout, Expr]]:
        """Return for each value the layout it was written in first, and what holds it."""
        return {var: next(iter(layouts.items())) for var, layouts in self._values.items()}

    def source(self, expr: Expr) -> Expr:
        """Return a value as the source graph has it: for readers that are no kernels."""
        return self.get(expr, is_nhwc=False, is_relabelled=False) if isinstance(expr, Var) else expr

    def is_kept_nhwc(self, var: Var) -> bool:
        """Return whether the value lies in memory as NHWC already."""
        return any(layout.is_nhwc for layout in self._values.get(var, {}))

    def is_first_nhwc(self, var: Var) -> bool:
        """Return whether the value was written as NHWC, not as the source has it."""
        return next(iter(self._values.get(var, {})), SOURCE).is_nhwc

    def get(self, var: Var, *, is_nhwc: bool, is_relabelled: bool | None = None) -> Expr:
        """Return `var` in a layout, converting once where needed. By default int8 and uint16 are relabelled, others not."""
        if var in self._with_room and var not in self._values:
            self.put_source(var, self._made_dense(var))
        layouts = self._values.setdefault(var, {SOURCE: var})
        wanted = StorageLayout(is_nhwc, dtype_of(var) in RELABELLED if is_relabelled is None else is_relabelled)
        if wanted in layouts:
            return layouts[wanted]
        relabelled = StorageLayout(is_nhwc, not wanted.is_relabelled)
        if relabelled in layouts:
            layouts[wanted] = self._relabelled(var, layouts[relabelled], wanted)
            return layouts[wanted]
        other = next((layout for layout in layouts if layout.is_relabelled == wanted.is_relabelled), None)
        if other is None:
            other = next(iter(layouts))
            value = self._relabelled(var, layouts[other], StorageLayout(other.is_nhwc, wanted.is_relabelled))
        else:
            value = layouts[other]
        with self._writes.converting(var):
            layouts[wanted] = self._permuted(var, value, is_nhwc=is_nhwc)
        self._writes.record(var, wanted, layouts[wanted])
        return layouts[wanted]

    def _made_dense(self, var: Var) -> Expr:
        value, axis = self._with_room[var]
        shape, lying = static_shape(var), static_shape(value)
        assert shape is not None
        assert lying is not None
        inner, room = prod(shape[axis:]), prod(lying[axis:])
        dtype: Any = dtype_of(var)
        outer = prod(shape[:axis])
        kernel = kernels.dense_rows(outer=outer, inner=inner, room=room, dtype=dtype, threads=self._threads, isa=self._isa)
        with self._writes.converting(var):
            return self._writes.call(f"{var.name}_dense", kernel, [value], shape, dtype)

    def _relabelled(self, var: Var, value: Expr, wanted: StorageLayout) -> Expr:
        shape = static_shape(value)
        assert shape is not None
        size = 1
        for dim in shape:
            size *= dim
        own = dtype_of(var)
        source: Any
        source, target = (own, RELABELLED[own]) if wanted.is_relabelled else (RELABELLED[own], own)
        kernel = kernels.relabel(RelabelSpec(size=size, in_dtype=source, threads=self._threads), isa=self._isa)
        suffix = {"uint8": "u8", "int8": "s8", "uint16": "u16", "int16": "s16"}[target]
        with self._writes.converting(var):
            result = self._writes.call(f"{var.name}_{suffix}", kernel, [value], shape, target)
        self._writes.record(var, wanted, result)
        return result

    def _permuted(self, var: Var, value: Expr, *, is_nhwc: bool) -> Expr:
        shape = static_shape(value)
        assert shape is not None
        assert len(shape) == 4
        axes = TO_NHWC if is_nhwc else TO_NCHW
        return self.permuted(f"{var.name}_{'nhwc' if is_nhwc else 'nchw'}", value, axes)

    def permuted(self, name: str, value: Expr, axes: tuple[int, ...]) -> Var:
        """Write a transposition of `value`, bound to `name`; moving axes of size 1 is a reshape, which costs nothing."""
        shape, dtype = static_shape(value), dtype_of(value)
        assert shape is not None
        target = tuple(shape[axis] for axis in axes)
        moves = [axis for axis in axes if shape[axis] != 1]
        if moves == sorted(moves):
            return self._writes.reshape(name, value, target)
        assert dtype in ("uint8", "int8", "int16", "uint16", "int32", "float32"), f"{name} is {dtype}; kernels hold up to 32 bits"
        spec = TransposeSpec(shape=shape, axes=axes, dtype=dtype, threads=self._threads)
        result = self._writes.call(name, kernels.transpose(spec, isa=self._isa), [value], target, dtype)
        self._transposed[result] = value, axes
        return result

    def before_transposition(self, value: Expr) -> tuple[Expr, tuple[int, ...]] | None:
        """Return what a transposition made `value` from, and its axes: who can read that leaves the transposition unread."""
        return self._transposed.get(value) if isinstance(value, Var) else None
