"""Ranges of activations with which rounding costs the outputs least: chosen by simulation. Nothing stays float here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...ir.identity import TensorId
from ...numerics import QuantParams
from ..plan.plan import QuantizationPlan
from ..ranges import QuantScheme
from .simulation import Effects, Simulation

_SHARES = (0.8, 0.6, 0.4)
"""Of one end of a range: what is tried in its place at first."""
_NEXT = 0.1
"""By so much nearer and further than the best of them is tried then. Less than 0.3 would clip what other samples, or a recurrent
state, may need."""
_INTERPOLATION = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of the way from a plan's range to the one that a few samples found: what is tried on all of them."""
_MIN_SHARE = 0.02
"""A tensor whose rounding makes less than this share of the error, or another range of which takes less away, keeps its range."""
_WORTH = 0.8
"""A range must leave less than this share of a tensor's own error to be worth clipping for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RangeTuning:
    """Looks for better ranges than those of a plan.

    Parameters
    ----------
    simulation, plan
        The plan's own.
    effects
        What the plan's roundings do.
    """

    simulation: Simulation
    plan: QuantizationPlan
    effects: Effects

    @property
    def least(self) -> float:
        """What ranges can leave of the error at best.

        Of each costly activation nothing where its range clips what was observed, else what the narrowest that is tried rounds.
        """
        effects, gone = self.effects.activations, 0.0
        for group in self.costly():
            share = 1.0 if self._is_clipped(group) else 1 - (_SHARES[-1] - _NEXT) ** 2
            gone += share * sum(min(effects[name], 1.0) for name in group)
        return self.effects.together * (1 - gone / self.effects.total) if gone else self.effects.together

    def _is_clipped(self, group: Sequence[TensorId]) -> bool:
        """Return whether activations had values beyond their range."""
        ends, observed = range_of(self.plan.activations[group[0]]), self.simulation.observed(group)
        return observed[0] < ends[0] or observed[1] > ends[1]

    def run(self) -> tuple[dict[TensorId, Range], Effects]:
        """Return other ranges of the tensors whose rounding costs most, and what roundings do with them.

        Each must be better alone and with all the rest: what clips is no noise, and adds up otherwise. What other samples have
        beyond it counts, too: for next to nothing no range is narrower.
        """
        groups = self._groups
        params, noise, effects = dict(self.plan.activations), self.effects.together, dict(self.effects.activations)
        better = self._better(self.costly())
        found: dict[TensorId, Range] = {}
        for group, ends in better:
            tried = dict.fromkeys(group, scheme_of(params[group[0]]).params(*ends))
            together = self.simulation.together({**params, **tried}, self.simulation.weights)
            if together < (1 - _MIN_SHARE) * noise:
                noise = together
                params |= tried
                found |= dict.fromkeys(groups.get(group[0], group), ends)
                effects |= {each: self.simulation.alone({each: tried[each]}, few=True) for each in group}
        return found, replace(self.effects, activations=effects, together=noise)

    @property
    def _groups(self) -> dict[TensorId, tuple[TensorId, ...]]:
        return {member: tuple(group) for group in self.plan.shared for member in group}

    def costly(self) -> list[list[TensorId]]:
        """Return the activations whose rounding costs most, the worst first, each with those that have its parameters."""
        groups, effects, least = self._groups, self.effects.activations, _MIN_SHARE * self.effects.total
        found: dict[TensorId, list[TensorId]] = {}
        for name in sorted(effects, key=lambda name: (-effects[name], name)):
            if effects[name] >= least and not any(name in group for group in found.values()):
                found[name] = [each for each in groups.get(name, (name,)) if each in effects]
        return list(found.values())

    def _better(self, groups: Sequence[Sequence[TensorId]]) -> list[tuple[Sequence[TensorId], Range]]:
        """Return the ranges with which groups of activations cost less alone, on all samples; those for which there are such."""
        narrowed = [(group, ends) for group in groups if (ends := self._on_few(group)) is not None]
        interpolated = [self._interpolated(group, ends) for group, ends in narrowed]
        schemes = [scheme_of(self.plan.activations[group[0]]) for group, _ in narrowed]
        tries = [
            [dict.fromkeys(group, scheme.params(*ends)) for ends in tried]
            for (group, _), scheme, tried in zip(narrowed, schemes, interpolated, strict=True)
        ]
        found: list[tuple[Sequence[TensorId], Range]] = []
        for (group, _), tried, effects in zip(narrowed, interpolated, self.simulation.alone_on_all(tries), strict=True):
            least = min(effects)
            if least < _WORTH * effects[0]:
                found.append((group, tried[effects.index(least)]))
        return found

    def _on_few(self, group: Sequence[TensorId]) -> Range | None:
        """Return a range with which a group of tensors costs less alone on few samples; None where there is none."""
        params = self.plan.activations[group[0]]
        scheme, best = scheme_of(params), range_of(params)

        def effect_of(tried: Range) -> float:
            return self.simulation.alone(dict.fromkeys(group, scheme.params(*tried)), few=True)

        first = least = effect_of(best)
        observed = self.simulation.observed(group)
        if self._is_clipped(group) and (effect := effect_of(observed)) < least:
            best, least = observed, effect
        for end in (1, 0):
            if best[end]:
                best, least = _narrowed(best, end, least, effect_of)
        return best if least < _WORTH * first else None

    def _interpolated(self, group: Sequence[TensorId], found: Range) -> list[Range]:
        """Return ranges between the plan's and one that was found on a few samples."""
        first = range_of(self.plan.activations[group[0]])
        return [(first[0] + (found[0] - first[0]) * share, first[1] + (found[1] - first[1]) * share) for share in _INTERPOLATION]


def _narrowed(ends: Range, end: int, least: float, effect_of: Callable[[Range], float]) -> tuple[Range, float]:
    """Return the range, one end nearer to 0 or not, that costs least, and what it costs; `least`: what it costs as it is."""
    found = {1.0: least} | {share: effect_of(_cut(ends, end, share)) for share in _SHARES}
    middle = min(found, key=lambda share: found[share])
    found |= {share: effect_of(_cut(ends, end, share)) for share in (middle - _NEXT, middle + _NEXT) if share < 1}
    best = min(found, key=lambda share: found[share])
    return _cut(ends, end, best), found[best]


def _cut(ends: Range, end: int, share: float) -> Range:
    """Return a range of which one end has this share of its distance from 0."""
    return (ends[0], ends[1] * share) if end else (ends[0] * share, ends[1])


Range = tuple[float, float]


def range_of(params: QuantParams) -> Range:
    """Return the least and the greatest number that per-tensor parameters have."""
    scale, zero_point = float(params.scale), int(params.zero_point)
    return (params.qmin - zero_point) * scale, (params.qmax - zero_point) * scale


def scheme_of(params: QuantParams) -> QuantScheme:
    """Return how parameters like these follow from a range."""
    symmetric = int(params.zero_point) == 0 and params.qmin < 0
    return QuantScheme(dtype=params.dtype, symmetric=symmetric, power_of_two=bool(np.frexp(params.scale)[0] == 0.5))
