"""Ids from source names: one valid, unique and readable variable name for each tensor. Knows no file format and no compiler."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Sequence

from .tensor_table import TensorId

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_OTHER = re.compile(r"[^A-Za-z0-9_]+")
# Names that TVMScript gives a meaning, and those that TVM's own passes hand out: the printer would rename one of the two.
_TAKEN = frozenset({"R", "T", "I", "tvm", "cls", "main", "Module", "metadata"})
_COMPILER_NAME = re.compile(r"(lv|gv)\d*\Z")


class NameSupply:
    """Hands out each name once: the wished one, or that with the lowest free suffix ("_2", "_3", ...)."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._suffix: dict[str, int] = {}

    def fresh(self, wish: str) -> str:
        """Return `wish` or its first free variant, and take it."""
        name = wish
        suffix = self._suffix.get(wish, 1)
        while name in self._taken:
            suffix += 1
            name = f"{wish}_{suffix}"
        self._suffix[wish] = suffix
        self._taken.add(name)
        return name


def is_identifier(name: str) -> bool:
    """Whether `name` can stand as a variable of the Relax module as it is."""
    if keyword.iskeyword(name) or name in _TAKEN or _COMPILER_NAME.match(name):
        return False
    return _IDENTIFIER.match(name) is not None


def identifier(source_name: str) -> str:
    """Turn a source name into a valid identifier, e.g. "features.0/Conv_output_0" into "features_0_Conv_output_0".

    Of a list of names joined by ";", as TFLite's converter writes for fused ops, the first stands for all.
    """
    if is_identifier(source_name):
        return source_name
    first = next((part for part in source_name.split(";") if part), "")
    name = _OTHER.sub("_", first).strip("_")
    if is_identifier(name):
        return name
    if not name:
        return "tensor"
    return f"t{name}" if name[0].isdigit() else f"t_{name}"


def readable_name(source_name: str, tensor: TensorId, longest: int = 48) -> str:
    """Return the source's name, or in place of one too long for a line the id, which differs from tensor to tensor."""
    return source_name if 0 < len(source_name) <= longest else str(tensor)


def assign_ids(source_names: Sequence[str]) -> tuple[TensorId, ...]:
    """Return one id for each source name, in order; equal names get ids of their own.

    A name that is a valid identifier is its own id, whatever stands before it; the others take what is left. The same names in
    the same order give the same ids.
    """
    own = {name for name in source_names if is_identifier(name)}
    supply = NameSupply(own)
    ids: list[TensorId] = []
    for name in source_names:
        if name in own:
            own.discard(name)
            ids.append(TensorId(name))
        else:
            ids.append(TensorId(supply.fresh(identifier(name))))
    return tuple(ids)
