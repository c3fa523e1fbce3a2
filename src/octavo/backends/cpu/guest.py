"""Code of other back ends in a module that the CPU runs: a kernel like the CPU's own around each, and its object file.

It calls what they generated; it reads no graph and knows none of them.
"""

from __future__ import annotations

import math
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.script.ir_builder import tirx as _builder
from tvm.support import cc

from ...composites.attributes import Composite
from ...errors import CompileError
from ..protocol import Code, CSource, ObjectCode, where_of
from .kernels import Kernel
from .kernels.vectors import prim_func

# TVM ships no types for its operators.
T: Any = _builder
_FLAGS = ("-x", "c", "-std=c11", "-O3", "-fPIC", "-c")
"""ISO C: compilers then fuse no product and sum of floats into one rounding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class External:
    """A function that machine code calls by its symbol, whose it is, for errors, and folders of headers that its C includes."""

    source: CSource | ObjectCode
    where: str
    headers: tuple[str, ...] = ()


def guest_kernel(code: Code, composite: Composite, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> Kernel:
    """Return the kernel of code; `shapes` and `dtypes` are of its inputs and, last, of its output."""
    constants = tuple(np.ascontiguousarray(array).reshape(-1) for array in code.constants)
    sizes = [math.prod(shape) for shape in shapes]
    arguments = [
        *((f"input{number}", size, dtype) for number, (size, dtype) in enumerate(zip(sizes[:-1], dtypes[:-1], strict=True))),
        *((f"constant{number}", array.size, str(array.dtype)) for number, array in enumerate(constants)),
        ("output", sizes[-1], dtypes[-1]),
    ]
    if isinstance(code.source, tvm.tirx.PrimFunc):
        func = _checked_func(code.source, arguments, composite)
    else:
        func = _calling(code.source.symbol, arguments, code.workspace)
    return Kernel(name=code.name or composite.kind, isa=composite.backend, func=func, constants=constants)


def _calling(symbol: str, arguments: Sequence[tuple[str, int, str]], workspace: int) -> tvm.tirx.PrimFunc:
    def body(*buffers: Any) -> None:
        *inputs, output = buffers
        # Of vectors of 64 bytes: TVM aligns what it puts on the stack to one element, whatever `align` says.
        scratch = [T.alloc_buffer((-(-workspace // 64),), "uint8x64")] if workspace else []
        pointers = [tvm.tirx.buffer.buffer_data(buffer) for buffer in (*inputs, *scratch, output)]
        T.evaluate(T.call_extern("int32", symbol, *pointers))

    return prim_func(arguments, body)


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


def static_libraries(externals: Mapping[str, External]) -> list[Any]:
    """Return the object files of external functions as TVM's modules, for the attribute "external_mods"; C is compiled.

    Raises
    ------
    CompileError
        C that does not compile, no C compiler, or an object without the symbol: whose it is, and the compiler's first error.
    """
    return [_static_library(symbol, external) for symbol, external in externals.items()]


def _static_library(symbol: str, external: External) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{symbol[:64]}.o"  # TVM makes symbols that are longer than file names may be
        if isinstance(external.source, ObjectCode):
            path.write_bytes(external.source.data)
        else:
            _compile(external.source, path, external.where, external.headers)
        symbols = _defined(path, external.where)
        if symbol not in symbols:
            defined = ", ".join(sorted(symbols)) or "none"
            raise CompileError(f"{external.where}: its code defines no function {symbol!r}; it defines {defined}")
        return tvm.runtime.load_static_library(str(path), [symbol])


def _compile(source: CSource, path: Path, where: str, headers: tuple[str, ...]) -> None:
    compiler = cc.get_cc()
    if compiler is None:
        raise CompileError(f"{where}: its code is C, and there is no C compiler (gcc or clang) on PATH")
    text = path.with_suffix(".c")
    text.write_text(source.text, encoding="utf-8")
    words = [compiler, *_FLAGS, *(f"-I{folder}" for folder in headers), str(text), "-o", str(path)]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    if found.returncode:
        said = [line for line in found.stderr.splitlines() if "error" in line] or found.stderr.splitlines() or ["no message"]
        raise CompileError(f"{where}: its C does not compile: {said[0].replace(str(text), text.name)}")


def _defined(path: Path, where: str) -> set[str]:
    """Return the symbols that an object file defines for others."""
    # Not by TVM's function: its option -U means something else to GNU's nm.
    found = subprocess.run(["nm", "-g", "--defined-only", str(path)], capture_output=True, text=True, check=False)
    if found.returncode:
        raise CompileError(f"{where}: its object file cannot be read: {found.stderr.strip().replace(str(path), path.name)}")
    return {line.split()[-1] for line in found.stdout.splitlines() if line.split()}
