"""What a kernel of open sizes computes of dimensions becomes its arguments: then layers whose sizes differ may share it.

Before::

    def kernel(x[height // 2 * width], height, width, out): size = height // 2; for i in range(size): ...

After, called with height // 2::

    def kernel(x[...], size, out): for i in range(size): ...

Of its operands it needs no shape: all that it reads and writes there is reached through flat views. Only what it takes for
itself is as large as its sizes say.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import tvm_ffi

from ....ir.graph.kernel_attributes import SIZE_NAME, SIZES_ATTR
from ....ir.graph.nodes import elements, function_of
from ....ir.graph.sizes import buffers_and_dimensions, size_of
from ....ir.untyped import tirx
from ....runtime.shapes import LARGEST
from ....runtime.size import Size


@dataclass(frozen=True, slots=True)
class LiftedKernel:
    """A PrimFunc without attributes, and the sizes that it is called with between its buffers, in their order."""

    func: Any
    sizes: tuple[Size, ...]


def lifted(func: Any) -> LiftedKernel:
    """Return a kernel that takes its sizes as arguments; one of known sizes takes none."""
    buffers, dimensions = buffers_and_dimensions(func)
    plain = function_of(buffers, func.body, func.ret_type)
    if not dimensions:
        return LiftedKernel(plain, ())
    taken = _Taken(dimensions, list(map(_size, map(str, func.attrs[SIZES_ATTR]))))
    tvm_ffi.structural_walk(func.body, ((tirx.SeqStmt, taken.note), (tirx.AllocBuffer, taken.note_own)))
    exchanged = (tirx.BufferType, taken.shaped), (tirx.SeqStmt, _without_sizes), (tirx.Var, taken.read)
    made = tvm_ffi.structural_map(plain, exchanged, order="pre")
    params = [*made.params[:-1], *taken.variables.values(), made.params[-1]]
    return LiftedKernel(function_of(params, made.body, made.ret_type), tuple(taken.variables))


class _Taken:
    """The sizes that a kernel takes, and their variables."""

    def __init__(self, dimensions: list[Any], computed: list[Size]) -> None:
        self.variables: dict[Size, Any] = {}
        self._computed = iter(computed)
        self._sizes = {hash(each): Size.named(str(each.name)) for each in dimensions}
        self._own: list[Any] = []

    def note(self, block: Any) -> None:
        """Note the variables that a block of statements binds to sizes."""
        for _, bound in _computed(block):
            self._sizes[hash(bound.var)] = next(self._computed)

    def note_own(self, node: Any) -> None:
        """Note that the kernel takes a buffer for itself."""
        self._own.append(node.buffer.ty)

    def shaped(self, kind: Any) -> Any:
        """Return the type of a buffer with variables for sizes where it is the kernel's own, and of any size where it is not."""
        if not any(kind.same_as(each) for each in self._own):
            return _operand(str(kind.dtype), kind.storage_scope)
        sizes = [size_of(dim) for dim in kind.shape]
        if not any(isinstance(size, Size) for size in sizes):
            return kind
        pairs = zip(kind.shape, sizes, strict=True)
        shape = [self._variable(size) if isinstance(size, Size) else dim for dim, size in pairs]
        return tirx.decl_buffer(shape, str(kind.dtype), scope=kind.storage_scope).ty

    def read(self, variable: Any) -> Any:
        """Return what stands for a variable where it is a size."""
        size = self._sizes.get(hash(variable))
        return variable if size is None else self._variable(size)

    def _variable(self, size: Size) -> Any:
        if size not in self.variables:
            # Whoever asks how large a kernel's own buffers are knows its parameters by their names.
            self.variables[size] = tirx.Var(f"size.{len(self.variables)}", "int32")
        return self.variables[size]


@cache
def _operand(dtype: str, scope: str) -> Any:
    return tirx.decl_buffer([LARGEST], dtype, scope=scope).ty


@lru_cache(1 << 12)
def _size(text: str) -> Size:
    size = Size.parse(text)
    assert isinstance(size, Size), "a number is computed of no dimensions"
    return size


def _without_sizes(block: Any) -> Any:
    """Return statements without those that compute sizes."""
    computed = _computed(block)
    if not computed:
        return block
    dropped = {hash(bound) for _, bound in computed}
    buffers = {hash(store.buffer) for store, _ in computed}
    kept = [each for each in block.seq if hash(each) not in dropped and hash(getattr(each, "buffer", None)) not in buffers]
    return kept[0] if len(kept) == 1 else tirx.SeqStmt(kept)


def _computed(block: Any) -> list[tuple[Any, Any]]:
    """Return the pairs of statements that store a size, and bind its variable."""
    return [
        (store, bound)
        for store, bound in pairwise(elements(block.seq))
        if isinstance(bound, tirx.Bind) and str(bound.var.name) == SIZE_NAME
    ]
