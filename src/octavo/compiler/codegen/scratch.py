"""Scratch: a kernel's large buffers of its own as parameters, so that its caller plans their memory and none is of the heap.

Before:  kernel(x, y): buffer = alloc_buffer((20000,), "uint8") ...
After:   kernel(x, y, buffer_data): buffer = decl_buffer((20000,), "uint8", data=buffer_data) ...
"""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm.tirx import AllocBuffer

from ...ir.graph.nodes import function_of
from ...ir.graph.sizes import buffers_and_dimensions, size_of
from ...ir.untyped import s_tir, tirx
from ...runtime.size import Size, is_open


def with_scratch(kernel: Any, on_stack: float) -> tuple[Any, list[int | Size]]:
    """Return a kernel on pointers that takes its own buffers as further pointers, before any sizes, and the bytes of each.

    Those of an open size are Sizes of the kernel's parameters, by their names.

    Parameters
    ----------
    kernel
        What `pointer_kernels.on_pointers` returns.
    on_stack
        Bytes up to which buffers of known sizes stay what they are. Accumulators stay anyway: they are registers.
    """
    found: list[Any] = []

    def allocated(node: Any) -> None:
        found.append(node.buffer)

    def in_block(node: Any) -> None:
        found.extend(node.alloc_buffers)

    tvm_ffi.structural_walk(kernel.body, ((AllocBuffer, allocated), (s_tir.SBlock, in_block)))
    found_sizes = {buffer: _bytes(buffer) for buffer in found}
    sizes = {buffer: size for buffer, size in found_sizes.items() if size is not None}
    known = sum(size for size in sizes.values() if not is_open(size))
    moved = [buffer for buffer in sizes if is_open(sizes[buffer]) or known > on_stack]
    if len(sizes) < len(found_sizes) or not moved:
        return kernel, []
    pointers = {buffer: _pointer(buffer) for buffer in moved if str(buffer.ty.storage_scope) != "local"}

    def declared(node: Any) -> Any:
        return tirx.DeclBuffer(node.buffer, data=pointers[node.buffer]) if node.buffer in pointers else node

    def without_buffers(node: Any) -> Any:
        if not node.alloc_buffers:
            return node
        kept = [buffer for buffer in node.alloc_buffers if buffer not in pointers]
        fields = (node.iter_vars, node.reads, node.writes, node.name_hint, node.body, node.init)
        return s_tir.SBlock(*fields, kept, node.match_buffers, node.annotations)

    of_blocks: list[Any] = []

    def note(node: Any) -> None:
        of_blocks.extend(buffer for buffer in node.alloc_buffers if buffer in pointers)

    tvm_ffi.structural_walk(kernel.body, (s_tir.SBlock, note))
    body = tvm_ffi.structural_map(kernel.body, ((AllocBuffer, declared), (s_tir.SBlock, without_buffers)))
    if of_blocks:
        body = tirx.SeqStmt([*(tirx.DeclBuffer(buffer, data=pointers[buffer]) for buffer in of_blocks), body])
    operands, sizes_taken = buffers_and_dimensions(kernel)
    made = function_of([*operands, *pointers.values(), *sizes_taken], body, kernel.ret_type, kernel.attrs)
    return made, [sizes[buffer] for buffer in pointers]


def _pointer(buffer: Any) -> Any:
    return tirx.Var(f"{buffer.name}_data", tvm.ir.PointerType(tvm.ir.PrimType(str(buffer.ty.dtype)), "global"))


def _bytes(buffer: Any) -> int | Size | None:
    """Return the size of a buffer; None where it is no size of the kernel's parameters."""
    dims = [size_of(dim) for dim in buffer.ty.shape]
    known = [dim for dim in dims if dim is not None]
    item = -(-int(tvm.DataType(str(buffer.ty.dtype)).bits) // 8)
    return prod(known) * item if len(known) == len(dims) else None
