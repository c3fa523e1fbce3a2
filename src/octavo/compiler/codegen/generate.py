"""From a linked Relax module to machine code: one native function where shapes are static, TVM's virtual machine elsewhere."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call, GenericConst, GlobalVar
from tvm.support import cc
from tvm_ffi import structural_map

from ...errors import CompileError
from ...ir.graph.dataflow import DataflowView
from ...ir.untyped import tirx
from ...runtime.code import Code
from ...runtime.code_cache import user_cache
from ...runtime.llvm_host import cross_compiler, is_foreign
from ...runtime.tensors import values_of
from .objects import Compilable, EarlyObjects, distinct_functions, named_functions, object_code
from .program import OWN_SYMBOLS, Program, native_program
from .tir_passes import CALLS_ATTR, is_linux_x86, llvm_module

_NEVER_INLINE = "-inline-instr-cost:int=1000000"
"""Kernels stay calls: TVM marks the buffers of a function as different memory by their variables, and one kernel's output is the
next one's input. Inlined side by side, LLVM would take a store for dead that the next kernel reads. Kernels in objects of their
own are safe from it; this is for the others."""


@dataclass(frozen=True, kw_only=True)
class CompiledCode(Code):
    """Code that was compiled in this process: the functions that it was compiled from, by symbol; `fixed` as a Program has it."""

    functions: Mapping[str, Compilable] = field(default_factory=dict[str, Compilable])
    fixed: tuple[int, ...] = ()

    def assembly(self, target: tvm.target.Target) -> str | None:
        """Return the machine code as assembly text, compiled anew where it came from the cache."""
        if not self.functions:
            return super().assembly(target)
        modules = (llvm_module(each.functions, target) for each in self.functions.values())
        return "".join(str(module.inspect_source("asm")) for module in modules)


def vm_passes() -> tvm.transform.Pass:
    """Bring a Relax module of call_tir to the form of TVM's virtual machine, with memory planned once.

    TVM's default pipeline has the same passes with operator patterns and fusion before them; those ran already, before kernels of
    plain loops entered.
    """
    return tvm.transform.Sequential(
        [
            relax.transform.ToNonDataflow(),
            relax.transform.RemovePurityChecking(),
            relax.transform.CallTIRRewrite(),
            relax.transform.StaticPlanBlockMemory(),
            relax.transform.LowerAllocTensor(),
            relax.transform.KillAfterLastUse(),
            relax.transform.LowerRuntimeBuiltin(),
            relax.transform.ComputePrimValue(),
            relax.transform.VMShapeLower(),
            relax.transform.AttachGlobalSymbol(),
        ]
    )


def generate(module: tvm.IRModule, target: tvm.target.Target, *, threads: int = 1) -> Code:
    """Compile a linked module. Equal kernels are compiled once, and machine code is taken from the cache (see `cache`).

    Parameters
    ----------
    threads
        Chunks of the kernels' parallel loops: so many threads share a call.

    Raises
    ------
    CompileError
        When TVM or LLVM fails; the message holds the last line of theirs.
    """
    # See `worker_pool_code` for what threads need of machine and system to share a call.
    program = native_program(module, tasks=threads if is_linux_x86(target) else 1)
    try:
        with target:
            objects = external_objects(module)
            if program is None and is_foreign(target):
                raise CompileError("symbolic shapes need TVM's virtual machine, for which there is no cross compilation yet")
            if program is None:
                return _machine_code(module, target, has_objects=bool(objects))
            library, image, functions = _native(program.module, OWN_SYMBOLS, target, objects)
            return CompiledCode(
                library=library,
                image=image,
                functions=functions,
                constants=program.constants,
                workspace=program.workspace,
                outputs=program.outputs,
                control=program.control,
                fixed=program.fixed,
            )
    except (RuntimeError, ValueError, TypeError, tvm.error.InternalError) as error:
        lines = [line for line in str(error).strip().splitlines() if line and not line.startswith("#")]
        last = lines[-1] if lines else type(error).__name__
        raise CompileError(f"code generation for {target.attrs.get('mcpu', 'llvm')} failed: {last}") from error


def _machine_code(module: tvm.IRModule, target: tvm.target.Target, *, has_objects: bool) -> Code:
    """Compile a module for TVM's virtual machine. What calls functions of object files is linked with them before it runs."""
    library: Any = relax.build(vm_passes()(module), target=target, relax_pipeline=None)
    if not has_objects:
        return Code(library=library)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "library.so"
        library.export_library(str(path))
        image = path.read_bytes()
    return Code(library=_loaded(image), image=image)


