"""Object files of functions that are no TIR: C is compiled, what is wrong with it said, and each symbol made unique.

Symbols get a suffix of the code's content, and whatever else an object defines is kept to itself: two vendors, or two ops of one,
may call their functions alike, and like the C library's. It reads no graph and calls nothing.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import tvm
from tvm.support import cc

from ...errors import CompileError
from ...runtime.cores import cores
from .protocol import Code, CSource, ObjectCode

_FLAGS = ("-x", "c", "-std=c11", "-O3", "-fPIC", "-c")
"""ISO C: compilers then fuse no product and sum of floats into one rounding."""
_C_TYPES = {f"{kind}int{bits}": f"__{kind.upper()}INT{bits}_TYPE__" for kind in ("", "u") for bits in (8, 16, 32, 64)} | {
    "float32": "float",
    "float64": "double",
}
"""C types of dtypes as compilers know them without headers."""
_CHECKS = "octavo.calls.c"
"""Name of the lines behind a vendor's C that call it as the module does."""
_STARTS = (b".init_array", b".preinit_array", b".ctors")
"""Sections of what runs as soon as a library is loaded."""
_LOAD = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"


@dataclass(frozen=True, kw_only=True, eq=False)
class External:
    """A function that machine code calls by its symbol.

    Parameters
    ----------
    source
        Its code.
    where
        Whose it is, for errors.
    headers
        Folders of headers that its C includes.
    arguments
        C types of what its arguments point to, "void" for bytes of any type; None where it is not called by one of ours.
    keeps_symbol
        Whether others know it by its own symbol.
    """

    source: CSource | ObjectCode
    where: str
    headers: tuple[str, ...] = ()
    arguments: tuple[str, ...] | None = None
    keeps_symbol: bool = False

    @cached_property
    def content(self) -> str:
        """A digest of the code; functions of one content come from one object file."""
        source = self.source
        data = source.data if isinstance(source, ObjectCode) else source.text.encode()
        return hashlib.sha256(data).hexdigest()[:16]

    @cached_property
    def symbol(self) -> str:
        """By which it is called."""
        own = self.source.symbol
        return own if self.keeps_symbol else f"{re.sub(r'[^A-Za-z0-9_]', '_', own)}_{self.content}"

    @property
    def key(self) -> str:
        """What tells it from others: its symbol, and what it is called with."""
        return f"{self.symbol}({', '.join(self.arguments or ())})"


def c_types(code: Code, dtypes: Sequence[str]) -> tuple[str, ...]:
    """Return the C types of what a function reads and writes; `dtypes` are of its inputs and, last, of its output."""
    *inputs, output = (_C_TYPES.get(dtype, "void") for dtype in dtypes)
    constants = ["void" if isinstance(each, bytes) else _C_TYPES.get(str(each.dtype), "void") for each in code.constants]
    return (*inputs, *constants, *(["void"] if code.workspace else []), output)


def static_libraries(externals: Mapping[str, External], *, is_complete: bool = True) -> list[Any]:
    """Return the object files of external functions as TVM's modules, for the attribute "external_mods"; C is compiled.

    Parameters
    ----------
    is_complete
        Whether nobody links further libraries to them.

    Raises
    ------
    CompileError
        C that does not compile or takes other arguments, no C compiler, an object without the symbol, one that crashes as it is
        loaded or, where that is all, calls what nothing defines: whose it is, and the compiler's first error.
    """
    groups: dict[str, list[External]] = {}
    for external in externals.values():
        groups.setdefault(external.content, []).append(external)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{content}.o" for content in groups]
        with ThreadPoolExecutor(cores()) as pool:
            paths = list(pool.map(_object_file, groups.values(), files))
        tables = _symbols({path: group[0].where for path, group in zip(paths, groups.values(), strict=True)})
        wanted = {name for table in tables for name, kind in table.items() if kind == "U"}
        defined = {name for table in tables for name, kind in table.items() if kind != "U"}
        libraries: list[Any] = []
        for path, table, group in zip(paths, tables, groups.values(), strict=True):
            if is_complete:
                _check_calls(path, {name for name, kind in table.items() if kind == "U"} - defined, group[0].where)
            _keep_symbols(path, group, table, wanted & {name for name, kind in table.items() if kind != "U"})
            _check_loading(path, group[0].where)
            symbols = dict.fromkeys(external.symbol for external in group)
            libraries.append(tvm.runtime.load_static_library(str(path), list(symbols)))
        return libraries


def _object_file(group: Sequence[External], path: Path) -> Path:
    """Write the object file of functions that share one code."""
    first = group[0].source
    if isinstance(first, ObjectCode):
        path.write_bytes(first.data)
    else:
        _compile(first, group, path)
    return path


def _compile(source: CSource, group: Sequence[External], path: Path) -> None:
    where = group[0].where
    compiler = cc.get_cc()
    if compiler is None:
        raise CompileError(f"{where}: its code is C, and there is no C compiler (gcc or clang) on PATH")
    name = source.symbol[:64] if re.fullmatch(r"\w+", source.symbol) else "source"  # TVM makes longer ones than files may have
    folders = tuple(dict.fromkeys(folder for external in group for folder in external.headers))
    # What lies in folders of the user's may change meanwhile.
    compiled = _compiled_c.__wrapped__ if folders else _compiled_c
    data, said = compiled(compiler, f"{name}.c", source.text + _calls(group), folders, where)
    if data:
        path.write_bytes(data)
        return
    call = re.match(rf"{re.escape(_CHECKS)}:(\d+):", said[0])
    if call is not None:
        external = group[min(int(call[1]), len(group)) - 1]
        names = {kind: f"{dtype}_t" for dtype, kind in _C_TYPES.items() if "int" in dtype}
        given = ", ".join(f"{names.get(kind, kind)} *" for kind in external.arguments or ())
        why = said[0].partition("error: ")[2]
        if "implicit declaration" in why:
            raise CompileError(f"{external.where}: its code defines no function {external.source.symbol!r}")
        raise CompileError(f"{external.where}: its function {external.source.symbol!r} is called with ({given}): {why}")
    raise CompileError(f"{where}: its C does not compile: {said[0]}")


