"""Arrays as bytes: each encoding bit for bit, the same bytes always, and one error for what is no array."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from octavo.profiling.coded_array import DTYPES, CodedArray, decode_array, encode_array


def pixels(dtype: str = "float32") -> np.ndarray:
    return (np.arange(3000).reshape(1, 3, 1000) % 256).astype(dtype)


ARRAYS = {
    "table_uint8": pixels() / np.float32(255),
    "table_uint16": (np.arange(3000, dtype=np.float32) % 257) / np.float32(7),
    "raw": np.random.default_rng(0).standard_normal((2, 5, 100)).astype(np.float32),
}


@pytest.mark.parametrize(("encoding", "array"), ARRAYS.items(), ids=list(ARRAYS))
def test_each_encoding_is_read_bit_for_bit(encoding: str, array: np.ndarray) -> None:
    entry = encode_array(array)
    assert entry.encoding == encoding
    read = decode_array(entry)
    assert (read.dtype, read.shape, read.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert not read.flags.writeable
    assert encode_array(read) == entry


def test_a_table_is_taken_up_to_the_last_index_and_only_where_it_is_smaller() -> None:
    def chosen(distinct: int, size: int) -> str:
        return encode_array(np.resize(np.arange(distinct, dtype=np.float32), size)).encoding

    assert [chosen(256, 2000), chosen(257, 2000)] == ["table_uint8", "table_uint16"]
    assert [chosen(65536, 200_000), chosen(65537, 200_000)] == ["table_uint16", "raw"]
    # 4 bytes an element against 1, beside 4 for each entry.
    assert [chosen(30, 40), chosen(30, 41)] == ["raw", "table_uint8"]
    assert encode_array(pixels("uint8")).encoding == "raw"


def test_values_are_told_by_their_bits() -> None:
    array = np.tile(np.array([0.0, -0.0, 1e-45, -1e-45], np.float32), 50)
    entry = encode_array(array)
    assert len(entry.table) == 16
    assert decode_array(entry).tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "bfloat16"])
def test_every_dtype_and_layout_in_memory(dtype: str) -> None:
    array = (pixels() > 7 if dtype == "bool" else pixels("uint8") % 100).astype(dtype)
    entry = encode_array(array)
    np.testing.assert_array_equal(decode_array(entry), array, strict=True)
    turned = np.ascontiguousarray(array.T).T
    assert encode_array(turned) == encode_array(array.astype(array.dtype.newbyteorder(">")).astype(array.dtype)) == entry
    for empty in (array[:0], array[0, 0, 0].reshape(())):
        np.testing.assert_array_equal(decode_array(encode_array(empty)), empty, strict=True)


def test_bfloat16_where_it_is_installed() -> None:
    array = pixels().astype(pytest.importorskip("ml_dtypes").bfloat16)
    read = decode_array(encode_array(array))
    assert (read.dtype, read.tobytes()) == (array.dtype, array.tobytes())


def test_the_bytes_of_an_array_are_pinned() -> None:
    """Files of other machines and versions are compared byte by byte."""
    table = bytes.fromhex("0000c03f 00000080")
    assert encode_array(np.tile(np.array([1.5, -0.0], np.float32), 4)) == CodedArray(
        dtype="float32", encoding="table_uint8", shape=[8], table=table, values=bytes([0, 1] * 4)
    )
    assert encode_array(np.array([[-2]], np.int16)) == CodedArray(
        dtype="int16", encoding="raw", shape=[1, 1], table=b"", values=b"\xfe\xff"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "object"}, "dtype must be one of bool, int8"),
        ({"dtype": "V4"}, "dtype must be one of"),
        ({"dtype": ["float32"]}, "dtype must be one of"),
        ({"dtype": "float64"}, "index 255 is beyond its table of 128 values"),
        ({"encoding": "zlib"}, "encoding must be raw, table_uint8 or table_uint16, got 'zlib'"),
        ({"encoding": []}, "encoding must be raw"),
        ({"encoding": "raw"}, "must take 12000 bytes, got 3000"),
        ({"encoding": "table_uint16"}, "must take 6000 bytes, got 3000"),
        ({"shape": [3001]}, "must take 3001 bytes, got 3000"),
        ({"shape": [2**53 - 1] * 32}, "must take .* bytes, got 3000"),
        ({"shape": [2**53 - 1, 2**53 - 1, 0], "values": b""}, "dimension|shape|size"),
        ({"shape": [1] * 33}, "shape must list at most 32 sizes"),
        ({"shape": [-3000, -1]}, "shape must list"),
        ({"shape": [3000.0]}, "shape must list"),
        ({"shape": [True, 3000]}, "shape must list"),
        ({"shape": 3000}, "shape must list"),
        ({"table": bytes(10)}, "table of 10 bytes: it must list float32 values"),
        ({"table": bytes(4)}, "index 255 is beyond its table of 1 values"),
        ({"table": b""}, "index 255 is beyond its table of 0 values"),
        ({"encoding": "raw", "shape": [750]}, "none where values are raw"),
        ({"encoding": "raw", "shape": [3000], "table": b"", "dtype": "bool"}, "bool values must be 0 or 1"),
    ],
)
def test_what_is_no_array_is_one_error(changes: dict[str, Any], message: str) -> None:
    entry = replace(encode_array(pixels()), **changes)
    with pytest.raises(ValueError, match=message) as error:
        decode_array(entry)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200
