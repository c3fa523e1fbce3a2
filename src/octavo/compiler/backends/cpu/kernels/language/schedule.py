"""Schedules: how a kernel walks its work, as plain data. Results don't depend on them, times do.

A kernel chooses its schedule by a model of the core, unless it is handed another one under its key. It says which it took and
which others it could have taken: whoever measures kernels needs to know no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class TileSchedule:
    """Of a product: `rows` x `columns` output pixels by `vectors` vectors of 16 channels in registers.

    `block` is how many output rows are computed for all channels before the next ones: few of them keep the input in the cache,
    many the weights. None leaves it to the kernel.
    """

    rows: int
    columns: int
    vectors: int
    block: int | None = None

    def __str__(self) -> str:
        """Return "2x7x2", and the rows of a block where it is given."""
        return f"{self.rows}x{self.columns}x{self.vectors}" + _block_text(self.block)


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowSchedule:
    """Of a depthwise convolution: `outputs` neighbouring pixels at once, in blocks of so many output rows."""

    outputs: int
    block: int | None = None

    def __str__(self) -> str:
        """Return "2", and the rows of a block where it is given."""
        return f"{self.outputs}" + _block_text(self.block)


@dataclass(frozen=True, kw_only=True, slots=True)
class WinogradSchedule:
    """Of minimal filtering: tiles of `tile_rows` x `tile_columns` outputs, in blocks of so many rows of tiles."""

    tile_rows: int
    tile_columns: int
    block: int | None = None

    def __str__(self) -> str:
        """Return "winograd 4x4", and the rows of a block where it is given."""
        return f"winograd {self.tile_rows}x{self.tile_columns}" + _block_text(self.block)


@dataclass(frozen=True, kw_only=True, slots=True)
class StrassenSchedule:
    """Of Strassen's matrix product: so many `levels`, in blocks of so many tiles of 2**levels pixels."""

    levels: int
    block: int | None = None

    def __str__(self) -> str:
        """Return "strassen 2", and the tiles of a block where it is given."""
        return f"strassen {self.levels}" + ("" if self.block is None else f" by {self.block} tiles")


def _block_text(block: int | None) -> str:
    return "" if block is None else f" by {block} rows"


BilinearSchedule = StrassenSchedule | WinogradSchedule
Schedule = TileSchedule | WindowSchedule | BilinearSchedule
Schedules = Mapping[str, Schedule]
"""Schedules by the key of the kernels that are to take them."""

NO_SCHEDULES: Schedules = MappingProxyType({})

_KINDS: dict[frozenset[str], type[Schedule]] = {
    frozenset({"rows", "columns", "vectors", "block"}): TileSchedule,
    frozenset({"outputs", "block"}): WindowSchedule,
    frozenset({"levels", "block"}): StrassenSchedule,
    frozenset({"tile_rows", "tile_columns", "block"}): WinogradSchedule,
}
_MOST = 1 << 20
"""Largest number that a schedule may hold; kernels have tighter bounds of their own."""


def schedule_of(values: Mapping[str, object]) -> Schedule:
    """Return the schedule of these fields, which a file has; ValueError says what is wrong with them."""
    kind = _KINDS.get(frozenset(values))
    if kind is None:
        raise ValueError("the schedule is of no kind that is known")
    fields: dict[str, Any] = dict(values)
    for name, value in fields.items():
        is_count = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST
        if not is_count and not (name == "block" and value is None):
            raise ValueError(f"{name!r} must be a whole number from 1 to {_MOST}, got {value!r}")
    return kind(**fields)
