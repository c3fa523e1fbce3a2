"""Which tensors to profile: patterns of their ids, their names in the source, and the ops that make them."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

from ..errors import DataError
from ..ir.graph import Model
from ..ir.identity import TensorEntry
from .constants import Selected


def select(model: Model, patterns: str | Iterable[Any] | None) -> Selected:
    """Return which tensors the patterns name; None names all.

    A pattern is a TensorId, a name in the source, or the name of an op or layer, whose results it names; "*", "?" and "[...]"
    stand for parts of these, as in a shell.

    Raises
    ------
    DataError
        If a pattern names no tensor of the model, or there is none.
    """
    if patterns is None:
        return _everything
    wanted = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    chosen: set[str] = set()
    if not wanted:
        raise DataError("tensors is empty: give at least one pattern, or leave it out to profile every tensor")
    for pattern in wanted:
        if not isinstance(pattern, str):
            raise DataError(f"a pattern of tensors must be a string, got {type(pattern).__name__}")
        found = {str(entry.id) for entry in model.tensors.values() if _matches(entry, pattern)}
        if not found:
            ops = sorted({entry.op for entry in model.tensors.values() if entry.op})
            raise DataError(
                f"{pattern!r} names no tensor of the model; give an id, a name in the source, or an op: {', '.join(ops)}"
            )
        chosen |= found
    return lambda entry: str(entry.id) in chosen


def _everything(entry: TensorEntry) -> bool:
    del entry
    return True


def _matches(entry: TensorEntry, pattern: str) -> bool:
    names = (str(entry.id), entry.source_name, *entry.aliases, entry.op, entry.layer)
    return any(name and (name == pattern or fnmatchcase(name, pattern)) for name in names)
