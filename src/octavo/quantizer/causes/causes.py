"""Root causes, as data: what one rounding alone does to the outputs, what makes that so large, and steps against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ...ir.identity import TensorId
from ..steps import Step

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
Part = Literal["activation", "weights"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RootCause:
    """One rounding.

    Parameters
    ----------
    id, source_name, op
        The activation, or the result of the layer whose weights are rounded, and the source's op that makes it.
    part
        "activation" or "weights" (with the layer's bias).
    sqnr_db
        Of the model's worst output where this alone is rounded, in dB; inf where it does nothing.
    share
        Of the power that the errors of all roundings alone add up to, in [0; 1].
    cause
        What makes it so large, by experiment; None where it is too small to be looked into.
    remedy
        What to do about it, in words.
    gain_db
        By how much the signal to noise ratio of the worst output would grow with the remedy, the errors taken as independent.
    steps
        What `fix` tries against it, by what it does in words, what costs least first.
    """

    id: TensorId
    source_name: str
    op: str
    part: Part
    sqnr_db: float
    share: float
    cause: Cause | None = None
    remedy: str = ""
    gain_db: float = 0.0
    steps: Mapping[str, Step] = field(default_factory=dict[str, Step], repr=False)
