"""What can be chosen of kernels, for whoever measures them: schedules, plain data of the back end whose kernels take them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from ...errors import TuningError

Schedule = Any
"""How a kernel walks its work: a frozen dataclass of its back end, whose text is for people. Results do not depend on it."""

Schedules = Mapping[str, Schedule]
"""Schedules by the key of the kernels that are to take them."""


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