def external_objects(module: tvm.IRModule) -> list[bytes]:
    """Return the object files that a module brings along (see `backends`), which its functions call by symbol."""
    found: list[bytes] = []
    for external in module.attrs["external_mods"] if module.attrs and "external_mods" in module.attrs else ():
        if external.kind == "static_library":
            with tempfile.NamedTemporaryFile(suffix=".o") as file:
                external.write_to_file(file.name)
                found.append(file.read())
    return found


def _loaded(image: bytes) -> Any:
    """Load a shared library with code of another back end; RuntimeError where this machine can't."""
    try:
        return _load(image)
    except (OSError, RuntimeError) as error:
        undefined = re.search(r"undefined symbol: (\S+)", str(error))
        if undefined is None:
            raise RuntimeError("the folder for temporary files may run no code; set TMPDIR to one that may") from error
        raise RuntimeError(f"the code of another back end calls {undefined[1]!r}, which nothing defines") from error


def compile_program(program: Program, target: tvm.target.Target) -> Any:
    """Return a Program's code as a library (tvm.runtime.Module) with its entry; kernels come from the cache."""
    with target:
        return _native(program.module, OWN_SYMBOLS, target)[0]


def compile_calls(
    callers: Mapping[str, tvm.tirx.PrimFunc], kernels: Collection[Compilable], target: tvm.target.Target, early: EarlyObjects
) -> Any:
    """Return a library of functions that call kernels by their symbols (kernel_calls.py); those come from `early`."""
    functions = {each.symbol: each for each in (*kernels, named_functions(callers, target))}
    with target:
        return _in_process(functions, target, early)[0]


def _native(
    module: tvm.IRModule, entries: Collection[str], target: tvm.target.Target, external: Sequence[bytes] = ()
) -> tuple[Any, bytes | None, dict[str, Compilable]]:
    """Compile a module, each function on its own; return the library, its bytes, and what was compiled.

    `entries` call the others and keep their symbols. `external` are object files that functions call.
    """
    kernels = distinct_functions(module, target, without=entries)

    def renamed(call: Call) -> Any:
        if not isinstance(call.op, GlobalVar):
            return call
        return tirx.call_extern("int32", kernels[call.op.name_hint].symbol, *call.args)

    own = {
        str(var.name_hint): structural_map(function, (Call, renamed))
        for var, function in module.functions_items()
        if var.name_hint in entries
    }
    callers = {symbol: function for symbol, function in own.items() if CALLS_ATTR in function.attrs}
    named = [{symbol: function} for symbol, function in own.items() if symbol not in callers]
    named += [callers] if callers else []
    functions = {each.symbol: each for each in (*kernels.values(), *(named_functions(some, target) for some in named))}
    if is_foreign(target):
        objects = object_code(functions.values(), target, user_cache())
        return None, _linked([*objects.values(), *external], compiler=cross_compiler(target)), functions
    if external:
        if not cc.get_cc():
            raise RuntimeError("the code of another back end is linked by a C compiler (gcc or clang), which is not on PATH")
        objects = object_code(functions.values(), target, user_cache())
        image = _linked([*objects.values(), *external], _BOUND_NOW)
        return _loaded(image), image, functions
    return *_in_process(functions, target), functions


def _in_process(
    functions: Mapping[str, Compilable], target: tvm.target.Target, early: EarlyObjects | None = None
) -> tuple[Any, bytes | None]:
    """Return the library of functions for this process, and its bytes; None where LLVM compiles them in memory."""
    image = _image(functions.values(), target, early)
    library = None if image is None else load_library(image)
    if library is None:
        config = json.loads(str(target))
        config["cl-opt"] = [*config.get("cl-opt", []), _NEVER_INLINE]
        every = {symbol: function for each in functions.values() for symbol, function in each.functions.items()}
        return llvm_module(every, tvm.target.Target(config)), None
    return library, image


