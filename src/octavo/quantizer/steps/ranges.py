"""Ranges that statistics tell: of inputs that were integers, by another estimator, without outliers. It runs nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ...ir.identity import TensorId
from ...numerics import QuantParams
from ...numerics.arrays import Array
from ..choices import Choices
from ..planner import Planned
from ..ranges import Mean, QuantScheme, Range, width
from ..recipe import AUTO, WIDEST, Recipe
from ..request import TensorChoice
from .step import Evidence, Step

_ALIKE = 2.0**-20
"""Of the greatest magnitude: by so much a number in float32, itself computed, may be beside a multiple."""
_TELLING = 1 / 4
"""Of the integers: as many different values tell that there are no others between them."""
_TRIED = ("mean", "mse", "percentile:99.99")
_SHARE = 0.67
"""Of the observed range: a wider mean range saves less than 3.5 dB of the tensor's rounding, which clipping soon costs."""
_NARROW = ("int8", "uint8")
"""Wider integers have steps enough for outliers."""
_LEAST = 1 / 8
"""Of the activations: fewer with outliers are not what costs the outputs, unless their ranges are much too wide."""
_STRONG = 0.35
"""Share of the observed range that is such a one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExactInputs(Step):
    """The scale that a sensor, an image or another model gave the values of inputs; it runs nothing."""

    name: ClassVar = "exact inputs"
    is_presumed: ClassVar = True

    @classmethod
    def of(cls, recipe: Recipe) -> list[ExactInputs]:
        """Return it, unless the recipe names an estimator, or bare rounding is wanted."""
        return [cls()] if recipe.range_estimator in (AUTO, WIDEST) and recipe.corrects else []

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with ranges of such inputs of which nobody says anything, and whose scale is another."""
        activations, taken = planned.plan.activations, planned.named | planned.choices.equalization.factors.keys()
        ranges = {
            name: ends
            for place, name in enumerate(evidence.planner.simple.input_ids)
            if name in activations
            and name not in taken
            and (ends := range_on_grid((each[place] for each in evidence.runs.samples), activations[name])) is not None
        }
        return planned.choices.with_more(Choices(ranges=ranges)).uncorrected if ranges else None


def range_on_grid(values: Iterable[Array], params: QuantParams) -> Range | None:
    """Return the range whose integers are as far from each other as a tensor's values are, 0 among them.

    Those that were not observed are beyond both ends, or beyond the one where 0 is the other.

    Parameters
    ----------
    values
        Of the tensor, sample by sample.
    params
        The tensor's: how many integers there are. None where these stand for all values as they are, or the values are no
        multiples of one number, or are spread wider, or too few are different to tell.
    """
    most, known = params.qmax - params.qmin, np.zeros(1, np.float32)
    for each in values:
        known = np.union1d(known, each)
        if known.size > most + 1 or not np.isfinite(known).all():
            return None
    if known.size < _TELLING * most:
        return None
    multiples = np.rint(known / np.diff(known).min()).astype(np.float64)
    unit = float(known @ multiples / (multiples @ multiples))
    spare = most - int(multiples[-1] - multiples[0])
    if spare < 0 or abs(known - multiples * unit).max() > _ALIKE * abs(known).max():
        return None
    steps = known / params.scale
    if (abs(steps - np.rint(steps)) < 1 / 64).all():  # the tensor's own integers are exactly these
        return None
    below = 0 if known[0] == 0 else spare if known[-1] == 0 else spare // 2
    return (float(multiples[0]) - below) * unit, (float(multiples[-1]) + spare - below) * unit


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranges(Step):
    """Ranges of all activations by one estimator of `octavo.quantizer.ranges`, its argument behind a colon."""

    name: ClassVar = "ranges"
    estimator: str

    @property
    def detail(self) -> str:
        """The estimator."""
        return self.estimator

    @classmethod
    def of(cls, recipe: Recipe) -> list[Ranges]:
        """Return other estimators where the recipe names none."""
        return [cls(estimator=name) for name in _TRIED] if recipe.range_estimator == AUTO else []

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with that estimator."""
        return replace(planned.choices, range_estimator=self.estimator)


@dataclass(frozen=True, kw_only=True, slots=True)
class NarrowRanges(Step):
    """The mean range of samples where it is much narrower than the observed one."""

    name: ClassVar = "narrow ranges"

    @classmethod
    def of(cls, recipe: Recipe) -> list[NarrowRanges]:
        """Return it, unless the recipe names an estimator, or bare rounding is wanted."""
        return [cls()] if recipe.range_estimator == AUTO or (recipe.range_estimator == WIDEST and recipe.corrects) else []

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with such ranges for activations of which nobody says anything."""
        named, known = planned.named, evidence.planner.tensor_choices(planned).values()
        ranges = ranges_without_outliers(each for each in known if each.id not in named)
        return planned.choices.with_more(Choices(ranges=ranges)) if ranges else None


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
        observed = width(float(seen.minimum), float(seen.maximum))
        shares.append(width(*ends) / observed if observed else 1.0)
        if shares[-1] < _SHARE:
            found[choice.id] = ends
    is_worth = len(found) >= _LEAST * len(shares) or min(shares, default=1.0) < _STRONG
    return found if is_worth else {}
