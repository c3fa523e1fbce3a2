"""Round weights anew and correct biases, by what running the model tells of each layer."""

from __future__ import annotations

from dataclasses import replace

from ..choices import Choices
from ..plan.nearness import Nearness
from ..planner import Planned
from ..recipe import WIDEST
from .evidence import Evidence


def propose(planned: Planned, evidence: Evidence, *, has_own_ranges: bool = False) -> tuple[Choices, Nearness | None]:
    """Return choices with weights and biases corrected, and how near the model is with them where that was seen on the way.

    Parameters
    ----------
    has_own_ranges
        Whether ranges that were chosen may clip: they are the best with that in the biases, as they were tried.
    """
    unclipped = _unclipped(planned, evidence, has_own_ranges=has_own_ranges)
    found = evidence.corrector.corrections(unclipped.quantized, planned.choices.asked)
    if not found:
        return planned.choices, None
    return planned.choices.corrected_by(found), found.nearness if unclipped is planned else None


def propose_without_shifts(planned: Planned) -> Choices | None:
    """Return choices with biases as they were; None where nothing is added to any.

    They were corrected without clipping, which moves the means that they are to keep.
    """
    return replace(planned.choices, bias_shifts={}) if planned.choices.bias_shifts else None


def _unclipped(planned: Planned, evidence: Evidence, *, has_own_ranges: bool) -> Planned:
    """Return the model with ranges that hold all that was observed.

    Clipping moves means, too: by what outliers are beyond the range. A bias that made up for it would move all other values.
    """
    choices, planner = planned.choices, evidence.planner
    if planner.recipe.has_plain_ranges and (has_own_ranges or not choices.ranges):
        return planned
    return planner.planned(replace(choices, range_estimator=WIDEST, ranges=choices.ranges if has_own_ranges else {}))