def _image(functions: Collection[Compilable], target: tvm.target.Target, early: EarlyObjects | None) -> bytes | None:
    """Return functions as a shared library, from the cache or linked; None where there is no compiler, or none that can link."""
    compiler, cache = cc.get_cc(), user_cache()
    if not compiler:
        return None
    content = repr((compiler, _PLAIN_C, _C_LIBRARIES, [each.key for each in functions]))
    key = hashlib.sha256(content.encode()).hexdigest()
    image = cache.read(key) if cache else None
    if image is None:
        objects = object_code(functions, target, cache, early)
        with suppress(OSError, RuntimeError):  # no such compiler as $CXX names, or one that can't link
            image = _linked(list(objects.values()))
        if cache and image is not None:
            cache.write(key, image)
            cache.trim_after([key])
    return image


def _linked(objects: Sequence[bytes], options: Sequence[str] = (), compiler: str | None = None) -> bytes:
    """Return the shared library of the objects. OSError or RuntimeError where this machine can't link them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths: list[str] = []
        for number, code in enumerate(objects):
            path = folder / f"{number}.o"
            path.write_bytes(code)
            paths.append(str(path))
        _link(folder / "library.so", paths, options, compiler)
        return (folder / "library.so").read_bytes()


_PLAIN_C = ("-nostdlib", "-Wl,-S")
_BOUND_NOW = ("-Wl,-z,now",) if sys.platform == "linux" else ()
"""What calls functions that nothing defines fails to load; it would end the process when it calls one."""
_C_LIBRARIES = ("-lm", "-lgcc", "-lc")
"""How a C++ compiler links no C++: its start-up files and libraries take half of the time that linking takes, and machine code
calls nothing of theirs. What LLVM writes about source lines goes, too, since a kernel has none: a third of a small library."""


def _link(library: Path, objects: Sequence[str], options: Sequence[str], compiler: str | None) -> None:
    """Link objects to a shared library. OSError or RuntimeError where that fails."""
    if compiler is not None:
        return cc.create_shared(str(library), list(objects), options=list(options), cc=compiler)
    if sys.platform == "linux":
        # Most kernels call no C library, and to look through libc takes most of the time that linking takes. Without these
        # libraries at all, as where LLVM brings its own in place of libgcc, the usual way remains.
        for libraries, defined in (((), ("-Wl,-z,defs",)), (_C_LIBRARIES, ())):
            with suppress(RuntimeError):
                return cc.create_shared(str(library), [*objects, *libraries], options=[*_PLAIN_C, *defined, *options])
    return cc.create_shared(str(library), list(objects), options=list(options))


def load_library(image: bytes) -> Any:
    """Load a shared library from its bytes; None where the folder for temporary files may run no code."""
    with suppress(OSError, RuntimeError):
        return _load(image)
    return None


def _load(image: bytes) -> Any:
    """Load a shared library from its bytes.

    Each gets a file of its own, since the loader of the system takes a name that it has seen before for the file it saw then. A
    loaded library stays when its file goes.
    """
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(image)
        file.flush()
        return tvm.runtime.load_module(file.name)


def constant_bytes(module: tvm.IRModule) -> int:
    """Count the bytes of the constants that "main" reads: packed weights, biases, multipliers."""
    bindings = DataflowView(module["main"]).bindings
    found = [each.value for binding in bindings for each in _constants(binding.value)]
    return sum({int(value.data_ptr()): values_of(value).nbytes for value in found}.values())


def _constants(expr: Any) -> list[GenericConst]:
    if isinstance(expr, GenericConst):
        return [expr]
    if isinstance(expr, tvm.ir.Call):
        return [constant for arg in expr.args for constant in _constants(arg)]
    if isinstance(expr, relax.Tuple):
        return [constant for field in expr.fields for constant in _constants(field)]
    return []
