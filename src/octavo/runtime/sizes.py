"""One file of executables of one model for inputs of several sizes: constants once, then the code of each. It compiles nothing.

Layout: constants, the libraries one after the other, a directory (UTF-8 JSON), then a trailer of fixed size: length of the
directory, SHA-256 over all before the trailer, magic.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ExecutableError, check_path
from .atomic_write import draft_beside
from .file import SIZES_MAGIC
from .native_stderr import native_stderr_closed

_TRAILER = struct.Struct("<Q32s16s")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SizedFile:
    """What a file holds: the constants of all, what the writer noted, and of each executable its library and description."""

    constants: npt.NDArray[np.uint8]
    notes: dict[str, Any]
    libraries: tuple[bytes, ...]
    descriptions: tuple[dict[str, Any], ...]


def write_sizes(
    path: str | Path, constants: npt.NDArray[np.uint8], notes: dict[str, Any], builds: Sequence[tuple[Any, dict[str, Any]]]
) -> None:
    """Write executables of one model, each a Code and its description, under a temporary name, then rename it."""
    path = check_path(path, ExecutableError, "the path of the file to write")
    try:
        with draft_beside(path, "sizes", ExecutableError, "the executable") as draft:
            content, lengths, library = [constants.tobytes()], list[int](), draft.with_name("library.so")
            for code, _ in builds:
                with native_stderr_closed():
                    code.export(str(library))
                content.append(library.read_bytes())
                lengths.append(len(content[-1]))
            descriptions = [description for _, description in builds]
            directory = {"constants": constants.size, "lengths": lengths, "notes": notes, "descriptions": descriptions}
            content.append(json.dumps(directory, separators=(",", ":")).encode())
            digest = hashlib.sha256()
            with draft.open("wb") as file:  # the parts are not joined: they may be as large as a network
                for part in content:
                    digest.update(part)
                    file.write(part)
                file.write(_TRAILER.pack(len(content[-1]), digest.digest(), SIZES_MAGIC))
    except (RuntimeError, ValueError) as error:
        why = str(error).strip().splitlines()[-1]
        raise ExecutableError(f"{path}: cannot link the executable: {why}; saving needs a C compiler on PATH") from error


def read_sizes(path: str | Path) -> SizedFile:
    """Read what `write_sizes` wrote. ExecutableError if it is truncated, damaged or another file; none of its code runs."""
    path = check_path(path, ExecutableError, "the path of an executable")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ExecutableError(f"{path}: cannot read the executable: {error.strerror or error}") from error
    if len(data) < _TRAILER.size or data[-len(SIZES_MAGIC) :] != SIZES_MAGIC:
        raise ExecutableError(
            f"{path}: not an Octavo executable of several sizes, or truncated; compile it with ranges in --shape"
        )
    length, digest, _ = _TRAILER.unpack(data[-_TRAILER.size :])
    content = data[: -_TRAILER.size]
    if hashlib.sha256(content).digest() != digest:
        raise ExecutableError(f"{path}: the executable is damaged (checksum differs); compile it again")
    directory = json.loads(content[len(content) - length :])
    start, libraries = directory["constants"], list[bytes]()
    for size in directory["lengths"]:
        libraries.append(content[start : start + size])
        start += size
    constants = np.frombuffer(content[: directory["constants"]], np.uint8)
    descriptions = tuple(directory["descriptions"])
    return SizedFile(constants=constants, notes=directory["notes"], libraries=tuple(libraries), descriptions=descriptions)
