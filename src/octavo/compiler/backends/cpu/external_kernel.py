"""Code of other back ends in a module that the CPU runs: a kernel like the CPU's own around each.

It calls what they generated; it reads no graph and knows none of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm.script.ir_builder import tirx as _builder

from ....errors import CompileError
from ....ir.composites.attributes import Composite
from ....ir.graph.kernel_attributes import EXTERNAL_ATTR
from ..external import External, c_types
from ..protocol import Code, where_of
from .kernels import Kernel
from .kernels.language.vectors import prim_func

# TVM ships no types for its operators.
T: Any = _builder
_TENSOR_DTYPES = frozenset(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)) | {
    "float16",
    "float32",
    "float64",
}


def external_kernel(
    code: Code, composite: Composite, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]
) -> tuple[Kernel, External | None]:
    """Return the kernel of code, and what it calls; `shapes` and `dtypes` are of its inputs and, last, of its output."""
    is_func = isinstance(code.source, tvm.tirx.PrimFunc)
    constants = tuple(np.asarray(array) if is_func else plain_bytes(array) for array in code.constants)
    sizes = [math.prod(shape) for shape in shapes]
    arguments = [
        *((f"input{number}", size, dtype) for number, (size, dtype) in enumerate(zip(sizes[:-1], dtypes[:-1], strict=True))),
        *((f"constant{number}", array.size, str(array.dtype)) for number, array in enumerate(constants)),
        ("output", sizes[-1], dtypes[-1]),
    ]
    external = None
    if isinstance(code.source, tvm.tirx.PrimFunc):
        func = _checked_func(code.source, arguments, composite)
    else:
        external = External(source=code.source, where=where_of(composite), arguments=c_types(code, dtypes))
        func = _calling(external.symbol, arguments, code.workspace)
    return Kernel(name=code.name or composite.kind, isa=composite.backend, func=func, constants=constants), external


def plain_bytes(constant: Any) -> npt.NDArray[Any]:
    """Return a constant as one that TVM's modules hold: what is no array of their numbers as its bytes, at least one."""
    array = np.ascontiguousarray(constant).reshape(-1)
    if str(array.dtype) not in _TENSOR_DTYPES:
        array = np.frombuffer(array.tobytes(), np.uint8)
    return array if array.size else np.zeros(1, array.dtype)


def _calling(symbol: str, arguments: Sequence[tuple[str, int, str]], workspace: int) -> tvm.tirx.PrimFunc:
    def body(*buffers: Any) -> None:
        *inputs, output = buffers
        # Of vectors of 64 bytes: TVM aligns what it puts on the stack to one element, whatever `align` says.
        scratch = [T.alloc_buffer((-(-workspace // 64),), "uint8x64")] if workspace else []
        pointers = [tvm.tirx.buffer.buffer_data(buffer) for buffer in (*inputs, *scratch, output)]
        T.evaluate(T.call_extern("int32", symbol, *pointers))

    func: Any = prim_func(arguments, body)
    return func.with_attr(EXTERNAL_ATTR, symbol)


def _checked_func(func: Any, arguments: Sequence[tuple[str, int, str]], composite: Composite) -> tvm.tirx.PrimFunc:
    """Return a back end's PrimFunc; CompileError where its buffers are not those that it is called with."""
    found = [(math.prod(int(dim) for dim in buffer.ty.shape), str(buffer.ty.dtype)) for buffer in func.params]
    expected = [(size, dtype) for _, size, dtype in arguments]
    if found != expected or any(len(buffer.ty.shape) != 1 for buffer in func.params):
        raise CompileError(
            f"{where_of(composite)}: the PrimFunc of back end {composite.backend} takes {_listed(found)}; it is called with flat "
            f"buffers of {_listed(expected)}"
        )
    return func


def _listed(buffers: Sequence[tuple[int, str]]) -> str:
    return ", ".join(f"{size} x {dtype}" for size, dtype in buffers)
