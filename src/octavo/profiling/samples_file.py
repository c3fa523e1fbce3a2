"""The file of kept samples, beside a profile's: how it is named, laid out, written with the profile, and distrusted on reading.

A line of JSON, then bytes: the line says of each array its dtype, shape and encoding (coded_array.py), and how many bytes its
table and its values take; those follow in that order, of results first. The profile holds the file's size and SHA-256, so that
nothing in it counts unless it is the very file that was written with the profile. Nothing in it is ever executed or looked up.

Two files cannot be renamed at once. The samples are written under a name of their own, the profile is renamed, then the samples
are: whoever reads in between, or after a kill there, finds them under that name.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, cast

from ..errors import ProfileError, brief
from ..runtime.atomic_write import write_atomically
from .coded_array import CodedArray, decode_array, encode_array
from .kept_samples import Kept, Sample

FORMAT = "octavo-samples"
SCHEMA_VERSION = 1

_HEADER_KEYS = {"format", "results", "samples", "schema_version"}
_ARRAY_KEYS = {"dtype", "encoding", "shape", "table_bytes", "values_bytes"}
_WHAT = "the profile's kept samples"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredSamples:
    """What a profile holds of its file of kept samples: the size in bytes, and "sha256:" with the digest."""

    size: int
    digest: str

    @staticmethod
    def of(content: bytes) -> StoredSamples:
        """Return what a profile holds of a file of this content."""
        return StoredSamples(size=len(content), digest=f"sha256:{hashlib.sha256(content).hexdigest()}")


def samples_path(profile: Path) -> Path:
    """Return where the kept samples of a profile's file lie: p.json.samples of p.json."""
    return profile.with_name(f"{profile.name}.samples")


def pending_path(profile: Path) -> Path:
    """Return where they lie until the profile is renamed."""
    return profile.with_name(f".{profile.name}.samples.new")


def encode_kept(kept: Kept) -> bytes:
    """Return the content of the file; the same samples and results give the same bytes."""
    coded = {"results": _coded(kept.results), "samples": _coded(kept.samples)}
    listed = {name: [[_entry(array) for array in arrays] for arrays in groups] for name, groups in coded.items()}
    header = json.dumps({"format": FORMAT, **listed, "schema_version": SCHEMA_VERSION}, sort_keys=True, separators=(",", ":"))
    arrays = (array for groups in coded.values() for array in chain.from_iterable(groups))
    return b"".join([header.encode("ascii"), b"\n", *(part for array in arrays for part in (array.table, array.values))])


def decode_kept(content: bytes) -> Kept:
    """Return what is in the content of a file; ValueError says what is wrong with it."""
    line, _, rest = content.partition(b"\n")
    try:
        header = json.loads(line)
    except RecursionError as error:
        raise ValueError("its first line is no JSON") from error
    if not isinstance(header, dict) or set(cast("dict[str, Any]", header)) != _HEADER_KEYS or header["format"] != FORMAT:
        raise ValueError(f"its first line must be an object of {', '.join(sorted(_HEADER_KEYS))}, the format {FORMAT}")
    if header["schema_version"] != SCHEMA_VERSION:
        raise ValueError(f"schema_version must be {SCHEMA_VERSION}, got {brief(header['schema_version'])}")
    reader = _Reader(rest)
    results, samples = (reader.read(header[name], name) for name in ("results", "samples"))
    reader.check_end()
    return Kept(samples, results)


def write_pending(profile: Path, content: bytes, *, temporary: Path | None = None) -> None:
    """Write samples where they lie until the profile is renamed; ProfileError if they can't be."""
    pending = pending_path(profile)
    try:
        write_atomically(pending, content, ProfileError, _WHAT, temporary=temporary)
    except ProfileError as error:
        raise ProfileError(f"{samples_path(profile)}{str(error).removeprefix(str(pending))}") from error


