"""One file of several executables, each for CPUs of other features: which they are, and where each lies.

Layout: the executables' files one after the other, best first, each at a whole page, a directory (UTF-8 JSON), then a trailer of
fixed size: length of the directory, SHA-256 over it, magic. Each executable has a checksum of its own; what is not taken is not
read.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import ExecutableError, check_path
from .atomic_write import draft_beside
from .file import PAGE, VERSIONS_MAGIC
from .memory import align

_TRAILER = struct.Struct("<Q32s16s")


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """An executable in a file: what a CPU must have for it, by LLVM's names, and where its bytes lie."""

    features: tuple[str, ...]
    start: int
    length: int


def write_versions(path: str | Path, files: Sequence[Path], features: Sequence[tuple[str, ...]]) -> None:
    """Join executables' files, best first, under a temporary name, then rename it."""
    path = check_path(path, ExecutableError, "the path of the file to write")
    with draft_beside(path, "versions", ExecutableError, "the executable") as draft, draft.open("wb") as out:
        directory: list[Version] = []
        for each, required in zip(files, features, strict=True):
            start = align(out.tell(), PAGE)
            out.write(bytes(start - out.tell()))
            with each.open("rb") as file:
                shutil.copyfileobj(file, out, 1 << 20)
            directory.append(Version(features=required, start=start, length=out.tell() - start))
        text = json.dumps([asdict(version) for version in directory], separators=(",", ":")).encode()
        out.write(text + _TRAILER.pack(len(text), hashlib.sha256(text).digest(), VERSIONS_MAGIC))


def read_versions(path: str | Path) -> list[Version] | None:
    """Return the executables of a file, best first; None where it is no file of several. ExecutableError if it is damaged."""
    path = check_path(path, ExecutableError, "the path of an executable")
    try:
        size = path.stat().st_size
        if size < _TRAILER.size:
            return None
        with path.open("rb") as file:
            file.seek(size - _TRAILER.size)
            length, digest, magic = _TRAILER.unpack(file.read(_TRAILER.size))
            if magic != VERSIONS_MAGIC:
                return None
            file.seek(max(0, size - _TRAILER.size - length))
            text = file.read(length)
    except (OSError, ValueError) as error:
        raise ExecutableError(f"{path}: cannot read the executable: {getattr(error, 'strerror', None) or error}") from error
    if hashlib.sha256(text).digest() != digest:
        raise ExecutableError(f"{path}: the executable is damaged (checksum differs); compile it again")
    entries: list[dict[str, Any]] = json.loads(text)
    return [Version(features=tuple(each["features"]), start=each["start"], length=each["length"]) for each in entries]
