"""A profile's files: its JSON (profile_json.py) and beside it the samples that it keeps (samples_file.py), written as one."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import OctavoWarning, ProfileError
from ..runtime.atomic_write import read_text, write_atomically
from ..runtime.json_values import Malformed, parsed
from .kept_samples import check_kept
from .profile_json import ProfileFile, decode, encode, stored_samples
from .samples_file import (
    StoredSamples,
    encode_kept,
    pending_path,
    read_samples,
    remove_samples,
    samples_path,
    settle,
    write_pending,
)


def write_profile(content: ProfileFile, path: Path, *, is_alone: bool = False) -> None:
    """Write a profile and its samples under temporary names, then rename them; ProfileError if they can't be.

    Parameters
    ----------
    is_alone
        No other process writes to this path: temporary names are the same at any time, and what a kill leaves the next write
        takes over.
    """
    samples = encode_kept(content.kept) if content.kept.samples else None
    stored = None if samples is None else StoredSamples.of(samples)
    pending = pending_path(path)
    if pending.exists():  # a write was killed: its samples may be those of the file that is there now
        settle(path, _stored_by(path))
    if samples is not None:
        write_pending(path, samples, temporary=pending.with_name(f"{pending.name}.tmp") if is_alone else None)
    try:
        temporary = path.with_name(f".{path.name}.tmp") if is_alone else None
        write_atomically(path, encode(content, stored), ProfileError, "the profile", temporary=temporary)
    except ProfileError:
        pending.unlink(missing_ok=True)
        raise
    if stored is None:
        remove_samples(path)
    else:
        settle(path, stored)


def remove_profile(path: Path) -> None:
    """Remove a profile's file and the one of its samples, in this order: samples alone are nobody's."""
    with contextlib.suppress(OSError):  # it stays, and is a profile still
        path.unlink()
        remove_samples(path)


def read_profile(path: Path) -> ProfileFile:
    """Read and check a profile and its samples; ProfileError names the file and the first thing wrong with it.

    Where there is no file of its samples, the profile is that of a run which kept none, and a warning says so.
    """
    data = _json_of(path)
    try:
        content, stored = decode(data)
    except Malformed as error:
        raise ProfileError(f"{path}: not a valid profile: {error}; profile the model again") from error
    if stored is None:
        return content
    kept = read_samples(path, stored)
    if kept is None:
        warnings.warn(
            f"{path}: there is no {samples_path(path).name} beside it, the samples that it kept: it is read as one that keeps "
            "none, and nothing can run the model on them again; put that file back, or profile the model again",
            OctavoWarning,
            stacklevel=3,
        )
        return replace(content, keep_samples=0)
    try:
        check_kept(min(content.keep_samples, content.samples), kept)
    except ValueError as error:
        raise ProfileError(f"{samples_path(path)}: not valid kept samples: {error}; profile the model again") from error
    return replace(content, kept=kept)


def _json_of(path: Path) -> Any:
    try:
        return parsed(read_text(path, ProfileError, "the profile"))
    except Malformed as error:
        raise ProfileError(f"{path}: not a profile ({error})") from error


def _stored_by(path: Path) -> StoredSamples | None:
    """Return what the file at `path` says of its samples, None where it is no profile or says nothing."""
    try:
        return stored_samples(_json_of(path)["samples_file"])
    except (ProfileError, Malformed, KeyError, TypeError):
        return None