def settle(profile: Path, recorded: StoredSamples | None) -> None:
    """Give the samples that a profile's file records their name, if they lack it still."""
    if recorded is None or not _is(pending_path(profile), recorded):
        return
    try:
        os.replace(pending_path(profile), samples_path(profile))
    except FileNotFoundError:  # another process that writes the same was faster
        pass
    except OSError as error:
        raise ProfileError(f"{samples_path(profile)}: cannot write {_WHAT}: {error.strerror or error}") from error


def remove_samples(profile: Path) -> None:
    """Remove the samples of a profile that is gone, or keeps none."""
    for path in (samples_path(profile), pending_path(profile)):
        with contextlib.suppress(OSError):  # what cannot be removed stays, and no profile records it
            path.unlink()


def read_samples(profile: Path, recorded: StoredSamples) -> Kept | None:
    """Return the samples that a profile's file records, or None where there is no file of them.

    Raises
    ------
    ProfileError
        There is one, and it is not what was written with the profile.
    """
    final, pending = samples_path(profile), pending_path(profile)
    path = final if not _is(pending, recorded) else pending
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ProfileError(f"{path}: cannot read the samples kept for {profile}: {error.strerror or error}") from error
    if StoredSamples.of(content) != recorded:
        size = f"it has {len(content)} bytes, expected {recorded.size}"
        what = "its SHA-256 is another" if len(content) == recorded.size else size
        raise ProfileError(
            f"{path}: not the samples kept for {profile}: {what}; put back the file that was written with it, profile the model "
            "again, or remove this file to go on without kept samples"
        )
    try:
        return decode_kept(content)
    except ValueError as error:
        raise ProfileError(f"{path}: not a valid file of kept samples: {error}; profile the model again") from error


def _is(path: Path, recorded: StoredSamples) -> bool:
    """Return whether a file is there and is the recorded one."""
    try:
        return path.stat().st_size == recorded.size and StoredSamples.of(path.read_bytes()) == recorded
    except OSError:
        return False


def _coded(groups: Sequence[Sample]) -> list[list[CodedArray]]:
    return [[encode_array(array) for array in arrays] for arrays in groups]


def _entry(array: CodedArray) -> dict[str, Any]:
    return {
        "dtype": array.dtype,
        "encoding": array.encoding,
        "shape": array.shape,
        "table_bytes": len(array.table),
        "values_bytes": len(array.values),
    }


class _Reader:
    """Takes arrays off the bytes behind the first line, one after the other."""

    def __init__(self, content: bytes) -> None:
        self._content = memoryview(content)
        self._place = 0

    def read(self, groups: Any, name: str) -> tuple[Sample, ...]:
        """Return the arrays that a list of lists of entries describes."""
        found: list[Sample] = []
        for place, arrays in enumerate(_list(groups, name)):
            where = f"{name}: {place}"
            try:
                found.append(tuple(decode_array(self._array(entry)) for entry in _list(arrays, "what a run takes or gives")))
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from error
        return tuple(found)

    def check_end(self) -> None:
        """Raise ValueError if bytes are left."""
        if self._place != len(self._content):
            raise ValueError(f"{len(self._content) - self._place} bytes lie behind the last array")

    def _array(self, value: Any) -> CodedArray:
        if not isinstance(value, dict) or set(cast("dict[str, Any]", value)) != _ARRAY_KEYS:
            raise ValueError(f"an array must be an object of {', '.join(sorted(_ARRAY_KEYS))}, got {brief(cast('Any', value))}")
        entry = cast("dict[str, Any]", value)
        table, values = (self._bytes(entry[name], name) for name in ("table_bytes", "values_bytes"))
        return CodedArray(dtype=entry["dtype"], encoding=entry["encoding"], shape=entry["shape"], table=table, values=values)

    def _bytes(self, size: Any, name: str) -> bytes:
        left = len(self._content) - self._place
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= left:
            raise ValueError(f"{name} must be a number of bytes, {left} are left, got {brief(size)}")
        self._place += size
        return bytes(self._content[self._place - size : self._place])


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{where} must be a list, got {brief(value)}")
    return cast("list[Any]", value)
