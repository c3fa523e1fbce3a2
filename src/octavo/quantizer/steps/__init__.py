"""Steps: each proposes other choices for a model, by what runs on samples tell. None knows another, or compares models."""

from . import correct, equalize, widen, widen_weights
from .correct import Correct
from .equalize import Equalize
from .evidence import Evidence
from .fuse_functions import FuseFunctions
from .keep_float import KeepFloat
from .narrow_ranges import NarrowRanges
from .ranges import Ranges
from .step import Step
from .tune_ranges import TuneRanges

LAST = Correct
"""Makes up for what all others leave."""
ORDER: tuple[type[Step], ...] = (Equalize, Ranges, NarrowRanges, TuneRanges, FuseFunctions, KeepFloat, LAST)
"""In which steps are applied: each is fitted to what those before it leave."""


def rank(step: Step) -> int:
    """Return where a step stands in that order."""
    return ORDER.index(type(step))


__all__ = ["LAST", "ORDER", "Evidence", "Step", "correct", "equalize", "rank", "widen", "widen_weights"]
