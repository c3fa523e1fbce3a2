"""Schedules: how a kernel walks its work, as plain data. Results don't depend on them, times do.

A kernel chooses its schedule by a model of the core, unless it is handed another one under its key. It says which it took and
which others it could have taken: whoever measures kernels needs to know no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from types import MappingProxyType

from ....errors import TuningError


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Tunable:
    """What can be chosen of a kernel.

    Parameters
    ----------
    key
        Names its work, not its constants: kernels of one key take one schedule.
    schedule
        The one it has.
    alternatives
        Others that it could have, the most promising first.
    """

    key: str
    schedule: Schedule
    alternatives: tuple[Schedule, ...] = field(default=())

    @staticmethod
    def of(key: str, schedule: Schedule, *kinds: Iterable[Schedule]) -> Tunable:
        """Take the alternatives of several kinds in turns, each kind's in its own order."""
        mixed = (each for turn in zip_longest(*kinds) for each in turn)
        others = tuple(dict.fromkeys(each for each in mixed if each is not None and each != schedule))
        return Tunable(key=key, schedule=schedule, alternatives=others)


def check_schedule(key: str, schedule: Schedule, *, fits: bool) -> None:
    """TuningError if a kernel was handed a schedule that it cannot take."""
    if not fits:
        raise TuningError(f"tuning: no kernel for {key!r} can take the schedule {schedule}; tune the model again")
