"""How far a plan's outputs are from the float model's, as data, and what one plan gains over another. It runs nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_DB = 10 / math.log(10)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """What one plan's error is below another's, in dB, and the standard error of that over samples."""

    db: float
    standard_error: float

    def is_certain(self, errors: float = 1.0) -> bool:
        """Return whether it is more than so many standard errors: what single samples decide, others would decide otherwise."""
        return self.db > errors * self.standard_error


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Score:
    """Errors of a plan.

    Parameters
    ----------
    errors
        float64 [outputs, samples]: power of an output's error on a sample, in shares of that output's mean power over all; inf
        where it is not finite.
    """

    errors: npt.NDArray[np.float64]

    @property
    def sqnr_db(self) -> float:
        """Signal to noise ratio of the worst output."""
        worst = max(self._means, default=0.0)
        return math.inf if worst == 0 else -math.inf if math.isinf(worst) else -10 * math.log10(worst)

    def gain_over(self, other: Score) -> Gain:
        """Return what this plan gains over another one, both on the same samples: each by its worst output.

        The standard error is that of the logarithm of a ratio of two means of paired values (Cochran, Sampling Techniques, 1977,
        section 6.4).
        """
        mine, others = self._worst, other._worst
        first, second = (float(each.mean()) if each.size else 0.0 for each in (mine, others))
        if first == second:
            return Gain(db=0.0, standard_error=0.0)
        if math.isinf(second) or not first:
            return Gain(db=math.inf, standard_error=0.0)
        if math.isinf(first) or not second:
            return Gain(db=-math.inf, standard_error=0.0)
        spread = mine / first - others / second
        error = spread.std(ddof=1) / math.sqrt(spread.size) if spread.size > 1 else math.inf
        return Gain(db=_DB * math.log(second / first), standard_error=_DB * float(error))

    @property
    def _means(self) -> list[float]:
        return [float(each) for each in self.errors.mean(axis=1)] if self.errors.size else []

    @property
    def _worst(self) -> npt.NDArray[np.float64]:
        return self.errors[int(np.argmax(self._means))] if self.errors.size else np.zeros(0)
