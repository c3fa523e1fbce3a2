"""Object code of functions: each distinct one compiled once, several at a time, and found again in the cache.

A function's symbol is made of what decides its machine code, so equal layers of a model share one, and so do equal layers of
different models, in the cache.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import tempfile
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import PrimType, StringImm
from tvm_ffi import StructuralKey, structural_walk

from ...ir.graph.kernel_attributes import KERNEL_ATTR, SIZES_ATTR
from ...runtime.code_cache import ObjectCache, user_cache
from ...runtime.cores import cores
from . import tir_passes
from .tir_passes import llvm_module

_INSTANCE_ATTRS = ("global_symbol", "quantize_info", "tensor_ids", "octavo.result", SIZES_ATTR)
"""Attributes that tell one use of a function from another and leave its code alone."""


@dataclass(frozen=True, kw_only=True, eq=False)
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


_IN_USE: WeakValueDictionary[tuple[str, str, StructuralKey], Compilable] = WeakValueDictionary()
"""What some executable is made of, by platform, name and content: a key takes longer than all else that is done with a function
whose machine code is in the cache."""

_LATELY: deque[Compilable] = deque(maxlen=256)
"""What was made last stays in use: the same model with other scales in some layers often comes next."""


def distinct_functions(
    module: tvm.IRModule, target: tvm.target.Target, *, without: Collection[str] = ()
) -> dict[str, Compilable]:
    """Return what each PrimFunc of a module compiles as, by its name in the module; equal functions share one Compilable."""
    distinct = _Distinct(target)
    named = ((str(var.name_hint), function) for var, function in module.functions_items())
    return {name: distinct.of(name, function) for name, function in named if name not in without}


class _Distinct:
    """Functions that differ in more than what names their use."""

    def __init__(self, target: tvm.target.Target) -> None:
        self._platform = _platform(target)
        self._by_content: dict[Any, Compilable] = {}

    def of(self, name: str, function: Any) -> Compilable:
        """Return what a function of this name compiles as; it is the same for equal ones."""
        plain = function
        for attr in _INSTANCE_ATTRS:
            plain = plain.without_attr(attr)
        content = StructuralKey(plain)
        if content not in self._by_content:
            stem = re.sub(r"\W+", "_", f"octavo_{plain.attrs[KERNEL_ATTR]}" if KERNEL_ATTR in plain.attrs else name)
            known = self._platform, stem, content
            found = _IN_USE.get(known)
            if found is None:
                key, size = _key(self._platform, stem, content)
                symbol = f"{stem}_{key[:16]}"
                found = _IN_USE[known] = Compilable(symbol=symbol, key=key, size=size, functions={symbol: plain})
                _LATELY.append(found)
            self._by_content[content] = found
        return self._by_content[content]


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
    dtypes: dict[int, str] = {}
    object_hash = tvm_ffi.Object.__hash__  # the address: the function keeps its types alive; a type's own hash asks for its dtype

    def literal(node: Any) -> None:
        found.append(node.value)

    def variable(node: Any) -> None:
        found.append(numbers.setdefault(hash(node), len(numbers)))

    def dtype(node: Any) -> None:
        address = object_hash(node)
        if address not in dtypes:
            dtypes[address] = str(node.dtype)
        found.append(dtypes[address])

    literals = (tirx.IntImm, tirx.FloatImm, StringImm)
    structural_walk(function, ((literals, literal), (tirx.Var, variable), (PrimType, dtype)))
    return found


def _platform(target: tvm.target.Target) -> str:
    """Return what decides machine code besides the function: target, machine, versions, level, and the source of the passes."""
    llvm = tvm.target.codegen
    passes = f"{inspect.getsource(tir_passes)}\0{tir_passes.KERNEL_LEVEL}"
    return "\0".join((str(target), str(llvm.llvm_get_system_triple()), str(llvm.llvm_version_major()), tvm.__version__, passes))


class EarlyObjects:
    """Object files of functions on their way: LLVM compiles them outside Python's lock while others are being written.

    They come in the order in which they were started. One core is left to the thread that writes them: more waits for that.
    """

    def __init__(self, target: tvm.target.Target) -> None:
        self._target, self._cache = target, user_cache()
        self._distinct = _Distinct(target)
        self._threads = ThreadPoolExecutor(max(1, cores() - 1))
        self._codes: dict[str, Future[bytes]] = {}

    def start(self, name: str, function: tvm.tirx.PrimFunc) -> Compilable:
        """Return what a function of this name compiles as, which is being compiled, or found in the cache."""
        each = self._distinct.of(name, function)
        if each.symbol not in self._codes:
            self._codes[each.symbol] = self._threads.submit(self._found, each)
        return each

    def finish(self) -> None:
        """Let threads go once all that was started is there."""
        self._threads.shutdown(wait=False)

    def code(self, symbol: str) -> bytes | None:
        """Return the object file of a function that was started, once it is there; None of another one."""
        code = self._codes.get(symbol)
        return None if code is None else code.result()

    def _found(self, each: Compilable) -> bytes:
        code = self._cache.read(each.key) if self._cache else None
        if code is None:
            code = _kept(each, self._target, self._cache)
            if self._cache:
                self._cache.trim_after([each.key])
        return code


def object_code(
    functions: Iterable[Compilable], target: tvm.target.Target, cache: ObjectCache | None, early: EarlyObjects | None = None
) -> dict[str, bytes]:
    """Return the object file of each function, by symbol: of those that were started early, from the cache, or compiled.

    LLVM works outside Python's global lock, one function to a thread; the largest come first, so that the threads end together.
    """
    wanted = {each.symbol: each for each in functions}
    codes = {symbol: None if early is None else early.code(symbol) for symbol in wanted}
    codes |= {symbol: cache.read(wanted[symbol].key) for symbol, code in codes.items() if cache and code is None}
    missing = sorted((each for symbol, each in wanted.items() if codes[symbol] is None), key=lambda each: -each.size)
    with ThreadPoolExecutor(max(1, min(cores(), len(missing)))) as pool:
        for each, code in zip(missing, pool.map(lambda each: _kept(each, target, cache), missing), strict=True):
            codes[each.symbol] = code
    if cache:
        cache.trim_after(each.key for each in missing)
    return {symbol: code for symbol, code in codes.items() if code is not None}


def _kept(each: Compilable, target: tvm.target.Target, cache: ObjectCache | None) -> bytes:
    """Compile a function, and keep its object file."""
    code = _compiled(each, target)
    if cache:
        cache.write(each.key, code)
    return code


def _compiled(each: Compilable, target: tvm.target.Target) -> bytes:
    module = llvm_module(each.functions, target)
    with tempfile.NamedTemporaryFile(suffix=".o") as file:  # no folder for it, which takes a file system longer than LLVM does
        module.write_to_file(file.name)
        return file.read()
