"""Rotate channels, by orthogonal matrices folded into weights, where that leaves activations narrower ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ...ir.identity import TensorId
from ..choices import Choices
from ..planner import Planned
from ..ranges import width
from ..recipe import Recipe
from .evidence import Evidence
from .step import Step

_GAIN = 0.8
"""Tensors are rotated together where that leaves less than this share of the noise of rounding them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rotate(Step):
    """Values of attention's heads, queries and keys, and residual streams, what single channels hold spread over all."""

    name: ClassVar = "rotate"

    @classmethod
    def of(cls, recipe: Recipe) -> list[Rotate]:
        """Return it, unless channels are to stay."""
        return [cls()] if recipe.equalization == "auto" else []

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with what is narrower rotated."""
        equalizer, choices = evidence.runs.equalizer, planned.choices
        if equalizer is None or choices.equalization:
            return None
        sites, found = equalizer.rotated(evidence.planner.simple, set(choices.requests))
        narrower = [site for site in sites if _noise_left(found.rotated, equalizer.profile, site.rounded) < _GAIN]
        rotations = {name: each for site in narrower for name, each in site.rotations.items()}
        if not rotations:
            return None
        rotated = {name: each for name, each in found.rotated.items() if name in rotations}
        return choices.with_more(Choices(equalization=replace(found, rotations=rotations, rotated=rotated)))


def _noise_left(rotated: Mapping[TensorId, Any], profile: Mapping[TensorId, Any], tensors: Sequence[TensorId]) -> float:
    """Return the noise of rounding tensors as a share of what it was, on average."""
    widths = [
        [width(each[name].minimum, each[name].maximum) for each in (rotated, profile)] for name in tensors if name in rotated
    ]
    shares = [(left / before) ** 2 for left, before in widths if before]
    return sum(shares) / len(shares) if shares else 1.0
