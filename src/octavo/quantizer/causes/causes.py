"""The causes of an error that experiments tell apart, and what helps against each. It measures nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Cause = Literal[
    "coarse scale",
    "clipping",
    "weight scale",
    "bias",
    "unlike channels",
    "shifted mean",
    "weight rounding",
    "rounding",
]

FAULTS: tuple[Cause, ...] = ("coarse scale", "clipping", "weight scale", "bias")
"""What no choice of ranges needs: parameters that do not fit the values."""
MENDABLE: tuple[Cause, ...] = ("unlike channels", "shifted mean")
"""What a better quantization of the same width takes away."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What is wrong with one rounding.

    Parameters
    ----------
    cause
        Its name.
    remedy
        What to do, in words.
    effect, left
        Power of the error at the outputs without and with the remedy, as a share of the outputs' power.
    fitting
        The range that would fit an activation; None where its range is not what is wrong.
    """

    cause: Cause
    remedy: str
    effect: float
    left: float
    fitting: tuple[float, float] | None = None

    @property
    def rank(self) -> int:
        """0 for a fault, 1 for what can be mended at the same width, 2 for what only more bits help against."""
        return 0 if self.cause in FAULTS else 1 if self.cause in MENDABLE else 2
