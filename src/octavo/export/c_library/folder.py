"""Writes a C library as a folder, under a temporary name first, and builds it where a compiler for it is there."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tvm.target import Target

from ...errors import CompileError, ExecutableError, check_path
from ...runtime.atomic_write import draft_beside
from ...runtime.llvm_host import cross_compiler, is_foreign
from .library import CLibrary
from .project import cmake, constants_assembly, example, pkg_config, version_script
from .source import header, source

_MARK = ".octavo-c-library"
"""Is in every folder that was written here: such a one is replaced, no other."""

_OPTIONS = ("-O2", "-fPIC", "-std=c11")


def write_c_library(path: str | Path, library: CLibrary, target: Target) -> tuple[Path, ...]:
    """Write the folder; return the libraries in it: none where no compiler for the target is on PATH.

    Raises
    ------
    ExecutableError
        The path is something else than a folder that was written here or an empty one, or cannot be written.
    CompileError
        The compiler fails.
    """
    path = check_path(path, ExecutableError, "the path of the folder to write")
    check_folder(path)
    with draft_beside(path, "library", ExecutableError, "the folder") as draft:
        draft.mkdir()
        _write_sources(draft, library)
        libraries = _build(draft, library, target)
    return tuple(path / each for each in libraries)


def check_folder(path: Path) -> None:
    """Raise ExecutableError unless a C library can be written at `path`, before the work starts."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise ExecutableError(f"{path}: cannot write a C library: it is no folder; give the name of a new one")
    if path.is_dir() and any(path.iterdir()) and not (path / _MARK).exists():
        raise ExecutableError(f"{path}: cannot write a C library: the folder holds other files; give the name of a new one")
    if not path.parent.is_dir():
        raise ExecutableError(f"{path}: cannot write a C library: there is no folder {path.parent}; make it first")


def _write_sources(folder: Path, library: CLibrary) -> None:
    n = library.name
    texts = {
        f"{n}.h": header(library),
        f"{n}.c": source(library),
        f"{n}_constants.S": constants_assembly(library),
        f"{n}.map": version_script(library),
        f"{n}.pc": pkg_config(library),
        "CMakeLists.txt": cmake(library),
        "main.c": example(library, is_cpp=False),
        "main.cpp": example(library, is_cpp=True),
        _MARK: "",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="ascii")
    with (folder / f"{n}_constants.bin").open("wb") as file:
        for variant in library.variants:
            file.write(variant.plan.constants.tobytes())
    (folder / "objects").mkdir()
    for variant in library.variants:
        for symbol, code in variant.objects.items():
            (folder / "objects" / f"{symbol}.o").write_bytes(code)


def _build(folder: Path, library: CLibrary, target: Target) -> list[str]:
    """Build the static and the shared library in the folder; return their names."""
    compiler = cross_compiler(target) if is_foreign(target) else _c_compiler()
    archiver = cross_compiler(target).removesuffix("gcc") + "ar" if is_foreign(target) else "ar"
    if compiler is None or shutil.which(compiler) is None:
        return []
    n = library.name
    objects = sorted(f"objects/{path.name}" for path in (folder / "objects").iterdir())
    own = [f"{n}.o", f"{n}_constants.o"]
    commands = [
        [compiler, *_OPTIONS, "-x", "c", "-c", f"{n}.c", "-o", own[0]],
        [compiler, "-I.", "-c", f"{n}_constants.S", "-o", own[1]],
        [
            compiler,
            "-shared",
            *own,
            *objects,
            f"-Wl,--version-script={n}.map",
            "-Wl,-z,defs",
            "-Wl,--as-needed",
            "-lm",
            "-o",
            f"lib{n}.so",
        ],
    ]
    made = [f"lib{n}.so"]
    if shutil.which(archiver) is not None:
        commands.append([archiver, "rcsD", f"lib{n}.a", *own, *objects])
        made.insert(0, f"lib{n}.a")
    for command in commands:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            why = next((line for line in lines if "error" in line or "undefined" in line), lines[-1])
            raise CompileError(f"{Path(command[0]).name} cannot build the C library: {why}")
    for name in own:
        (folder / name).unlink()
    return made


def _c_compiler() -> str | None:
    """Return this machine's C compiler; a C++ compiler would link C++."""
    return next((name for name in (os.environ.get("CC"), "gcc", "clang", "cc") if name and shutil.which(name)), None)
