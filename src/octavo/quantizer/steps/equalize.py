"""Divide channels of unlike ranges, by factors that samples tell, so that one scale suits them all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ...ir.identity import TensorId
from ...numerics import quantize as quantize_values
from ..choices import Choices
from ..plan import QuantizationPlan
from ..planner import Planned
from ..recipe import AUTO, Recipe
from ..weights import usual_width
from .evidence import Evidence
from .step import Step

STRENGTHS = (0.5, 0.25, 0.75)
"""What is tried besides: the first suits most models, others gain 0.2 dB over it at most; each takes as long to try."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Equalize(Step):
    """Factors for channels of unlike ranges.

    Parameters
    ----------
    strength
        How much of the ranges of what dense layers and attention read goes over into what it meets there, (0; 1]: alpha of Xiao
        et al., SmoothQuant, 2023, equation 4. None: factors are those that leave the least noise by an estimate, which they
        always are of what convolutions read.
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
    choices, bounds = planned.choices, planned.choices.equalization.clamps
    unbounded = [name for name, bound in bounds.items() if not _saturates(planned.plan, name, bound)]
    if not unbounded:
        return None
    left = choices.equalization.without_sites_of(unbounded)
    gone = choices.equalization.factors.keys() - left.factors.keys()
    ranges = {name: ends for name, ends in choices.ranges.items() if name not in gone}
    return replace(choices, equalization=left, ranges=ranges).uncorrected


def _saturates(plan: QuantizationPlan, name: TensorId, bounds: npt.NDArray[np.float32]) -> bool:
    """Return whether integers of a tensor saturate at or below the bound of each channel; False where it is not quantized."""
    params = plan.activations.get(name)
    return params is not None and int(quantize_values(bounds, params).min()) >= params.qmax
