"""An array as bytes: the same bits give the same bytes on any machine, and the bytes are distrusted on reading.

An array of few distinct values (pixels, say) is a table of them and an index for each element, any other its raw bytes. Values
are told by their bits, so that -0.0 stays what it is. Nothing is compressed further: other versions of zlib write other bytes. It
knows no profile and no file; what is wrong with an array is a ValueError in words.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..errors import brief
from ..numerics.arrays import Array

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
)
_RAW = "raw"
_INDICES = {"table_uint8": np.dtype("<u1"), "table_uint16": np.dtype("<u2")}
_MAX_DIMENSIONS = 32  # of NumPy before 2.0
_MAX_SIZE = 2**53 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class CodedArray:
    """An array as a file holds it.

    Parameters
    ----------
    dtype, encoding, shape
        As a file says them: not what they are but `Any`, until `decode_array` has looked at them.
    table
        Elements, little-endian, that indices reach; empty where values are raw.
    values
        The elements, or their indices, little-endian, in row-major order.
    """

    dtype: Any
    encoding: Any
    shape: Any
    table: bytes
    values: bytes


def little_endian(array: Array) -> npt.NDArray[np.uint8]:
    """Return the bytes of an array, the same on any machine: a view where it can be one."""
    ordered = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(ordered).reshape(-1).view(np.uint8)


def encode_array(array: Array) -> CodedArray:
    """Return an array with a table where that is smaller, with the narrowest indices that reach it all."""
    content = little_endian(array)
    words = content.view(f"<u{array.dtype.itemsize}")
    table = np.unique(words)
    encoding, listed, values = _RAW, content[:0], content
    for name, index in _INDICES.items():
        fits = table.size <= 2 ** (8 * index.itemsize)
        if fits and table.nbytes + index.itemsize * words.size < content.size:
            encoding, listed = name, little_endian(table)
            values = little_endian(table.searchsorted(words).astype(index))
            break
    return CodedArray(
        dtype=str(array.dtype), encoding=encoding, shape=list(array.shape), table=listed.tobytes(), values=values.tobytes()
    )


def decode_array(coded: CodedArray) -> Array:
    """Return the array, read-only; ValueError says what is wrong with it."""
    dtype, shape = _dtype(coded.dtype), _shape(coded.shape)
    size = math.prod(shape)
    encoding, table, values = coded.encoding, coded.table, coded.values
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
