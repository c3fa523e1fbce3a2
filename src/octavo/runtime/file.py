"""The executable file: a shared library followed by its constants, its description and a checksum.

Layout: library with zeros up to a whole page, constants, description (UTF-8 JSON), then a trailer of fixed size: lengths, SHA-256
over all before it, magic. The loader of shared libraries ignores what follows the library; a truncated or foreign file is refused
before its code runs. Large constants are mapped, so processes share them, and none reads more of them than it uses: the SHA-256
is over the rest of the file then.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ExecutableError, check_path
from .atomic_write import draft_beside
from .mapped import MAPPED_BYTES, contents
from .memory import align
from .native_stderr import native_stderr_closed

_MAGIC = b"OCTAVO-EXE-0003\n"
_ANY_MAGIC = b"OCTAVO-EXE-"
VERSIONS_MAGIC = b"OCTAVO-EXM-0001\n"
"""Ends a file of several executables; see `versions`."""

_TRAILER = struct.Struct("<QQQ32s16s")
PAGE = 4096
"""Bytes at multiples of which constants start in a file, and executables in one of several."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """What an executable's file holds beside code: its constants, its description, and how long the library before them is."""

    constants: npt.NDArray[np.uint8]
    description: dict[str, Any]
    library: int


def write_executable(
    path: str | Path, export: Callable[[str], None], constants: npt.NDArray[np.uint8] | None, description: dict[str, Any]
) -> None:
    """Write an executable file under a temporary name in the same folder, then rename it.

    `export` writes the shared library to the path it is given; `constants` is None where the library holds them.
    """
    path = check_path(path, ExecutableError, "the path of the file to write")
    with draft_beside(path, "library.so", ExecutableError, "the executable") as draft:
        _export(export, str(draft), path)
        linked = draft.stat().st_size
        library = align(linked, PAGE)
        text = json.dumps(description, sort_keys=True, separators=(",", ":")).encode()
        weights = np.zeros(0, np.uint8) if constants is None else constants
        with draft.open("ab") as file:
            file.write(bytes(library - linked))
            file.write(weights.data)
            file.write(text)
        digest = _digest(draft, 0, (library, weights.size, len(text)))
        with draft.open("ab") as file:
            file.write(_TRAILER.pack(library, weights.size, len(text), digest, _MAGIC))


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


def read_executable(path: str | Path, start: int = 0, length: int | None = None) -> Contents:
    """Check a file's trailer and checksum and return what it holds; none of its code is loaded.

    `start` and `length` say where an executable lies within a file of several.

    Raises
    ------
    ExecutableError
        If the file can't be read, is truncated, changed, or was not written by `write_executable`.
    """
    path = check_path(path, ExecutableError, "the path of an executable")
    try:
        size = path.stat().st_size - start if length is None else length
        if size < _TRAILER.size:
            raise ExecutableError(f"{path}: not an Octavo executable ({size} bytes); write one with `octavo compile`")
        with path.open("rb") as file:
            file.seek(start + size - _TRAILER.size)
            library, weights, text, digest, magic = _TRAILER.unpack(file.read(_TRAILER.size))
            if magic != _MAGIC and magic.startswith(_ANY_MAGIC):
                theirs, ours = (each.decode("ascii", "replace").strip().rpartition("-")[2] for each in (magic, _MAGIC))
                raise ExecutableError(f"{path}: executable file {theirs}, this version reads {ours}; recompile")
            if magic != _MAGIC:
                raise ExecutableError(f"{path}: not an Octavo executable, or truncated; write one with `octavo compile`")
            lengths = library, weights, text
            if sum(lengths) + _TRAILER.size != size or _digest(path, start, lengths) != digest:
                raise ExecutableError(f"{path}: the executable is damaged (checksum differs); compile it again")
            file.seek(start + library + weights)
            description = json.loads(file.read(text))
            if weights < MAPPED_BYTES:
                file.seek(start + library)
                constants = np.frombuffer(file.read(weights), np.uint8)
            else:
                constants = np.frombuffer(contents(file), np.uint8, weights, start + library)
            return Contents(constants=constants, description=description, library=library)
    except (OSError, ValueError) as error:  # ValueError: a path that holds a NUL
        raise ExecutableError(f"{path}: cannot read the executable: {getattr(error, 'strerror', None) or error}") from error


def _digest(path: Path, start: int, lengths: tuple[int, int, int]) -> bytes:
    """Return the SHA-256 over library, constants and description; over constants that are mapped not."""
    library, weights, text = lengths
    spans = [(0, library + weights + text)] if weights < MAPPED_BYTES else [(0, library), (library + weights, text)]
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for begin, left in spans:
            file.seek(start + begin)
            while left > 0:
                chunk = file.read(min(left, 1 << 20))
                if not chunk:
                    break
                digest.update(chunk)
                left -= len(chunk)
    return digest.digest()
