"""The exception tree: every error a user can cause is an OctavoError with one clear line.

A message says what was wrong, where, and what to do. Broken invariants of our own are ``assert``, never these.
"""

from __future__ import annotations

import os
import pathlib
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import UnionType


_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
_BREAKS = {**_CONTROLS, ord("\n"): "\\n", ord("\t"): "\\t", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def printable(text: str) -> str:
    """Return a text with control characters escaped, which a model's names may hold and a terminal would obey."""
    return text if text.isprintable() else text.translate(_CONTROLS)


class OctavoError(Exception):
    """Base of every error that Octavo raises for a user's input."""

    def __str__(self) -> str:
        """Return the message as one line without control characters."""
        text = super().__str__()
        return text if text.isprintable() else text.translate(_BREAKS)


class OctavoWarning(UserWarning):
    """What a user should know of input that is taken all the same; the commands print it."""


class ModelError(OctavoError):
    """A model file or object that cannot be read: truncated, foreign, malformed, unreadable path."""


class UnsupportedOpError(ModelError):
    """A model holds an op that cannot be imported; the message names the op and its output tensor."""


class DataError(OctavoError):
    """Input data that does not fit the model: shape, dtype, missing input, NaN or infinity, empty data set."""


class ProfileError(OctavoError):
    """A profile that cannot be read, or belongs to another model."""


class QuantizationError(OctavoError):
    """A recipe or a model that cannot be quantized as asked."""


class TargetError(OctavoError):
    """An unknown target, or a target description that contradicts itself."""


class CompileError(OctavoError):
    """Lowering or code generation failed, or an accumulator could overflow."""


class TuningError(OctavoError):
    """A tuning file that cannot be read, or was measured on another machine."""


class ExecutableError(OctavoError):
    """An executable file that cannot be saved, or is not one of ours."""


class QuantizationWarning(UserWarning):
    """A model was quantized with less than was asked for; the message says what is missing, and what to do."""


def check_type(value: object, kind: type | UnionType, error: type[OctavoError], expected: str) -> None:
    """Raise `error` unless `value` is of a type of `kind`: callers may not check types. bool counts as no number.

    Parameters
    ----------
    expected
        What the caller should have given, in words.
    """
    if not isinstance(value, kind) or isinstance(value, bool):
        raise error(f"expected {expected}, got {'None' if value is None else f'{type(value).__name__} {brief(value)}'}")


def check_value(is_fine: object, error: type[OctavoError], name: str, expected: str, value: object) -> None:
    """Raise `error` where a value is not what is expected of that name, in words."""
    if not is_fine:
        raise error(f"{name} must be {expected}, got {brief(value)}")


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a real number of Python's; bool is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_path(value: object, error: type[OctavoError], expected: str) -> pathlib.Path:
    """Return `value`, a str or path-like object that names a file, as a Path; raise `error` if it is anything else.

    Parameters
    ----------
    expected
        What kind of file it names, in words: "the path of a profile".
    """
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or not path:
        raise error(f"expected {expected}, got {'None' if value is None else f'{type(value).__name__} {brief(value)}'}")
    if "\0" in path:
        raise error(f"expected {expected}, got one with an embedded null byte: {brief(value)}")
    return pathlib.Path(path)


def shape_advice(name: str, shape: Sequence[int | str] | None = None) -> str:
    """Say how an input is given a shape: in Python, and on the command line."""
    sizes = "..." if shape is None else f"{', '.join(map(repr, shape))}{',' if len(shape) == 1 else ''}"
    words = "1,3,224,224" if shape is None else ",".join(map(str, shape))
    return f"shapes={{{name!r}: ({sizes})}} in Python, --shape {name}={words} on the command line"


def brief(value: object) -> str:
    """Return a value's repr on one line, cut to 40 characters, for a message."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 40 else f"{text[:37]}..."
