"""Give activations whose rounding costs most other ranges, or leave them float, as many as it takes. Chosen by simulation."""

from __future__ import annotations

from ..choices import Choices
from ..plan import QuantizationPlan
from ..planner import Planned
from .evidence import Evidence


def propose(planned: Planned, choices: Choices, evidence: Evidence, wanted_db: float, *, only_ranges: bool) -> Choices | None:
    """Return choices with which outputs have a signal to noise ratio in dB, as they are simulated; None where there are none.

    Parameters
    ----------
    planned
        What is simulated.
    choices
        To which others are added; what corrections make of these counts while they are looked for, and is then of another model.
    only_ranges
        Whether nothing more may stay float.
    """

    def replan(more: Choices) -> QuantizationPlan:
        return evidence.planner.planned(choices.with_more(more)).plan

    more = evidence.runs.less_rounding(evidence.exact, planned.quantized, wanted_db, replan, only_ranges=only_ranges)
    found = choices.with_more(more).uncorrected
    is_same = found.ranges == choices.ranges and found.float_tensors == choices.float_tensors
    return None if is_same else found
