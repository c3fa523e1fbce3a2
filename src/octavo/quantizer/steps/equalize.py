"""Rotate channels, by orthogonal matrices folded into weights, and divide them by factors, so that one scale suits them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ...ir.identity import TensorId
from ...numerics import quantize as quantize_values
from ..choices import Choices
from ..planner import Planned
from ..ranges import width
from ..recipe import AUTO, Recipe
from ..weights import usual_width
from .step import Evidence, Step

STRENGTHS = (0.5, 0.25, 0.75)
"""What is tried besides: the first suits most models, others gain 0.2 dB over it at most; each takes as long to try."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Equalize(Step):
    """Factors for channels of unlike ranges.

    The strength is how much of the ranges of what dense layers and attention read goes over into what it meets there, (0; 1]:
    alpha of Xiao et al., SmoothQuant, 2023, equation 4. None: factors are those that leave the least noise by an estimate, which
    they always are of what convolutions read.
    """

    name: ClassVar = "equalize"
    strength: float | None = None

    @property
    def detail(self) -> str:
        """How much, where that is given."""
        return "" if self.strength is None else f"strength {self.strength:g}"

    @classmethod
    def of(cls, recipe: Recipe) -> list[Equalize]:
        """Return it without and with a strength, or several where the recipe tries ranges, unless channels are to stay."""
        strengths = STRENGTHS if recipe.range_estimator == AUTO else STRENGTHS[:1]
        return [] if recipe.equalization == "none" else [cls(strength=each) for each in (None, *strengths)]

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with factors, but of tensors of which somebody says what they must be.

        Where no strength would change anything, none proposes.
        """
        planner, choices, equalizer = evidence.planner, planned.choices, evidence.runs.equalizer
        if equalizer is None:
            return None
        model = equalizer.of(planner.simple, set(choices.requests), choices.equalization)
        if self.strength is not None and not model.smooths:
            return None
        found = model.equalization(usual_width(planner.recipe), self.strength)
        is_nothing = not found.factors and not found.uneven
        return None if is_nothing else choices.with_more(Choices(equalization=found, float_tensors=found.uneven))


def without_clips(planned: Planned) -> Choices | None:
    """Return choices without factors of tensors that are clipped and whose integers don't saturate at each channel's bound.

    Corrections, and ranges of what is no more divided, are those of another model: they go, too. None where all saturate.
    """
    choices, activations = planned.choices, planned.plan.activations
    unbounded = [
        name
        for name, bounds in choices.equalization.clamps.items()
        if name not in activations or int(quantize_values(bounds, activations[name]).min()) < activations[name].qmax
    ]
    if not unbounded:
        return None
    left = choices.equalization.without_sites_of(unbounded)
    gone = choices.equalization.factors.keys() - left.factors.keys()
    ranges = {name: ends for name, ends in choices.ranges.items() if name not in gone}
    return replace(choices, equalization=left, ranges=ranges).uncorrected
