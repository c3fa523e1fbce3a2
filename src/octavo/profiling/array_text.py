"""An array as JSON: the same bits give the same text on any machine, and the text is distrusted on reading.

An array of few distinct values (pixels, say) is a table of them and an index for each element, any other its raw bytes, both in
base64. Values are told by their bits, so that -0.0 stays what it is. Nothing is compressed further: other versions of zlib write
other bytes. It knows no profile; what is wrong with a text is a ValueError in words.
"""

from __future__ import annotations

import base64
import math
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..errors import brief
from ..numerics.arrays import Array

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
)
_KEYS = {"dtype", "encoding", "shape", "table", "values"}
_RAW = "raw"
_INDICES = {"table_uint8": np.dtype("<u1"), "table_uint16": np.dtype("<u2")}
_MAX_DIMENSIONS = 32  # of NumPy before 2.0
_MAX_SIZE = 2**53 - 1


def little_endian(array: Array) -> npt.NDArray[np.uint8]:
    """Return the bytes of an array, the same on any machine: a view where it can be one."""
    ordered = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(ordered).reshape(-1).view(np.uint8)


def encode_array(array: Array) -> dict[str, Any]:
    """Return an array as JSON gives it: with a table where that is smaller, with the narrowest indices that reach it all."""
    content = little_endian(array)
    words = content.view(f"<u{array.dtype.itemsize}")
    table, indices = np.unique(words, return_inverse=True)
    encoding, listed, values = _RAW, content[:0], content
    for name, index in _INDICES.items():
        fits = table.size <= 2 ** (8 * index.itemsize)
        if fits and table.nbytes + index.itemsize * words.size < content.size:
            encoding, listed, values = name, little_endian(table), little_endian(indices.astype(index))
            break
    return {
        "dtype": str(array.dtype),
        "encoding": encoding,
        "shape": list(array.shape),
        "table": base64.b64encode(listed.tobytes()).decode(),
        "values": base64.b64encode(values.tobytes()).decode(),
    }


def decode_array(data: Any) -> Array:
    """Return the array, read-only; ValueError says what is wrong with it."""
    if not isinstance(data, dict) or set(cast("dict[Any, Any]", data)) != _KEYS:
        raise ValueError(f"an array must be an object of {', '.join(sorted(_KEYS))}, got {brief(cast('Any', data))}")
    entry = cast("dict[str, Any]", data)
    dtype, shape = _dtype(entry["dtype"]), _shape(entry["shape"])
    size = math.prod(shape)
    encoding, table, values = entry["encoding"], _content(entry, "table"), _content(entry, "values")
    index = None if encoding == _RAW else _INDICES.get(encoding) if isinstance(encoding, str) else None
    if encoding != _RAW and index is None:
        raise ValueError(f"encoding must be {_RAW}, {' or '.join(_INDICES)}, got {brief(encoding)}")
    expected = size * (dtype if index is None else index).itemsize
    if len(values) != expected:
        raise ValueError(f"values of shape {brief(list(shape))} must take {brief(expected)} bytes, got {len(values)}")
    if len(table) % dtype.itemsize or (index is None and table):
        raise ValueError(f"table of {len(table)} bytes: it must list {dtype} values, and none where values are {_RAW}")
    if index is not None:
        words = np.frombuffer(table, f"V{dtype.itemsize}")
        indices = np.frombuffer(values, index)
        if size and int(indices.max()) >= words.size:
            raise ValueError(f"index {int(indices.max())} is beyond its table of {words.size} values")
        values = words[indices].tobytes()
    if dtype == np.bool_ and values.translate(None, b"\0\1"):
        raise ValueError("bool values must be 0 or 1")
    array = np.frombuffer(values, dtype.newbyteorder("<")).astype(dtype, copy=False).reshape(shape)
    array.flags.writeable = False
    return array


def _dtype(name: Any) -> np.dtype[Any]:
    if not isinstance(name, str) or name not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {brief(name)}")
    try:
        return np.dtype(name)
    except TypeError:  # bfloat16 is not NumPy's own
        raise ValueError(f"dtype {name} is not installed here") from None


def _shape(value: Any) -> tuple[int, ...]:
    sizes = cast("list[Any]", value) if isinstance(value, list) else [-1]
    are_sizes = all(isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= _MAX_SIZE for size in sizes)
    if not are_sizes or len(sizes) > _MAX_DIMENSIONS:
        raise ValueError(f"shape must list at most {_MAX_DIMENSIONS} sizes, got {brief(value)}")
    return tuple(sizes)


def _content(entry: dict[str, Any], name: str) -> bytes:
    text = entry[name]
    try:
        if not isinstance(text, str):
            raise ValueError
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ValueError(f"{name} must be base64 text, got {brief(text)}") from None
