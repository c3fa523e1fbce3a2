"""A .tflite file as tables of fields that can be changed, and back to bytes. It knows the names of the schema and no meaning.

Every table of the schema is read and written, by the accessors and builders that the package `tflite` has for it: what nobody
changes stays as it was, names, signatures, metadata and options of ops that Octavo does not know among it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from mmap import mmap
from typing import Any

import flatbuffers
import numpy as np
import numpy.typing as npt
import tflite
from flatbuffers import number_types
from flatbuffers.table import Table as FlatTable

from ...errors import ModelError

_IDENTIFIER = b"TFL3"
_DATA_ALIGNMENT = 16
"""Of the data of buffers, as the schema has it (force_align)."""
_LIMIT = 2**31 - 1
"""A FlatBuffer ends where 32-bit offsets do."""


@dataclass(kw_only=True, slots=True)
class Table:
    """A table of the schema: its class, and the fields that the file holds, by their names in the builders ("OpcodeIndex").

    Values are numbers, bytes (strings), arrays of numbers, Tables, or lists of bytes and Tables.
    """

    kind: str
    fields: dict[str, Any] = field(default_factory=dict[str, Any])

    def __getitem__(self, name: str) -> Any:
        """Return a field; None where the file has none."""
        return self.fields.get(name)

    def __setitem__(self, name: str, value: Any) -> None:
        """Set a field; None takes it away."""
        if value is None:
            self.fields.pop(name, None)
        else:
            self.fields[name] = value

    def number(self, name: str) -> int:
        """Return a field that is a whole number, 0 where the file has none."""
        return int(self.fields.get(name, 0))

    def copied(self) -> Table:
        """Return a table of the same fields."""
        return Table(kind=self.kind, fields=dict(self.fields))


def read_tables(data: bytes | mmap) -> Table:
    """Return the root table, the model, of a file that `frontends.tflite.source.read` took; all constants within."""
    model = _read(tflite.Model.GetRootAs(data, 0))
    for buffer in model["Buffers"] or []:
        if buffer.number("Offset") > 1:
            buffer["Data"] = np.frombuffer(data, np.uint8, buffer.number("Size"), buffer.number("Offset"))
            buffer["Offset"] = buffer["Size"] = None
    return model


def lies_outside(buffer: Any) -> bool:
    """Return whether the data of a buffer lies behind the FlatBuffer, as that of large files does."""
    return buffer.Offset() > 1


_BUILTIN_CODE = 10
"""Where a table of OperatorCode says where its field `builtin_code` lies."""


def op_number(code: Any) -> int:
    """Return the number of an operator code: the greater one of its two fields, as LiteRT has it.

    Files written before 2020 have the 8-bit field only, others may have the new one only. The package's accessor of the new
    field gives the old one for numbers that fit it.
    """
    place = code._tab.Offset(_BUILTIN_CODE)
    new = code._tab.Get(number_types.Int32Flags, place + code._tab.Pos) if place else 0
    return max(int(new), int(code.DeprecatedBuiltinCode()))


def _field_names(kind: str) -> list[str]:
    prefix = f"{kind}Add"
    return [name.removeprefix(prefix) for name in vars(tflite) if name.startswith(prefix)]


def _read(table: Any) -> Table:
    kind = type(table).__name__
    result = Table(kind=kind)
    for name in _field_names(kind):
        if hasattr(table, f"{name}Length"):
            if not getattr(table, f"{name}IsNone")():
                result.fields[name] = _read_vector(table, name)
            continue
        value = op_number(table) if (kind, name) == ("OperatorCode", "BuiltinCode") else getattr(table, name)()
        if isinstance(value, FlatTable):
            value = _read_union(value, name, getattr(table, f"{name}Type")())
        elif hasattr(value, "_tab"):
            value = _read(value)
        if value is not None:
            result.fields[name] = value
    return result


def _read_vector(table: Any, name: str) -> Any:
    if hasattr(table, f"{name}AsNumpy"):
        values = getattr(table, f"{name}AsNumpy")()
        return values if isinstance(values, np.ndarray) else np.zeros(0, np.int32)
    length = getattr(table, f"{name}Length")()
    if length > len(table._tab.Bytes):
        raise ValueError(f"a list of {length} entries")
    entries = [getattr(table, name)(index) for index in range(length)]
    return [_read(entry) if hasattr(entry, "_tab") else entry for entry in entries]


_UNIONS: dict[str, Any] = {
    "BuiltinOptions": tflite.BuiltinOptions,
    "BuiltinOptions2": tflite.BuiltinOptions2,
    "Details": tflite.QuantizationDetails,
}
"""By the field that holds one."""


def _read_union(value: FlatTable, field_name: str, number: int) -> Table | None:
    """Return the member of a union; None of a class that the package does not know."""
    members = vars(_UNIONS.get(field_name, object))
    name = next((each for each, code in members.items() if code == number and isinstance(code, int)), None)
    member = None if name is None else getattr(tflite, name, None)
    if member is None:
        return None
    found = member()
    found.Init(value.Bytes, value.Pos)
    return _read(found)


def write_tables(model: Table) -> bytes:
    """Return the bytes of a file; ModelError where it would not fit a FlatBuffer."""
    size = sum(buffer["Data"].nbytes for buffer in model["Buffers"] if buffer["Data"] is not None)
    if size > _LIMIT - 2**20:
        raise ModelError(f"a .tflite file ends at 2 GB; this one would hold {size} bytes of constants")
    builder = flatbuffers.Builder(size + 2**16)
    builder.Finish(_write(builder, model), file_identifier=_IDENTIFIER)
    return bytes(builder.Output())


def _write(builder: Any, table: Table) -> int:
    values = {name: _stored(builder, table.kind, name, value) for name, value in table.fields.items()}
    getattr(tflite, f"{table.kind}Start")(builder)
    for name, value in values.items():
        getattr(tflite, f"{table.kind}Add{name}")(builder, value)
    return getattr(tflite, f"{table.kind}End")(builder)


def _stored(builder: Any, kind: str, name: str, value: Any) -> Any:
    """Write what a field refers to, if it does, and return what stands in the table."""
    if isinstance(value, Table):
        return _write(builder, value)
    if isinstance(value, bytes):
        return builder.CreateString(value)
    if isinstance(value, np.ndarray):
        is_data = (kind, name) == ("Buffer", "Data")
        return _write_array(builder, value, _DATA_ALIGNMENT if is_data else value.dtype.itemsize)
    if isinstance(value, list):
        offsets = [_stored(builder, kind, name, each) for each in value]
        builder.StartVector(number_types.UOffsetTFlags.bytewidth, len(offsets), number_types.UOffsetTFlags.bytewidth)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
        return builder.EndVector()
    return value


def _write_array(builder: Any, values: npt.NDArray[Any], alignment: int) -> int:
    content = np.ascontiguousarray(values).tobytes()
    builder.StartVector(values.dtype.itemsize, values.size, max(alignment, values.dtype.itemsize))
    builder.head = builder.Head() - len(content)
    builder.Bytes[builder.Head() : builder.Head() + len(content)] = content
    return builder.EndVector()
