"""Files of text that are read with one error, and written whole or not at all: renamed once they are. It knows no format."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from ..errors import OctavoError, check_path


def read_text(path: str | Path, error: type[OctavoError], what: str) -> str:
    """Return a file's text; `error` if it can't be read.

    Parameters
    ----------
    what
        The file, in words: "the plan".
    """
    try:
        return check_path(path, error, f"the path of {what}").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror or problem if isinstance(problem, OSError) else "it is not text"
        raise error(f"{path}: cannot read {what}: {reason}") from problem


def write_atomically(
    path: str | Path, content: str | bytes, error: type[OctavoError], what: str, *, temporary: Path | None = None
) -> None:
    """Write a file under a temporary name, of this process alone unless given, then rename it; `error` if it can't be.

    Parameters
    ----------
    what
        The file, in words: "the profile".
    """
    target = check_path(path, error, f"the path of {what} to write")
    draft = temporary or target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(draft, target)
    except OSError as problem:
        with contextlib.suppress(OSError):  # there may be nothing to remove, or no such folder
            draft.unlink()
        raise error(f"{path}: cannot write {what}: {problem.strerror or problem}") from problem


@contextmanager
def draft_beside(path: Path, name: str, error: type[OctavoError], what: str) -> Generator[Path]:
    """Give a path in a temporary folder beside `path`; what is there in the end, a file or a folder, is renamed to it."""
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            draft = Path(folder) / name
            yield draft
            if draft.is_dir() and path.exists():
                os.replace(path, Path(folder) / "before")
            os.replace(draft, path)
    except OSError as problem:
        raise error(f"{path}: cannot write {what}: {problem.strerror or problem}") from problem
