"""Kernels over pointers: a PrimFunc over tensors as one over pointers to their data, for a caller that plans all memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm.ir import Call

from ...ir.graph.kernel_attributes import KERNEL_ATTR
from ...ir.graph.nodes import function_of
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
    body: Any = kernel.body if shared is None else shared.body
    buffers, given = buffers_and_dimensions(kernel)
    flat = _flat_views(kernel, body, buffers)
    if not all(isinstance(each.ty, tvm.ir.PrimType) for each in given):
        raise NeedsMachine
    implied: dict[Any, tuple[int, int]] = {}
    for number, buffer in enumerate(buffers):
        pointer = tirx.Var(f"{buffer.name}_data", tvm.ir.PointerType(tvm.ir.PrimType(str(buffer.ty.dtype)), "global"))
        pointers.append(pointer)
        views.append(tirx.DeclBuffer(flat.get(hash(buffer), buffer), data=pointer))
        for axis, dim in enumerate(buffer.ty.shape):
            if isinstance(dim, tirx.Var) and not any(dim.same_as(each) for each in (*given, *implied)):
                implied[dim] = number, axis
    body = tirx.SeqStmt([*views, *body.seq[len(flat) :]] if flat else [*views, body])
    bounds = [] if shared is None else [shared.first, shared.last]
    sizes = [*given, *implied]
    # A parallel loop that fails returns its error code, so a kernel must return one, too; `tir_passes` adds that of success.
    made = function_of([*pointers, *sizes, *bounds], body, tvm.ir.PrimType("int32"), kernel.attrs)
    made = made.with_attr("global_symbol", symbol).with_attr("calling_conv", PLAIN_CALL)
    return PointerKernel(function=made, implied=tuple(implied.values()), dtypes=tuple(str(each.ty.dtype) for each in sizes))


def _flat_views(kernel: Any, body: Any, operands: Sequence[Any]) -> dict[int, Any]:
    """Return the flat buffers that a kernel's statements begin with in place of operands with shapes, by these' addresses.

    The CPU's `with_shapes` wrote them for loops that know no other buffer: over pointers, which have no shape, they are all that
    the kernel needs, and TVM has nothing to flatten.
    """
    shaped = {hash(each) for each in operands if len(each.ty.shape) != 1}
    found: dict[int, Any] = {}
    for each in body.seq if KERNEL_ATTR in kernel.attrs and isinstance(body, tirx.SeqStmt) else ():
        if not isinstance(each, tirx.DeclBuffer) or not isinstance(each.data, Call) or hash(each.data.args[0]) not in shaped:
            break
        found[hash(each.data.args[0])] = each.buffer
    return found
