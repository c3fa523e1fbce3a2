"""Files that a command writes: checked before the work starts, and never left half-written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from ..errors import OctavoError


class OutputError(OctavoError):
    """A path that cannot be written."""


def check_output(path: Path, *sources: Path) -> None:
    """Make sure that `path` can be written, before minutes are spent on what goes there.

    Parameters
    ----------
    sources
        Files that the command reads; writing over one of them is refused.

    Raises
    ------
    OutputError
        The folder is missing or not writable, the path is a folder, or it is one of the sources.
    """
    folder = path.parent
    if path.is_dir():
        raise OutputError(f"{path}: cannot write: it is a folder; give a file name in it")
    if any(path.exists() and source.exists() and path.samefile(source) for source in sources):
        raise OutputError(f"{path}: cannot write: it is an input of this command; give another name")
    if not folder.exists():
        raise OutputError(f"{path}: cannot write: there is no folder {folder}; make it first")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(f"{path}: cannot write in folder {folder}: {error.strerror}; give another place") from error


def write_file(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file under a temporary name and rename it: readers see the old content or the new, never a part."""
    check_output(path)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
        # mkstemp's files are private; give this one the permissions of any other new file.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except BaseException as error:
        os.unlink(name)
        if isinstance(error, OSError):
            raise OutputError(f"{path}: cannot write: {error.strerror or error}") from error
        raise
