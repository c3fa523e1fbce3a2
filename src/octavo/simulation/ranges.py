"""Ranges of activations with which rounding costs the outputs least: chosen by simulation. Nothing stays float here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..identity import TensorId
from ..quantize import QuantizationPlan
from .schemes import Range, range_of, scheme_of
from .simulation import Effects, Simulation

_SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
"""Of one end of a range: what is tried in its place. Less would clip what other samples, or a recurrent state, may need."""
_PATIENCE = 4
"""So many worse ones in a row end the trial of an end: what is clipped costs much at first, where few samples have it all."""
_WAYS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of the way from a plan's range to the one that a few samples found: what is tried on all of them."""
_MIN_SHARE = 0.02
"""A tensor whose rounding makes less than this share of the error keeps its range."""
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

    def run(self) -> tuple[dict[TensorId, Range], Effects]:
        """Return other ranges of the tensors whose rounding costs most, and what roundings do with them.

        Each must be better alone and with all the rest: what clips is no noise, and adds up otherwise.
        """
        groups = {member: group for group in self.plan.shared for member in group}
        effects = dict(self.effects.activations)
        least = _MIN_SHARE * sum(min(effect, 1.0) for effect in (*effects.values(), *self.effects.weights.values()))
        params, noise = dict(self.plan.activations), self.effects.together
        found: dict[TensorId, Range] = {}
        seen: set[TensorId] = set()
        for name in sorted(effects, key=lambda name: (-effects[name], name)):
            if effects[name] < least or name in seen:
                continue
            group = [each for each in groups.get(name, (name,)) if each in effects]
            seen.update(group)
            better = self._range(group)
            if better is None:
                continue
            tried = dict.fromkeys(group, scheme_of(params[name]).params(*better))
            together = self.simulation.together({**params, **tried}, self.simulation.weights)
            if together < noise:
                noise = together
                params |= tried
                found |= dict.fromkeys(groups.get(name, (name,)), better)
                effects |= {each: self.simulation.alone({each: tried[each]}) for each in group}
        return found, replace(self.effects, activations=effects, together=noise)

    def _range(self, group: Sequence[TensorId]) -> Range | None:
        """Return a range with which a group of tensors costs less alone; None where there is none."""
        params = self.plan.activations[group[0]]
        scheme = scheme_of(params)

        def effect_of(tried: Range) -> float:
            return self.simulation.alone(dict.fromkeys(group, scheme.params(*tried)))

        best = range_of(params)
        first = least = effect_of(best)
        observed = self.simulation.observed(group)
        if (observed[0] < best[0] or observed[1] > best[1]) and (effect := effect_of(observed)) < least:
            best, least = observed, effect
        for end in (1, 0):
            worse, ends = 0, best
            for share in _SHARES if ends[end] else ():
                tried = (ends[0], ends[1] * share) if end else (ends[0] * share, ends[1])
                effect = effect_of(tried)
                if effect < least:
                    best, least, worse = tried, effect, 0
                else:
                    worse += 1
                if worse == _PATIENCE:
                    break
        return self._range_of_all(group, best) if least < _WORTH * first else None

    def _range_of_all(self, group: Sequence[TensorId], found: Range) -> Range | None:
        """Return the range, on the way to one that was found on a few samples, that costs all of them least."""
        params = self.plan.activations[group[0]]
        scheme, first = scheme_of(params), range_of(params)
        ways = [(first[0] + (found[0] - first[0]) * way, first[1] + (found[1] - first[1]) * way) for way in _WAYS]
        effects = self.simulation.alone_on_all([dict.fromkeys(group, scheme.params(*each)) for each in ways])
        least = min(effects)
        return ways[effects.index(least)] if least < _WORTH * effects[0] else None
