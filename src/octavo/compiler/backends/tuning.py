"""Tuning: the schedules that were measured to be best on one machine, and their file.

The file is JSON, versioned, and distrusted on reading: nothing in it is executed, every value is checked before it is used, and a
schedule that a kernel can't take is refused where the kernel is written. Schedules change times, never results.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from ...errors import TuningError, check_path
from ...runtime.atomic_write import write_atomically
from .cpu.kernels import schedule_of
from .devices import is_device, schedule_reader
from .tunable import Schedule, Schedules

FORMAT = "octavo-tuning"
SCHEMA_VERSION = 1
_KEYS = {"format", "schema_version", "octavo", "isa", "processor", "kernels"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Winner:
    """A schedule that beat the kernel's own, and the microseconds of both, of all calls of the kernel in the model together."""

    schedule: Schedule
    before_us: float
    after_us: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """Winners by the key of their kernels, for one ISA of one processor.

    Parameters
    ----------
    isa
        Instruction set of the kernels.
    processor
        What was measured: the machine's processor, as the operating system names it, or a device, as its driver does.
    octavo
        The version that measured.
    winners
        By key. A kernel without one keeps its own choice.
    """

    isa: str
    processor: str
    octavo: str
    winners: Mapping[str, Winner]

    def schedules(self, isa: str, processor: str | None) -> dict[str, Schedule]:
        """Return the schedules by key, for an ISA on a processor; None is any that has it.

        TuningError if they were measured on another one, or for another ISA.
        """
        if self.isa != isa or processor not in (None, self.processor):
            here = isa if processor is None else f"{isa} on {processor!r}"
            raise TuningError(
                f"the tuning is of {self.isa} on {self.processor!r}, this is {here}: tune the model here, "
                "or compile without the tuning"
            )
        return {key: winner.schedule for key, winner in self.winners.items()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file under a temporary name, then rename it. TuningError if it can't be written."""
        file = check_path(path, TuningError, "the path of a tuning file to write")
        write_atomically(file, self._text(), TuningError, "the tuning")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Tuning:
        """Read and check a file. TuningError names it and the first thing wrong with it."""
        file = check_path(path, TuningError, "the path of a tuning file, which octavo tune writes")
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise TuningError(f"{file}: cannot read the tuning: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise TuningError(f"{file}: not a tuning file (not JSON, or cut short): {error}") from error
        try:
            return _decoded(data)
        except _MalformedError as error:
            raise TuningError(f"{file}: not a valid tuning file: {error}; tune the model again") from error

    def _text(self) -> str:
        kernels = {key: {**asdict(winner), "schedule": asdict(winner.schedule)} for key, winner in self.winners.items()}
        header = {"format": FORMAT, "schema_version": SCHEMA_VERSION, "octavo": self.octavo}
        data = {**header, "isa": self.isa, "processor": self.processor, "kernels": kernels}
        return json.dumps(data, indent=1, allow_nan=False) + "\n"


class _MalformedError(Exception):
    """What is wrong with a file."""


def _decoded(data: object) -> Tuning:
    content = _object(data, "the file")
    if content.get("format") != FORMAT:
        raise _MalformedError(f'expected "format": "{FORMAT}"')
    if content.get("schema_version") != SCHEMA_VERSION:
        raise _MalformedError(f"schema version {content.get('schema_version')!r}, this version reads {SCHEMA_VERSION}")
    if set(content) != _KEYS:
        raise _MalformedError(f"expected the keys {', '.join(sorted(_KEYS))}")
    for key in ("octavo", "isa", "processor"):
        if not isinstance(content[key], str):
            raise _MalformedError(f"{key!r} is no text")
    kernels = _object(content["kernels"], "'kernels'")
    read = schedule_reader(content["isa"]) if is_device(content["isa"]) else schedule_of
    winners = {key: _winner(key, value, read) for key, value in kernels.items()}
    return Tuning(isa=content["isa"], processor=content["processor"], octavo=content["octavo"], winners=winners)


def _winner(key: str, data: object, read: Callable[[Mapping[str, object]], Schedule]) -> Winner:
    content = _object(data, f"{key!r}")
    if set(content) != {"schedule", "before_us", "after_us"}:
        raise _MalformedError(f"{key!r}: expected the keys after_us, before_us, schedule")
    times = content["before_us"], content["after_us"]
    for value in times:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise _MalformedError(f"{key!r}: {value!r} is no time in microseconds")
    try:
        schedule = read(_object(content["schedule"], f"the schedule of {key!r}"))
    except ValueError as error:
        raise _MalformedError(f"{key!r}: {error}") from error
    return Winner(schedule=schedule, before_us=float(times[0]), after_us=float(times[1]))


def _object(data: object, what: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise _MalformedError(f"{what} is no JSON object")
    return cast("dict[str, Any]", data)


def schedules_of(source: str | Path | Tuning | None, isa: str, processor: str | None) -> Schedules:
    """Return the schedules of a tuning, or of its file, as `Tuning.schedules` does; none without one."""
    if source is None:
        return {}
    return (source if isinstance(source, Tuning) else Tuning.load(source)).schedules(isa, processor)
