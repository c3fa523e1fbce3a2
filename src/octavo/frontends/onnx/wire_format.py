"""Read the wire format of an .onnx file as far as large tensors' bytes go: a ModelProto without them, and where they lie.

Protobuf would copy each byte on decoding, and again wherever a message is copied. Knows field numbers of ONNX's messages alone:
which names, shapes and types there are, the decoded message says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

LARGE_BYTES = 1 << 20
"""Tensors of so many bytes are left out of messages. Shapes and other values that rewriting reads again and again are smaller."""

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 9, 13, 14
_EXTERNAL = 1
_WITHIN = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph"},
}
"""By message and field: the messages in which tensors may lie."""


class WireError(ValueError):
    """The bytes are no message: cut off, or something else."""


@dataclass(frozen=True, slots=True)
class _Field:
    """A field: its number, where it starts, where its content starts and where both end. Only messages have content."""

    number: int
    start: int
    content: int
    end: int
    is_message: bool


def split_large(data: Any, key_of: Callable[[int, int], str]) -> bytes:
    """Return the bytes of a ModelProto whose large tensors are external data, with a key as location.

    Parameters
    ----------
    data
        The file's bytes: any buffer whose slices are bytes.
    key_of
        Gives the key of a large tensor by offset and length of its bytes within `data`.

    Raises
    ------
    WireError
        Where a field ends beyond the message that holds it.
    """
    return b"".join(_message(data, "model", 0, len(data), key_of))


def _message(data: Any, kind: str, start: int, end: int, key_of: Callable[[int, int], str]) -> Iterator[bytes]:
    """Yield the bytes of a message without those of large tensors."""
    done = start
    within = _WITHIN[kind]
    for field in _fields(data, start, end):
        inner = within.get(field.number) if field.is_message and field.end - field.content >= LARGE_BYTES else None
        if inner is None:
            continue
        yield data[done : field.start]
        done = field.end
        make = _tensor(data, field, key_of) if inner == "tensor" else _message(data, inner, field.content, field.end, key_of)
        content = b"".join(make)
        yield _tag(field.number, _LENGTH) + _varint(len(content))
        yield content
    yield data[done:end]


def _tensor(data: Any, tensor: _Field, key_of: Callable[[int, int], str]) -> Iterator[bytes]:
    """Yield the bytes of a tensor: where its values are raw and large, of one whose data is external."""
    fields = list(_fields(data, tensor.content, tensor.end))
    raw = next((field for field in reversed(fields) if field.number == _RAW_DATA and field.is_message), None)
    if raw is None or raw.end - raw.content < LARGE_BYTES:
        yield data[tensor.content : tensor.end]
        return
    left_out = (_RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION)
    yield from (data[field.start : field.end] for field in fields if field.number not in left_out)
    yield _external(key_of(raw.content, raw.end - raw.content))


def _external(key: str) -> bytes:
    """Return the fields of a tensor whose data lies elsewhere."""
    entry = b"".join(_tag(number, _LENGTH) + _varint(len(text)) + text for number, text in ((1, b"location"), (2, key.encode())))
    where = _tag(_EXTERNAL_DATA, _LENGTH) + _varint(len(entry)) + entry
    return where + _tag(_DATA_LOCATION, _VARINT) + _varint(_EXTERNAL)


def _fields(data: Any, start: int, end: int) -> Iterator[_Field]:
    """Yield the fields of a message in order."""
    at = start
    while at < end:
        first = at
        tag, at = _read_varint(data, at, end)
        content, wire = at, tag & 7
        if wire == _VARINT:
            _, at = _read_varint(data, at, end)
        elif wire == _LENGTH:
            length, content = _read_varint(data, at, end)
            at = content + length
        elif wire in (_FIXED64, _FIXED32):
            at += 8 if wire == _FIXED64 else 4
        else:
            raise WireError("a field of unknown type")
        if at > end:
            raise WireError("a field ends beyond the message that holds it")
        yield _Field(tag >> 3, first, content, at, wire == _LENGTH)


def _read_varint(data: Any, at: int, end: int) -> tuple[int, int]:
    """Return a number and where it ends."""
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise WireError("a number ends beyond the message that holds it")


def _tag(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)
