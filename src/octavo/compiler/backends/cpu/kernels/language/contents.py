"""What a value is made of, as a key: equal for two functions or specs that were made apart and do the same.

It reads values and calls none of them. Knows nothing of kernels.
"""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from ......runtime.size import Size

_LONGEST = 1 << 20
"""Bytes of an array up to which its content is looked for: a digest of the weights of large layers takes longer than it saves."""


class UnknownContentError(Exception):
    """A value of which it isn't known what decides what it does."""


def content(value: Any) -> Any:
    """Return a hashable key of a value: the kinds and values of all that it is made of, of a function its code and what it binds.

    Raises
    ------
    UnknownContentError
        It holds what has no content of its own: an IR node, a long array, itself; or an open size, whose expression varies.
    """
    try:
        return _content(value)
    except RecursionError:
        raise UnknownContentError from None


def _content(value: Any) -> Any:
    kind: Any = type(value)
    if kind in (int, str, bool, bytes, type(None)):
        return kind, value
    if kind is float:
        return kind, struct.pack("d", value)  # tells -0.0 from 0.0, and equals itself where it is no number
    if kind in (tuple, list):
        return kind, tuple(map(_content, value))
    if kind is dict:
        return _of_mapping(value)
    if kind is FunctionType:
        return _of_function(value)
    if kind is MethodType:
        return kind, _content(value.__func__), _content(value.__self__)
    if kind is partial:
        return kind, _content(value.func), _content(value.args), _content(value.keywords)
    if isinstance(value, (np.ndarray, np.generic)):
        return _of_array(value)
    if isinstance(value, (type, ModuleType, Enum)):
        return value
    if kind is not Size and (dataclasses.is_dataclass(kind) or kind.__module__.startswith("octavo.")):
        return kind, tuple((name, _content(each)) for name, each in _attributes(value))
    raise UnknownContentError


def _of_array(value: Any) -> Any:
    if value.nbytes > _LONGEST or value.dtype.hasobject:
        raise UnknownContentError
    return type(value), str(value.dtype), value.shape, hashlib.sha256(value.tobytes()).digest()


def _of_mapping(value: Mapping[Any, Any]) -> Any:
    return dict, tuple((_content(key), _content(each)) for key, each in value.items())


def _of_function(function: FunctionType) -> Any:
    """Return the key of a function: a name that it reads from its module is taken to stand for the same at all times."""
    try:
        cells = tuple(_content(cell.cell_contents) for cell in function.__closure__ or ())
    except ValueError:  # one is empty yet
        raise UnknownContentError from None
    defaults = function.__defaults__ or (), function.__kwdefaults__ or {}
    return FunctionType, function.__code__, function.__module__, cells, _content(defaults)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Return what an object holds, in slots and beside them."""
    for kind in type(value).__mro__:
        names = vars(kind).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)
    yield from getattr(value, "__dict__", {}).items()
