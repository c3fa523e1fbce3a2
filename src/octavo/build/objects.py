"""Object code of functions: each distinct one compiled once, several at a time, and found again in the cache.

A function's symbol is made of what decides its machine code, so equal layers of a model share one, and so do equal layers of
different models, in the cache.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import tempfile
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import PrimType, StringImm
from tvm_ffi import StructuralKey, structural_walk

from ..graph.kernel_attributes import KERNEL_ATTR
from . import tir_passes
from .cache import ObjectCache
from .tir_passes import llvm_module

_INSTANCE_ATTRS = ("global_symbol", "quantize_info", "tensor_ids", "octavo.result")
"""Attributes that tell one use of a function from another and leave its code alone."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Compilable:
    """What becomes one object file: a distinct function, or several that are small.

    Parameters
    ----------
    symbol
        The first function's.
    key
        Of the machine code.
    size
        In leaves.
    functions
        By symbol, less what names their use.
    """

    symbol: str
    key: str
    size: int
    functions: Mapping[str, tvm.tirx.PrimFunc]


def distinct_functions(
    module: tvm.IRModule, target: tvm.target.Target, *, without: Collection[str] = ()
) -> dict[str, Compilable]:
    """Return what each PrimFunc of a module compiles as, by its name in the module; equal functions share one Compilable."""
    by_content: dict[Any, Compilable] = {}
    by_name: dict[str, Compilable] = {}
    platform = _platform(target)
    for var, function in module.functions_items():
        name = str(var.name_hint)
        if name in without:
            continue
        plain: Any = function
        for attr in _INSTANCE_ATTRS:
            plain = plain.without_attr(attr)
        content = StructuralKey(plain)
        if content not in by_content:
            stem = re.sub(r"\W+", "_", f"octavo_{plain.attrs[KERNEL_ATTR]}" if KERNEL_ATTR in plain.attrs else name)
            key, size = _key(platform, stem, content)
            symbol = f"{stem}_{key[:16]}"
            by_content[content] = Compilable(symbol=symbol, key=key, size=size, functions={symbol: plain})
        by_name[name] = by_content[content]
    return by_name


def named_functions(functions: Mapping[str, tvm.tirx.PrimFunc], target: tvm.target.Target) -> Compilable:
    """Return functions that keep their symbols, as one object file: each of its own would cost more than what they hold."""
    platform = _platform(target)
    keys = {symbol: _key(platform, symbol, StructuralKey(function)) for symbol, function in functions.items()}
    content = "\0".join(key for key, _ in keys.values())
    key = hashlib.sha256(content.encode()).hexdigest()
    return Compilable(symbol=next(iter(functions)), key=key, size=sum(size for _, size in keys.values()), functions=functions)


def _key(platform: str, name: str, function: StructuralKey) -> tuple[str, int]:
    """Return the key of a function's machine code, and how many leaves the function has."""
    leaves = _leaves(function.key)
    content = "\0".join((platform, name, str(hash(function)), str(function.key.attrs), str(leaves)))
    return hashlib.sha256(content.encode()).hexdigest(), len(leaves)


def _leaves(function: Any) -> list[Any]:
    """Return a function's literals, dtypes and variables in their order.

    They separate what shares a hash: TVM's changes by little where a number does, so a number further on can undo it. It is
    sure to differ where the functions differ in the kinds of their nodes. All of the text would do, too, but takes thrice as
    long to write.
    """
    found: list[Any] = []
    numbers: dict[int, int] = {}

    def literal(node: Any) -> None:
        found.append(node.value)

    def variable(node: Any) -> None:
        found.append(numbers.setdefault(hash(node), len(numbers)))

    def dtype(node: Any) -> None:
        found.append(str(node.dtype))

    literals = (tirx.IntImm, tirx.FloatImm, StringImm)
    structural_walk(function, ((literals, literal), (tirx.Var, variable), (PrimType, dtype)))
    return found


def _platform(target: tvm.target.Target) -> str:
    """Return what decides machine code besides the function: target, machine, versions, and the source of the passes."""
    llvm = tvm.target.codegen
    passes = inspect.getsource(tir_passes)
    return "\0".join((str(target), str(llvm.llvm_get_system_triple()), str(llvm.llvm_version_major()), tvm.__version__, passes))


def object_code(functions: Iterable[Compilable], target: tvm.target.Target, cache: ObjectCache | None) -> dict[str, bytes]:
    """Return the object file of each function, by symbol, from the cache or compiled.

    LLVM works outside Python's global lock, one function to a thread; the largest come first, so that the threads end together.
    """
    wanted = {each.symbol: each for each in functions}
    codes = {symbol: cache.read(each.key) if cache else None for symbol, each in wanted.items()}
    missing = sorted((each for symbol, each in wanted.items() if codes[symbol] is None), key=lambda each: -each.size)

    def compiled(each: Compilable) -> bytes:
        code = _compiled(each, target)
        if cache:
            cache.write(each.key, code)
        return code

    with ThreadPoolExecutor(max(1, min(_cores(), len(missing)))) as pool:
        for each, code in zip(missing, pool.map(compiled, missing), strict=True):
            codes[each.symbol] = code
    if cache:
        cache.trim_after(each.key for each in missing)
    return {symbol: code for symbol, code in codes.items() if code is not None}


def _compiled(each: Compilable, target: tvm.target.Target) -> bytes:
    module = llvm_module(each.functions, target)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "function.o"
        module.write_to_file(str(path))
        return path.read_bytes()


def _cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
