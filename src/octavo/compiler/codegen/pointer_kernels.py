"""Kernels over pointers: a PrimFunc over tensors as one over pointers to their data, for a caller that plans all memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm

from ...ir.graph.sizes import buffers_and_dimensions
from ...ir.untyped import tirx
from .sharing import SharedKernel
from .tir_passes import PLAIN_CALL


class NeedsMachine(Exception):
    """Something other than a call of a PrimFunc on tensors of static shape."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PointerKernel:
    """A kernel over pointers to its operands' data, which takes open sizes behind them.

    Parameters
    ----------
    function
        It needs no checks: the caller is ours.
    implied
        What sizes it takes behind those that the tensors' kernel takes: axes of operands, as (operand, axis).
    dtypes
        Of all sizes.
    """

    function: Any
    implied: tuple[tuple[int, int], ...]
    dtypes: tuple[str, ...]

    def sizes_of(self, given: Sequence[int], shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Return what a call gives it behind the operands: the sizes given, and those that shapes of the operands imply."""
        return (*given, *(shapes[operand][axis] for operand, axis in self.implied))

    def named(self, sizes: Sequence[int]) -> dict[str, int]:
        """Return the same by the names of its parameters."""
        _, params = buffers_and_dimensions(self.function)
        found = {str(each.name): size for each, size in zip(params, sizes, strict=True)}
        assert len(found) == len(params), "a kernel's sizes are told apart by their names"
        return found


def on_pointers(kernel: Any, symbol: str, shared: SharedKernel | None = None) -> PointerKernel:
    """Return a PrimFunc over tensors as one over pointers to their data, sizes, and a range of chunks where it is shared."""
    pointers: list[Any] = []
    views: list[Any] = []
    buffers, given = buffers_and_dimensions(kernel)
    if not all(isinstance(each.ty, tvm.ir.PrimType) for each in given):
        raise NeedsMachine
    implied: dict[Any, tuple[int, int]] = {}
    for number, buffer in enumerate(buffers):
        pointer = tirx.Var(f"{buffer.name}_data", tvm.ir.PointerType(tvm.ir.PrimType(str(buffer.ty.dtype)), "global"))
        pointers.append(pointer)
        views.append(tirx.DeclBuffer(buffer, data=pointer))
        for axis, dim in enumerate(buffer.ty.shape):
            if isinstance(dim, tirx.Var) and not any(dim.same_as(each) for each in (*given, *implied)):
                implied[dim] = number, axis
    body = tirx.SeqStmt([*views, kernel.body if shared is None else shared.body])
    bounds = [] if shared is None else [shared.first, shared.last]
    sizes = [*given, *implied]
    # A parallel loop that fails returns its error code, so a kernel must return one, too; `tir_passes` adds that of success.
    made = tirx.PrimFunc([*pointers, *sizes, *bounds], body, tvm.ir.PrimType("int32"), kernel.attrs)
    made = made.with_attr("global_symbol", symbol).with_attr("calling_conv", PLAIN_CALL)
    return PointerKernel(function=made, implied=tuple(implied.values()), dtypes=tuple(str(each.ty.dtype) for each in sizes))
