"""Timing of several calls against each other in one process, in alternating rounds. Knows no models and no runtimes.

A shared machine drifts: clocks, caches and neighbours change from one second to the next. Rounds A B C A B C expose every
contender to the same drift, and medians leave out the moments when something else ran.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

ROUNDS = 10
PAUSE_S = 0.01
"""Rest before each turn: worker threads of the contender before spin for some milliseconds and would slow the next one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Seconds of each timed call of one contender, in the order they ran."""

    seconds: tuple[float, ...]

    @property
    def median_ms(self) -> float:
        """Median time of one call, in milliseconds."""
        return 1e3 * statistics.median(self.seconds)


def time_alternating(
    calls: Mapping[str, Callable[[], object]],
    *,
    seconds: float = 2.0,
    rounds: int = ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
    rest: Callable[[float], None] = time.sleep,
) -> dict[str, Timing]:
    """Time each call in `rounds` alternating turns of `seconds` / `rounds` each.

    A turn starts with one call that is not timed (it warms caches and wakes threads) and times at least one.

    Parameters
    ----------
    calls
        Contenders by name, prepared: each computes one inference on inputs already in place.
    seconds
        Time spent on each contender, about.
    rounds
        Turns of each contender, at least 1.
    clock, rest
        Source of time in seconds, and how to wait; replaced in tests.
    """
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            rest(PAUSE_S)
            call()
            turn_ends = clock() + seconds / rounds
            while True:
                start = clock()
                call()
                end = clock()
                taken[name].append(end - start)
                if end >= turn_ends:
                    break
    return {name: Timing(seconds=tuple(values)) for name, values in taken.items()}
