"""Ranges of activations: of inputs that were integers, by another estimator, without outliers, or tuned by what they cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ...ir.identity import TensorId
from ...numerics import QuantParams
from ...numerics.arrays import Array
from ..choices import Choices
from ..plan import QuantizationPlan
from ..planner import Planned
from ..ranges import Mean, QuantScheme, Range, range_of, width
from ..recipe import AUTO, WIDEST, Recipe
from ..referee import Referee
from ..referee.rounding import Rounding
from ..request import TensorChoice
from .step import NEAR_DB, Evidence, Step

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
_SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.45, 0.3)
"""Of a range that clips nothing: what is tried. Less would clip what other samples, or a recurrent state, may need."""
_MOST = 4
"""Groups of activations whose ranges are looked for: what others cost is little beside these."""
_MIN_SHARE = 0.02
"""A tensor whose rounding makes less than this share of the error keeps its range."""
_TAIL = 4
"""The greatest value of samples is to the fourth greatest as that of others may be to what clips them."""
_WORTH = 0.9
"""A range must leave less than this share of a tensor's own error to be worth clipping for."""
_FINE = QuantScheme(dtype="int16")
"""Integers that show what clipping alone costs: they round next to nothing."""
_NO_POWER = 1e-30
"""Of an output: what is divided by power needs some."""

Floats = npt.NDArray[np.floating[Any]]
_Group = tuple[TensorId, ...]
"""Activations that share parameters."""


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

    Those that were not observed are beyond both ends, or beyond the one where 0 is the other. None where the tensor's parameters
    stand for all values as they are, or the values, sample by sample, are no multiples of one number, or are spread wider than
    there are integers, or too few are different to tell.
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


def costly(plan: QuantizationPlan, effects: Mapping[TensorId, float]) -> list[_Group]:
    """Return the activations whose rounding costs most, the worst first, each with those that have its parameters."""
    groups = {member: tuple(group) for group in plan.shared for member in group}
    least = _MIN_SHARE * sum(min(effect, 1.0) for effect in effects.values())
    worst = sorted(
        (name for name in effects if effects[name] >= least and effects[name]), key=lambda name: (-effects[name], name)
    )
    return list(dict.fromkeys(tuple(each for each in groups.get(name, (name,)) if each in effects) for name in worst))


def better_ranges(plan: QuantizationPlan, referee: Referee) -> dict[TensorId, Range]:
    """Return other ranges of the activations whose rounding costs most, each as if it were rounded alone."""
    rounding = referee.rounding(plan)
    groups = costly(plan, referee.effects(rounding))[:_MOST]
    shared = {member: group for group in plan.shared for member in group}
    ends = referee.ends([name for group in groups for name in group], rounding.factors)
    found, clipped = dict[TensorId, Range](), rounding.only()
    for group in groups:
        seen, params = np.array([ends[name] for name in group]), plan.activations[group[0]]
        costs = _Costs(referee, clipped, group, params, seen[..., 0].min(axis=0), seen[..., 1].max(axis=0))
        best = costs.best()
        if best is not None:
            clipped = clipped.with_params(dict.fromkeys(group, _FINE.params(*best)))
            found |= dict.fromkeys(shared.get(group[0], group), best)
    return found


class _Costs:
    """What rounding some activations alone costs, that share parameters, by their range.

    What rounding costs goes with the square of the range, and is measured once. What clipping costs is measured for each range,
    without any rounding, on all samples that go beyond: single samples decide how an error of both comes out, so that the least
    of many would be one by chance. What is clipped of others already counts beside it: a sample that is beyond one range is
    beyond others, too, and errors of both add up. `lows` and `highs` are the least and the greatest value of any, by sample.
    """

    def __init__(
        self, referee: Referee, clipped: Rounding, group: _Group, params: QuantParams, lows: Floats, highs: Floats
    ) -> None:
        self._referee, self._before, self._group = referee, clipped, group
        self._lows, self._highs, self._known = lows, highs, range_of(params)
        self._widest = min(float(lows.min()), self._known[0]), max(float(highs.max()), self._known[1])
        self._tails = tuple(map(_tail, (-lows, highs)))
        self._powers = referee.powers(None, referee.few).mean(axis=0)
        alone = clipped.only().with_params(dict.fromkeys(group, QuantScheme.of(params).params(*self._widest)))
        self._rounded = referee.powers(alone, referee.few).mean(axis=0)

    def best(self) -> Range | None:
        """Return the range that costs least; None where the one that they have costs little more."""
        costs: dict[Range, float] = {}
        for share in _SHARES:
            ends = self._widest[0] * share, self._widest[1] * share
            clipped = self._clipped(ends)
            costs[ends] = self._worst(share * share * self._rounded + clipped)
            if self._worst(clipped) >= min(costs.values()):  # and narrower ones clip more
                break
        share = (self._known[1] - self._known[0]) / (self._widest[1] - self._widest[0])
        own = self._worst(share * share * self._rounded + self._clipped(self._known))
        best = min(costs, key=lambda ends: costs[ends])
        return best if costs[best] < _WORTH * own else None

    def _clipped(self, ends: Range) -> Floats:
        """Return by how much clipping raises the mean power of errors, by output: beside others that are clipped already.

        What other samples have beyond the range, those seen have beyond one that is as much narrower as their tails are long.
        """
        ends = ends[0] / self._tails[0], ends[1] / self._tails[1]
        beyond = np.flatnonzero((self._lows < ends[0]) | (self._highs > ends[1])).tolist()
        if not beyond:
            return np.zeros(self._powers.size)
        with_this = self._before.with_params(dict.fromkeys(self._group, _FINE.params(*ends)))
        before, after = (self._referee.powers(each, beyond).sum(axis=0) for each in (self._before, with_this))
        return (after - before) / len(self._lows)

    def _worst(self, errors: Floats) -> float:
        return float(np.max(errors / np.maximum(self._powers, _NO_POWER), initial=0.0))


def _tail(greatest: Floats) -> float:
    """Return how much greater the greatest of the samples' greatest values is than those that are near it."""
    near, first = np.sort(greatest)[[-min(_TAIL, greatest.size), -1]].tolist()
    return first / near if first > near > 0 else 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneRanges(Step):
    """Other ranges for activations whose rounding costs most."""

    name: ClassVar = "tune ranges"
    is_presumed: ClassVar = True
    small_bytes: ClassVar = 2**22
    below_db: float

    @classmethod
    def of(cls, recipe: Recipe) -> list[TuneRanges]:
        """Return it where outputs have little more than they must, or the recipe tries ranges."""
        if recipe.range_estimator == AUTO:
            return [cls(below_db=inf)]
        goal = recipe.min_sqnr
        return [cls(below_db=-inf if goal is None else goal + NEAR_DB)] if recipe.corrects else []

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with these ranges."""
        ranges = better_ranges(planned.plan, evidence.runs.referee(planned.plan))
        return planned.choices.with_more(Choices(ranges=ranges)).uncorrected if ranges else None
