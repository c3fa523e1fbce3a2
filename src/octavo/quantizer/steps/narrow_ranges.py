"""Take ranges in that single samples alone make wide, to the mean of what samples have. It runs nothing."""

from __future__ import annotations

from collections.abc import Iterable

from ...ir.identity import TensorId
from ..choices import Choices
from ..planner import Planned, Planner
from ..ranges.estimator import QuantScheme
from ..ranges.mean import Mean
from ..tensor_choice import TensorChoice

_SHARE = 0.67
"""Of the observed range: a wider mean range saves less than 3.5 dB of the tensor's rounding, which clipping soon costs."""
_NARROW = ("int8", "uint8")
"""Wider integers have steps enough for outliers."""
_LEAST = 1 / 8
"""Of the activations: fewer with outliers are not what costs the outputs, unless their ranges are much too wide."""
_STRONG = 0.35
"""Share of the observed range that is such a one."""


def propose(planned: Planned, planner: Planner) -> Choices | None:
    """Return choices with narrower ranges for activations of which nobody says anything; None where there are none to take in."""
    named = planned.named
    ranges = ranges_without_outliers(each for each in planner.tensor_choices(planned).values() if each.id not in named)
    return Choices(ranges=ranges).with_more(planned.choices).uncorrected if ranges else None


def ranges_without_outliers(choices: Iterable[TensorChoice]) -> dict[TensorId, tuple[float, float]]:
    """Return the mean range of samples of each activation that it is much narrower for than the observed one.

    None where that can hardly bring the outputs nearer: to try it takes as long as the corrections.
    """
    found: dict[TensorId, tuple[float, float]] = {}
    shares: list[float] = []
    for choice in choices:
        seen = choice.statistics if choice.kind != "weight" and choice.params.dtype in _NARROW else None
        if seen is None:
            continue
        ends = Mean().range_of(seen, QuantScheme(dtype=choice.params.dtype))
        observed = _width(float(seen.minimum), float(seen.maximum))
        shares.append(_width(*ends) / observed if observed else 1.0)
        if shares[-1] < _SHARE:
            found[choice.id] = ends
    is_worth = len(found) >= _LEAST * len(shares) or min(shares, default=1.0) < _STRONG
    return found if is_worth else {}


def _width(low: float, high: float) -> float:
    """Return the width of the range that integers cover: 0 is always in it."""
    return max(high, 0.0) - min(low, 0.0)
