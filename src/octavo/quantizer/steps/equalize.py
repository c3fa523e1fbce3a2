"""Divide channels of unlike ranges, by factors that samples tell, so that one scale suits them all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ...ir.identity import TensorId
from ...numerics import quantize as quantize_values
from ..choices import Choices
from ..equalization import Equalizer
from ..plan import QuantizationPlan
from ..planner import Planned, Planner
from ..weights.widths import usual_width


def propose(choices: Choices, planner: Planner, equalizer: Equalizer, attempt: int) -> Choices:
    """Return choices with factors for channels, but those of tensors of which somebody says what they must be.

    Parameters
    ----------
    attempt
        How many times what was proposed did not leave the float model's results as they are.
    """
    found = equalizer(planner.simple, set(choices.asked), usual_width(planner.recipe), attempt)
    return Choices(equalization=found, float_tensors=found.uneven).with_more(choices)


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
