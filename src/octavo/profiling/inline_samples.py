"""Kept samples as profile files of version 6 hold them, as text within the JSON. They are read, and no longer written.

It knows nothing of the rest of a file; what is wrong is a ValueError in words.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, cast

from ..errors import brief
from .coded_array import CodedArray, decode_array
from .kept_samples import Kept, Sample

INLINE_VERSION = 6
INLINE_KEYS = ("kept_results", "kept_samples")
_ARRAY_KEYS = ("dtype", "encoding", "shape", "table", "values")


def inline_samples(header: Mapping[str, Any]) -> Kept:
    """Return the samples and results that such a file holds."""
    return Kept(_arrays(header["kept_samples"]), _arrays(header["kept_results"]))


def _arrays(groups: Any) -> tuple[Sample, ...]:
    listed = [_list(arrays, "what a run takes or gives") for arrays in _list(groups, "they")]
    return tuple(tuple(decode_array(_coded(array)) for array in arrays) for arrays in listed)


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{where} must be a list, got {brief(value)}")
    return cast("list[Any]", value)


def _coded(value: Any) -> CodedArray:
    if not isinstance(value, dict) or set(cast("dict[Any, Any]", value)) != set(_ARRAY_KEYS):
        raise ValueError(f"an array must be an object of {', '.join(_ARRAY_KEYS)}, got {brief(cast('Any', value))}")
    entry = cast("dict[str, Any]", value)
    table, values = (_content(entry[name], name) for name in ("table", "values"))
    return CodedArray(dtype=entry["dtype"], encoding=entry["encoding"], shape=entry["shape"], table=table, values=values)


def _content(text: Any, name: str) -> bytes:
    try:
        if not isinstance(text, str):
            raise ValueError
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ValueError(f"{name} must be base64 text, got {brief(text)}") from None
