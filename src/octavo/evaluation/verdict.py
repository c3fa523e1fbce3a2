"""What figures come to, in words, and what to do next. It measures nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Level = Literal["good", "usable", "poor", "ruined"]
LEVELS: tuple[Level, ...] = ("good", "usable", "poor", "ruined")
WORDS: dict[Level, str] = {
    "good": "as good as the reference",
    "usable": "close to the reference, not equal",
    "poor": "worse than the reference",
    "ruined": "ruined",
}
_AGREEMENTS = (0.97, 0.9, 0.7)
"""From where on classes, boxes or masks that agree are good, usable, poor: within the noise of labels, a few points, far off."""
_RATIOS = (30.0, 20.0, 10.0)
"""dB of outputs that nobody decides by: an error of 3%, 10%, 32% of the signal."""
_DROPS = (0.01, 0.03, 0.1)
"""Of a metric by labels, less than what is good, usable, poor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A level, why, and what to do next."""

    level: Level
    text: str
    advice: tuple[str, ...]


def level_of_agreement(agreement: float) -> Level:
    """Return how good a share of the same decisions is."""
    return _level([agreement >= least for least in _AGREEMENTS])


def level_of_sqnr(sqnr_db: float) -> Level:
    """Return how good a signal to noise ratio in dB is."""
    return _level([sqnr_db >= least for least in _RATIOS])  # NaN is at least nothing


def level_of_drop(drop: float) -> Level:
    """Return how good it is to lose that much of a share."""
    return _level([drop <= most for most in _DROPS])


def better(*levels: Level) -> Level:
    """Return the best of several."""
    return LEVELS[min(map(LEVELS.index, levels))]


def worse(levels: Sequence[Level]) -> Level:
    """Return the worst of several; good of none."""
    return LEVELS[max(map(LEVELS.index, levels), default=0)]


def _level(reached: Sequence[bool]) -> Level:
    return LEVELS[next((place for place, is_reached in enumerate(reached) if is_reached), len(reached))]


def decibels(value: float) -> str:
    """Return a ratio for people."""
    return "equal" if value == math.inf else "not finite" if math.isnan(value) else f"{value:.1f} dB"
