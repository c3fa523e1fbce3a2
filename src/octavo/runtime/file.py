"""The executable file: a shared library followed by its constants, its description and a checksum.

Layout: library, constants, description (UTF-8 JSON), then a trailer of fixed size: lengths, SHA-256 over all before it, magic.
The loader of shared libraries ignores what follows the library; a truncated or foreign file is refused before its code runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ExecutableError, check_path
from .atomic_write import draft_beside
from .native_stderr import native_stderr_closed

_MAGIC = b"OCTAVO-EXE-0002\n"
VERSIONS_MAGIC = b"OCTAVO-EXM-0001\n"
"""Ends a file of several executables; see `versions`."""

_TRAILER = struct.Struct("<QQQ32s16s")


def write_executable(
    path: str | Path, export: Callable[[str], None], constants: npt.NDArray[np.uint8] | None, description: dict[str, Any]
) -> None:
    """Write an executable file under a temporary name in the same folder, then rename it.

    `export` writes the shared library to the path it is given; `constants` is None where the library holds them.
    """
    path = check_path(path, ExecutableError, "the path of the file to write")
    with draft_beside(path, "library.so", ExecutableError, "the executable") as draft:
        _export(export, str(draft), path)
        library = draft.stat().st_size
        text = json.dumps(description, sort_keys=True, separators=(",", ":")).encode()
        weights = b"" if constants is None else constants.tobytes()
        with draft.open("ab") as file:
            file.write(weights)
            file.write(text)
        digest = _digest(draft, library + len(weights) + len(text))
        with draft.open("ab") as file:
            file.write(_TRAILER.pack(library, len(weights), len(text), digest, _MAGIC))


def _export(export: Callable[[str], None], draft: str, path: Path) -> None:
    try:
        # TVM warns of every symbol that its VM keeps.
        with native_stderr_closed():
            export(draft)
    except (RuntimeError, ValueError) as error:
        why = str(error).strip().splitlines()[-1]
        raise ExecutableError(
            f"{path}: cannot link the executable: {why}; saving needs a C compiler (gcc or clang) on PATH"
        ) from error


def is_executable(path: Path, magics: Sequence[bytes] = (_MAGIC, VERSIONS_MAGIC)) -> bool:
    """Return whether a file ends as ours do, whatever its name; False where it can't be read."""
    try:
        with path.open("rb") as file:
            file.seek(-len(_MAGIC), os.SEEK_END)
            return file.read() in magics
    except (OSError, ValueError):
        return False


def read_executable(path: str | Path) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
    """Check a file's trailer and checksum and return its constants and its description; none of its code is loaded.

    Raises
    ------
    ExecutableError
        If the file can't be read, is truncated, changed, or was not written by `write_executable`.
    """
    path = check_path(path, ExecutableError, "the path of an executable")
    try:
        size = path.stat().st_size
        if size < _TRAILER.size:
            raise ExecutableError(f"{path}: not an Octavo executable ({size} bytes); write one with `octavo compile`")
        with path.open("rb") as file:
            file.seek(size - _TRAILER.size)
            library, weights, text, digest, magic = _TRAILER.unpack(file.read(_TRAILER.size))
            if magic != _MAGIC:
                raise ExecutableError(f"{path}: not an Octavo executable, or truncated; write one with `octavo compile`")
            content = library + weights + text
            if content + _TRAILER.size != size or _digest(path, content) != digest:
                raise ExecutableError(f"{path}: the executable is damaged (checksum differs); compile it again")
            file.seek(library)
            constants = np.frombuffer(file.read(weights), np.uint8)
            return constants, json.loads(file.read(text))
    except (OSError, ValueError) as error:  # ValueError: a path that holds a NUL
        raise ExecutableError(f"{path}: cannot read the executable: {getattr(error, 'strerror', None) or error}") from error


def read_library(path: Path) -> bytes:
    """Return the code of a file that `read_executable` has checked."""
    with path.open("rb") as file:
        file.seek(path.stat().st_size - _TRAILER.size)
        library, *_ = _TRAILER.unpack(file.read(_TRAILER.size))
        file.seek(0)
        return file.read(library)


def _digest(path: Path, length: int) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        left = length
        while left > 0:
            chunk = file.read(min(left, 1 << 20))
            if not chunk:
                break
            digest.update(chunk)
            left -= len(chunk)
    return digest.digest()
