"""The cache of machine code on disk: object files and libraries by the key of what they were made from. It knows no functions.

Several processes may use one folder at a time: an entry is written under a temporary name and renamed, and carries a checksum
over its key and its content, which every read verifies. Whatever is wrong with an entry or with the disk, the answer is "not
here": compiling must not fail for its cache. The folder is its owner's alone, because what lies in it will be executed.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LOCATION_VARIABLE = "OCTAVO_CACHE"
"""Environment variable: the folder to keep the cache in, or "off"."""

SIZE_VARIABLE = "OCTAVO_CACHE_MIB"
"""Environment variable: the most MiB that the cache holds."""

DEFAULT_MIB = 512
_MAGIC = b"OCTAVO-OBJ-0001\n"
_STALE_S = 3600.0
"""A temporary file older than this was left behind by a process that died."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectCache:
    """Object files, and the libraries linked of them, by key.

    Parameters
    ----------
    folder
        A folder of this user's own, which exists.
    limit_bytes
        Bytes that `trim` leaves at most.
    """

    folder: Path
    limit_bytes: int

    def read(self, key: str) -> bytes | None:
        """Return the code kept under `key`; None if there is none or it is damaged, and a damaged one is removed."""
        path = self._path(key)
        try:
            entry = path.read_bytes()
        except OSError:
            return None
        code = entry[len(_MAGIC) + hashlib.sha256().digest_size :]
        if entry != _entry(key, code):
            _remove(path)
            return None
        with suppress(OSError):  # removed meanwhile: what was read is good all the same
            os.utime(path)  # trim removes what was used least recently
        return code

    def write(self, key: str, code: bytes) -> None:
        """Keep some code, or nothing at all where the disk is full or the folder gone."""
        path = self._path(key)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".")
        except OSError:
            return
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_entry(key, code))
            os.replace(draft, path)
        except OSError:
            _remove(Path(draft))

    def trim_after(self, stored: Iterable[str]) -> None:
        """Trim if one of these new keys asks for it, as one in 256 does: to look at a full cache takes a third of a second."""
        if any(key.startswith("00") for key in stored):
            self.trim()

    def trim(self) -> None:
        """Remove the entries used least recently until the rest fits into `limit_bytes`, and drafts that nobody will finish."""
        entries: list[tuple[float, int, Path]] = []
        for path in self.folder.glob("*/*"):
            try:
                state = path.stat()
            except OSError:
                continue  # another process removed it
            if not path.name.startswith("."):
                entries.append((state.st_mtime, state.st_size, path))
            elif time.time() - state.st_mtime > _STALE_S:
                _remove(path)
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self.limit_bytes:
                break
            _remove(path)
            total -= size

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / key


def _entry(key: str, code: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(key.encode() + code).digest() + code


def _remove(path: Path) -> None:
    with suppress(OSError):  # not ours to remove: it will be refused again
        path.unlink(missing_ok=True)


def user_cache() -> ObjectCache | None:
    """Return the cache that the environment asks for; None where it is off or its folder is not this user's alone.

    OCTAVO_CACHE names a folder or is "off"; without it the cache is in the user's own cache folder. OCTAVO_CACHE_MIB bounds it.
    """
    location = os.environ.get(LOCATION_VARIABLE, "")
    if location.lower() == "off":
        return None
    # The digit is the version of the entries' format, and of what code their keys stand for.
    folder = (Path(location).expanduser() if location else _platform_folder()) / "objects-2"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.stat()
    except (OSError, RuntimeError):
        return None  # a home that can't be written, or can't be found
    if state.st_uid != os.geteuid() or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        warnings.warn(
            f"{folder}: others can write here, so no machine code is cached; chmod go-w it, or set {LOCATION_VARIABLE}",
            stacklevel=2,
        )
        return None
    return ObjectCache(folder=folder, limit_bytes=_limit_mib() << 20)


def _limit_mib() -> int:
    text = os.environ.get(SIZE_VARIABLE, "")
    if text.isdecimal():
        return int(text)
    if text:
        warnings.warn(f"{SIZE_VARIABLE}={text!r} is no number of MiB; the cache may hold {DEFAULT_MIB}", stacklevel=3)
    return DEFAULT_MIB


def _platform_folder() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "octavo"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo"
