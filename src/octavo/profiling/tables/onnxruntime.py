"""ONNX Runtime's calibration tables, in the three forms that onnxruntime.quantization.write_calibration_table writes.

"calibration.json" holds lowest and highest of each tensor; the file of save_tensors_data holds the same one level deeper.
"calibration.flatbuffers" and "calibration.cache" hold one number for each tensor, the end of a symmetric range, as its execution
provider for TensorRT reads it: a FlatBuffers table with a vector of (key, value) tables of strings, and lines "name number".
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, cast

import flatbuffers

from ...runtime.json_values import Malformed, a_mapping, a_real, parsed
from ..encodings.checks import Ranges, a_range

_ARRAY = "numpy.array"


def write_json(ranges: Ranges) -> str:
    """Return calibration.json."""
    table = {
        name: {"lowest": _array(low), "highest": _array(high), "CLS": "TensorData"}
        for name, (low, high) in sorted(ranges.items())
    }
    return json.dumps(table, indent=1) + "\n"


def _array(value: float) -> dict[str, Any]:
    return {"data": value, "dtype": "float32", "CLS": _ARRAY}


def read_json(text: str) -> Ranges:
    """Read calibration.json, or what save_tensors_data wrote."""
    table = a_mapping("the table", parsed(text))
    if table.get("CLS") == "TensorsData":
        table = a_mapping("data", table.get("data"))
    ranges: Ranges = {}
    for name, value in table.items():
        entry = a_mapping(name, value)
        low, high = (_scalar(entry.get(end), f"{name}: {end}") for end in ("lowest", "highest"))
        ranges[name] = a_range(low, high, name)
    return ranges


def _scalar(value: Any, where: str) -> float:
    if isinstance(value, dict) and cast("dict[str, Any]", value).get("CLS") == _ARRAY:
        value = cast("dict[str, Any]", value).get("data")
        while isinstance(value, list) and len(cast("list[Any]", value)) == 1:  # an array of one number, of any rank
            value = cast("list[Any]", value)[0]
        if isinstance(value, list):
            raise Malformed(f"{where} holds a number for each channel; calibrate without per_channel")
    return a_real(where, value)


def write_cache(amplitudes: Mapping[str, float]) -> str:
    """Return calibration.cache."""
    return "".join(f"{name} {value!r}\n" for name, value in sorted(amplitudes.items()))


def read_cache(text: str) -> dict[str, float]:
    """Read calibration.cache."""
    found: dict[str, float] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        name, separator, value = line.rpartition(" ")
        if not separator or not name:
            raise Malformed(f"line {number} must be a name and a number, got {line[:40]!r}")
        found[name] = _amplitude(value, name)
    return found


def write_flatbuffers(amplitudes: Mapping[str, float]) -> bytes:
    """Return calibration.flatbuffers."""
    builder: Any = flatbuffers.Builder(1024)
    entries: list[int] = []
    for name, value in sorted(amplitudes.items()):
        key, number = builder.CreateString(name), builder.CreateString(repr(value))
        builder.StartObject(2)
        builder.PrependUOffsetTRelativeSlot(0, key, 0)
        builder.PrependUOffsetTRelativeSlot(1, number, 0)
        entries.append(builder.EndObject())
    builder.StartVector(4, len(entries), 4)
    for entry in reversed(entries):
        builder.PrependUOffsetTRelative(entry)
    vector = builder.EndVector()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, vector, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def read_flatbuffers(content: bytes) -> dict[str, float]:
    """Read calibration.flatbuffers; every offset is checked against the file."""
    data = _Bytes(content)
    vector = data.field(data.offset(0), 0)
    if vector is None:
        raise Malformed("it holds no vector of tensors")
    found: dict[str, float] = {}
    for place in range(data.length(vector, 4)):
        entry = data.offset(vector + 4 + 4 * place)
        key, value = data.field(entry, 0), data.field(entry, 1)
        if key is None or value is None:
            raise Malformed(f"entry {place} lacks a name or a number")
        name = data.text(key)
        found[name] = _amplitude(data.text(value), name)
    return found


class _Bytes:
    """A FlatBuffers file (https://flatbuffers.dev/internals): offsets, tables, strings; Malformed for what lies outside of it."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def _number(self, form: str, at: int) -> int:
        size = struct.calcsize(form)
        if not 0 <= at <= len(self._content) - size:
            raise Malformed("an offset points out of the file")
        return struct.unpack_from(form, self._content, at)[0]

    def offset(self, at: int) -> int:
        """Return the place that the unsigned offset at a place points to."""
        return at + self._number("<I", at)

    def field(self, table: int, slot: int) -> int | None:
        """Return where the offset in a table's slot points to, None where the slot is empty."""
        layout = table - self._number("<i", table)
        size = self._number("<H", layout)
        if 4 + 2 * slot + 2 > size:
            return None
        within = self._number("<H", layout + 4 + 2 * slot)
        return self.offset(table + within) if within else None

    def length(self, vector: int, each: int) -> int:
        """Return how many elements of so many bytes a vector has."""
        count = self._number("<I", vector)
        if vector + 4 + count * each > len(self._content):
            raise Malformed("a vector reaches out of the file")
        return count

    def text(self, place: int) -> str:
        """Return a string."""
        size = self.length(place, 1)
        try:
            return self._content[place + 4 : place + 4 + size].decode()
        except UnicodeDecodeError as error:
            raise Malformed("a name is not text") from error


def _amplitude(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise Malformed(f"{name}: {text[:40]!r} is no number") from None
    if a_real(name, value) < 0:
        raise Malformed(f"{name}: {text[:40]} is below 0, but it is the end of a symmetric range")
    return value
