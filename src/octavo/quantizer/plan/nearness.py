"""How near a quantized model's outputs are to the float model's, as data. It runs nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass


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
    """

    sqnr_db: float = math.inf
    agreement: float | None = None
