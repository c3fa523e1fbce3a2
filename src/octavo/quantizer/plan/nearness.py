"""How near a quantized model's outputs are to the float model's, as data, and when one is surely nearer. It runs nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True, slots=True)
class Nearness:
    """What outputs on some samples say.

    Parameters
    ----------
    sqnr_db
        Signal to noise ratio of the worst output, in dB; inf where the model was not run to its end.
    agreement
        Share of the samples of which it names the float model's class, in [0; 1]; None where outputs are no scores, or it was
        not run.
    errors
        Power of that output's error, sample by sample, in shares of the output's mean power; () where it was not run.
    """

    sqnr_db: float = math.inf
    agreement: float | None = None
    errors: tuple[float, ...] = ()

    def is_surely_nearer(self, than: Nearness) -> bool:
        """Return whether errors are less than another model's on the same samples by more than the standard error of that.

        What single samples decide, other samples would decide otherwise.
        """
        both = np.array([self.errors, than.errors]) if len(self.errors) == len(than.errors) else np.empty((2, 0))
        if both.shape[1] < 2 or not np.isfinite(both).all():
            return not than.sqnr_db >= self.sqnr_db
        gains = both[1] - both[0]
        return bool(gains.mean() > gains.std(ddof=1) / math.sqrt(len(gains)))
