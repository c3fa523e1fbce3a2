"""Steps: each proposes other choices for a model, by what runs on samples tell. None knows another, or compares models."""

from . import equalize, widen
from .correct import Correct
from .equalize import Equalize, Rotate
from .float_trunk import FloatTrunk
from .keep_float import FuseFunctions, KeepFloat
from .named_tensors import FloatTensors, SetParams, WidenTensor, WithoutShift
from .per_row import CoverRows, PerRow, SingleRows
from .per_sample import PerSample
from .ranges import ExactInputs, NarrowRanges, Ranges, TuneRanges
from .step import Evidence, Step
from .widen import WidenSome

_ORDER: list[type[Step]] = [
    PerRow,
    FloatTrunk,
    PerSample,
    Rotate,
    Equalize,
    ExactInputs,
    Ranges,
    NarrowRanges,
    TuneRanges,
    FuseFunctions,
    KeepFloat,
    WidenSome,
    SetParams,
    WidenTensor,
    FloatTensors,
    WithoutShift,
    SingleRows,
    CoverRows,
    Correct,
]
"""In which steps are applied: each is fitted to what those before it leave. The last makes up for what all others leave."""

FORMER = ("weigh float",)
"""Names of steps in plans of before: what they chose is in the plan."""


def order() -> tuple[type[Step], ...]:
    """Return all kinds of steps, in the order in which they are applied."""
    return tuple(_ORDER)


def register_step(kind: type[Step]) -> None:
    """Add a kind of step: each model is quantized with it, too, where its `of` says so and the referee finds a gain.

    It is applied before corrections, and behind all others.

    Raises
    ------
    ValueError
        There is one of that name.
    """
    if any(known.name == kind.name for known in _ORDER):
        raise ValueError(f"there is a step {kind.name!r}")
    _ORDER.insert(-1, kind)


__all__ = [
    "FORMER",
    "Correct",
    "CoverRows",
    "Evidence",
    "FloatTensors",
    "KeepFloat",
    "PerSample",
    "SetParams",
    "SingleRows",
    "Step",
    "WidenTensor",
    "WithoutShift",
    "equalize",
    "order",
    "register_step",
    "widen",
]
