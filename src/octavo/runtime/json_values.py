"""JSON's values, distrusted: each is checked before it is used. And frozen dataclasses as JSON, by the types of their fields.

It knows no file and no format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from ..errors import brief

_MOST = 2**53 - 1
"""The largest integer that every JSON reader keeps exact."""
_BEYOND_FLOAT32 = 2.0**128 - 2.0**103
"""The least number that float32 rounds to infinity: the digits that stand for its largest are a little above that."""


class Malformed(Exception):
    """What is wrong with a value, and where it stands, in words: it becomes an OctavoError that names the file."""


def parsed(text: str) -> Any:
    """Return what a JSON text holds, without the liberties that Python takes; Malformed."""

    def no_constant(name: str) -> float:
        raise ValueError(f"{name} is not allowed")

    def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            twice = next(key for place, (key, _) in enumerate(pairs) if key in dict(pairs[:place]))
            raise ValueError(f"{twice!r} stands twice in one object")
        return result

    try:
        return json.loads(text, parse_constant=no_constant, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not JSON, or cut short: {error}") from error


def plain(value: Any) -> Any:
    """Return what JSON has for a value: objects of fields, lists, and the words for numbers that it has none for."""
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, tuple):
        return [plain(each) for each in cast("tuple[Any, ...]", value)]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read(kind: Any, where: str, value: Any, later: Collection[str] = ()) -> Any:
    """Return what JSON has for a value of a type; Malformed. Fields that came `later` may be missing from dataclasses."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if value is None and NoneType in kinds:
        return None
    kind, or_null = kinds[0], " or null" if NoneType in kinds else ""
    if is_dataclass(kind):
        types = get_type_hints(kind)
        found = an_object(where, value, [*types], later)
        return cast("Any", kind)(**{name: read(types[name], f"{where}: {name}", each, later) for name, each in found.items()})
    if get_origin(kind) is tuple:
        listed, (first, *rest) = a_list(where, value), get_args(kind)
        if rest != [...] and len(listed) != 1 + len(rest):
            raise Malformed(f"{where} must be {1 + len(rest)} numbers, got {brief(value)}")
        return tuple(read(first, f"{where}[{place}]", each, later) for place, each in enumerate(listed))
    if kind is int:
        return an_integer(where, value)
    if kind is float:
        if not _is_number(value) and value not in ("inf", "-inf"):
            raise Malformed(f'{where} must be a number, "inf", "-inf"{or_null}, got {brief(value)}')
        return float(cast("str", value))
    if kind is bool and not isinstance(value, bool):
        raise Malformed(f"{where} must be true or false, got {brief(value)}")
    return value if kind is bool or (kind is str and value == "") else kind(a_text(where, value))


def an_object(where: str, value: Any, keys: Sequence[str], later: Collection[str] = ()) -> dict[str, Any]:
    """Return an object that has exactly these fields, but for such as came later; Malformed."""
    found = a_mapping(where, value)
    unknown = next((key for key in found if key not in keys), None)
    if unknown is not None:
        raise Malformed(f"{where}: unknown field {unknown!r}; known: {', '.join(keys)}")
    missing = next((key for key in keys if key not in found and key not in later), None)
    if missing is not None:
        raise Malformed(f"{where}: field {missing!r} is missing")
    return found


def a_mapping(where: str, value: Any) -> dict[str, Any]:
    """Return an object of any fields; Malformed."""
    if not isinstance(value, dict):
        raise Malformed(f"{where} must be an object, got {brief(value)}")
    return cast("dict[str, Any]", value)


def a_list(where: str, value: Any) -> list[Any]:
    """Return a list; Malformed."""
    if not isinstance(value, list):
        raise Malformed(f"{where} must be a list, got {brief(value)}")
    return cast("list[Any]", value)


def a_text(where: str, value: Any, allowed: Collection[str] | None = None, *, may_be_empty: bool = False) -> str:
    """Return a text, one of those allowed, or any but an empty one unless that may be; Malformed."""
    if not isinstance(value, str) or not (value or may_be_empty) or (allowed is not None and value not in allowed):
        expected = "a text" if allowed is None else f"one of {', '.join(allowed)}"
        raise Malformed(f"{where} must be {expected}, got {brief(value)}")
    return value


def an_integer(where: str, value: Any, low: int = 0, high: int = _MOST) -> int:
    """Return a whole number in [low; high]; Malformed."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise Malformed(f"{where} must be a whole number in [{low}; {high}], got {brief(value)}")
    return value


def a_real(where: str, value: Any, *, is_positive: bool = False) -> float:
    """Return a number that float32 holds; Malformed."""
    fits = _is_number(value) and abs(value) < _BEYOND_FLOAT32
    if not fits or (is_positive and np.float32(value) <= 0):
        raise Malformed(f"{where} must be a {'positive ' if is_positive else ''}float32 number, got {brief(value)}")
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