@lru_cache(maxsize=256)
def _compiled_c(compiler: str, name: str, text: str, folders: Sequence[str], where: str) -> tuple[bytes, list[str]]:
    """Return the object file of C in a file of this name; or no bytes, and the compiler's lines about errors."""
    with tempfile.TemporaryDirectory() as folder:
        file, result = Path(folder) / name, Path(folder) / "object.o"
        file.write_text(text, encoding="utf-8")
        found = _run([compiler, *_FLAGS, *(f"-I{each}" for each in folders), str(file), "-o", str(result)], where)
        if not found.returncode:
            return result.read_bytes(), []
        lines = found.stderr.replace(str(file), name).splitlines()
        return b"", [line for line in lines if "error" in line] or lines or ["no message"]


def _calls(group: Sequence[External]) -> str:
    """Return C that calls the functions as the module does, for the compiler to check: a line for each."""
    errors = (f'#pragma GCC diagnostic error "-W{name}"' for name in ("incompatible-pointer-types", "int-conversion"))
    lines = ["", *errors, f'#line 1 "{_CHECKS}"']
    for number, external in enumerate(group):
        pointers = ", ".join(f"({kind} *)0" for kind in external.arguments or ())
        call = "" if external.arguments is None else f"{external.source.symbol}({pointers});"
        lines.append(f"static inline void octavo_call_{number}(void) {{ {call} }}")
    return "\n".join(lines) + "\n"


def _symbols(files: Mapping[Path, str]) -> list[dict[str, str]]:
    """Return the global symbols of each object file with nm's letters for their kinds: U is one that it only calls."""
    # Not by TVM's function: its option -U means something else to GNU's nm.
    found = _run(["nm", "-g", "-A", *map(str, files)], next(iter(files.values())))
    if found.returncode:
        path, where = next(each for each in files.items() if len(files) == 1 or _run(["nm", str(each[0])], each[1]).returncode)
        raise CompileError(f"{where}: its object file cannot be read: {found.stderr.strip().replace(str(path), path.name)}")
    tables: dict[str, dict[str, str]] = {str(path): {} for path in files}
    for line in found.stdout.splitlines():
        path, _, row = line.partition(".o:")
        kind, _, name = row.strip().rpartition(" ")
        if kind:
            tables[f"{path}.o"][name] = kind[-1]
    return list(tables.values())


def _keep_symbols(path: Path, group: Sequence[External], table: Mapping[str, str], shared: set[str]) -> None:
    """Rename the functions that are called to their unique symbols; what else the object defines is its own, unless `shared`."""
    words: list[str] = []
    for external in group:
        own = external.source.symbol
        if table.get(own, "U") not in "TtWwi":
            defined = ", ".join(sorted(name for name, kind in table.items() if kind in "TWi")) or "none"
            raise CompileError(f"{external.where}: its code defines no function {own!r}; it defines {defined}")
        words += ["--keep-global-symbol", own if external.keeps_symbol else external.symbol]
        if not external.keeps_symbol:
            words += ["--redefine-sym", f"{own}={external.symbol}"]
    words += [word for name in sorted(shared) for word in ("--keep-global-symbol", name)]
    found = _run(["objcopy", *words, str(path)], group[0].where)
    if found.returncode:
        said = (found.stderr.strip().splitlines() or ["no message"])[0].replace(str(path), path.name)
        raise CompileError(f"{group[0].where}: objcopy cannot rename the symbols of its object file: {said}")


def _check_calls(path: Path, called: set[str], where: str) -> None:
    """CompileError where an object calls what neither this process nor the C libraries have."""
    process = ctypes.CDLL(None)
    unknown = sorted(name for name in called if not hasattr(process, name))
    if not unknown:
        return
    try:
        cc.create_shared(str(path.with_suffix(".so")), [str(path), "-lm", "-lgcc", "-lc"], options=["-Wl,-z,defs"])
    except RuntimeError as error:
        missing = [name for name in unknown if f"`{name}'" in str(error) or f": {name}" in str(error)]  # GNU's ld, LLVM's
        if missing:
            raise CompileError(f"{where}: its code calls {', '.join(missing)}, which nothing defines") from error


def _check_loading(path: Path, where: str) -> None:
    """Load an object that runs code of its own at that time in another process, which it may crash."""
    data = path.read_bytes()
    if not any(section in data for section in _STARTS):
        return
    library = path.with_suffix(".so")
    try:
        cc.create_shared(str(library), [str(path)])
    except RuntimeError:  # what is missing is known when all is linked
        return
    found = _run([sys.executable, "-I", "-c", _LOAD, str(library)], where)
    if found.returncode < 0:
        raise CompileError(f"{where}: its code crashes as it is loaded, by signal {-found.returncode}")


def _run(words: Sequence[str], where: str) -> subprocess.CompletedProcess[str]:
    try:
        env = {**os.environ, "LC_ALL": "C"}  # messages that are read here
        return subprocess.run(words, capture_output=True, text=True, errors="replace", check=False, env=env)
    except OSError as error:
        raise CompileError(f"{where}: {words[0]} cannot be run: {error.strerror or error}") from error
