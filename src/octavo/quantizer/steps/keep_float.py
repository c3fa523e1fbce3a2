"""Leave activations float whose rounding costs most, where outputs gain more by it than the time that it takes is worth.

Those that products quantize per row when run are among them: a spectrum's rows have values whose logarithm is taken behind it.
Those that a function alone reads are computed in the kernel of the product that makes them: nothing else becomes float for them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

from ...compiler.explanation import model_cycles
from ...ir.graph.dataflow import DataflowView
from ...ir.identity import TensorId
from ..choices import Choices
from ..plan import QuantizationPlan
from ..planner import Planned
from ..price import cycles_in_float, function_cycles, slower
from ..recipe import Recipe
from ..referee import Referee
from ..referee.rounding import Rounding
from ..referee.score import USELESS, in_db, said_alone
from .step import ENOUGH_DB, NEAR_DB, Evidence, FloatStep

_MIN_GAIN_DB = 1.0
"""What float activations must gain, though they take no time."""
_PRICE = 2.0
"""What they must gain besides: so often what outputs have more than they must, in dB, for as much time again as all takes in
integers. Outputs that have just what they must gain by all; the more they have, the less time is more of it worth."""
_MAX_PRICE_DB = 10.0
"""More nobody must gain for as much time again, at that rate, where outputs have what they must: other steps ask for no more."""
_MUCH = 0.4
"""Share of the time for which they must gain just that where outputs have what they must, and the more for each, the more it is:
nobody minds a little, and with twice the time a model is hardly worth quantizing."""
_SURE = 2.0
"""Standard errors by which outputs that have what they must are to gain."""
_NEAREST_DB = 60.0
"""To come nearer is worth no time to outputs that have what they must and are not near enough; to others ENOUGH_DB says so."""
_STEPS_DB = (3.0, 6.0, 12.0, 24.0)
"""By how much what stays float is to bring outputs nearer, or nearer than they must be: what is tried."""
_MAX_FLOAT = 0.5
"""Share of the activations that may stay float: with more it is no quantized model."""
_SHARE = 0.05
"""Of the model's modelled time: more than that no functions may take."""
_INSTANT = 1e-3
"""Share of a model's time that differs between no two activations: some take next to none."""
_TRIALS = 4
"""Of what may gain most, by effects and times of single groups: to plan one and to score that takes longest."""
_MIN_SHARE = 0.002
"""Of the error that all such roundings make one by one: what makes less is not worth its time."""
_NO_ERROR = 1e-30
_MIN_EFFECT = 1e-4
"""Of the worst output's power: what all of them make together; outputs within 40 dB have little to gain."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeepFloat(FloatStep):
    """Float activations, as many as gain most beyond what their time is worth."""

    name: ClassVar = "keep float"
    small_bytes: ClassVar = 2**24
    goal_db: float
    below_db: float

    @property
    def min_gain_db(self) -> float:
        """What is worth an activation of four bytes."""
        return _MIN_GAIN_DB

    @property
    def below_db_if_large(self) -> float:
        """What outputs must have is worth minutes."""
        return self.goal_db

    @classmethod
    def of(cls, recipe: Recipe) -> list[KeepFloat]:
        """Return it where outputs must have so much."""
        goal = recipe.min_sqnr
        return [] if goal is None or not recipe.corrects else [cls(goal_db=goal, below_db=goal + NEAR_DB)]

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with these float; None where nothing gains enough.

        Outputs that have what they must are not asked where another's hardware has its own times, or somebody speaks of single
        tensors.
        """
        plan, choices, planner = planned.plan, planned.choices.uncorrected, evidence.planner
        referee = evidence.runs.referee(plan)
        rounding = referee.rounding(plan)
        score, of_weights_alone = referee.scores_of([rounding, rounding.only(layers=rounding.layers)], few=True)
        own, of_weights = score.error, of_weights_alone.error
        has_enough, is_settled = in_db(own) >= self.goal_db, planner.chosen.backends or not planner.recipe.may_leave_float
        if (has_enough and is_settled) or in_db(own) >= ENOUGH_DB or in_db(of_weights) < in_db(own) + _MIN_GAIN_DB:
            return None
        view, least, best = DataflowView(planner.simple.module["main"]), 0.0, None
        groups = _groups(plan, referee, rounding, view)
        for few in (False,) if has_enough else (False, True):
            for trial in self._chosen(groups, own, of_weights, few=few) if best is None else ():
                found = choices.with_floats({name: said_alone(each.effect) for each in trial.groups for name in each.names}, plan)
                other = planner.planned(found).plan
                asked = evidence.runs.referee(other)  # what others are made of may be rounded where nothing was
                trial_score = asked.score_of(asked.rounding(other), few=True)
                left = trial_score.error
                # Where weights make no more error, no product is integer that counts.
                if own < USELESS and (other.lost_products(plan) or left == 0 < of_weights):
                    continue
                gain = self._gain(own, left, slower(view, plan, other))
                # Else which few samples are asked would decide, of outputs that need nothing, whether the model takes longer.
                sure = _SURE * trial_score.gain_over(score).standard_error if has_enough else 0.0
                if gain >= max(least, sure):
                    least, best = gain, found
        return best

    def _gain(self, own: float, left: float, time: float) -> float:
        """Return what outputs with an error gain by less of it, in dB, beyond what the time is worth, in shares of the model's.

        What brings them up to what they must have is worth any, and what brings them nearer than near enough none.
        """
        nearest = _NEAREST_DB if in_db(own) >= self.goal_db else ENOUGH_DB
        before, after = in_db(own), min(in_db(left), nearest)
        price = min(_PRICE * max(before - self.goal_db, 0.0), _MAX_PRICE_DB) * max(time, 0.0) / _MUCH
        if before < self.goal_db < after:
            price = _PRICE * (after - self.goal_db) ** 2 / (after - before) / 2  # on average on the way
        return (0.0 if after == before else after - before) - _MIN_GAIN_DB - price * max(time, 0.0)

    def _chosen(self, groups: Collection[_Group], own: float, of_weights: float, *, few: bool) -> list[_Trial]:
        """Return what is tried: as few groups as are expected to bring outputs so much nearer, those that cost most first.

        Where outputs have what they must, those that cost most for their time come first, too, and as many as are expected to
        gain most. Or as few as make so much of the errors that all make one by one, in both orders: what picks and sorts is off
        as far for one rounding as for many, and such errors don't add up to what is expected.
        """
        start, has_enough = min(own, 10 ** (-self.goal_db / 10)), in_db(own) >= self.goal_db
        ranks, found = [_Group.by_effect, *([_Group.by_time] if has_enough or few else ())], dict[frozenset[_Group], _Trial]()
        for rank in ranks if groups else ():
            trials = _trials(sorted(groups, key=rank), own, of_weights)
            lefts = [each.share if few else each.left / start for each in trials]
            wanted = (10 ** (-step / 10) for step in _STEPS_DB)
            chosen = [trials[next((place for place, left in enumerate(lefts) if left <= most), -1)] for most in wanted]
            chosen += [max(trials, key=lambda each: self._gain(own, each.left, each.time))] if has_enough else []
            found |= {frozenset(each.groups): each for each in chosen}
        return sorted(found.values(), key=lambda each: -self._gain(own, each.left, each.time))[:_TRIALS]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Group:
    """Activations that have the same parameters: as good as alike.

    Parameters
    ----------
    names
        Of these.
    effect
        The error of the worst output, in shares of its power, if they are rounded and nothing else is.
    ops
        Those that become float with them, by their results, each with what it takes more, in shares of the model's time.
    """

    names: tuple[TensorId, ...]
    effect: float
    ops: tuple[tuple[TensorId, float], ...]

    def by_effect(self) -> tuple[Any, ...]:
        """Return what sorts those first that cost outputs most."""
        return -self.effect, self.names

    def by_time(self) -> tuple[Any, ...]:
        """Return what sorts those first that cost outputs most for their time."""
        return -self.effect / (sum(time for _, time in self.ops) + _INSTANT), self.names


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trial:
    """Groups that could stay float, and what is expected then.

    Parameters
    ----------
    left
        The error of the outputs.
    share
        Of the errors that all groups make one by one, what the others make.
    time
        What it takes more, in shares of the model's.
    """

    groups: tuple[_Group, ...]
    left: float
    share: float
    time: float


def _groups(plan: QuantizationPlan, referee: Referee, rounding: Rounding, view: DataflowView) -> list[_Group]:
    """Return the activations that are rounded: what is moved or joined is float with what it is made of, or not at all."""
    sharing, rounded = {name: group for group in plan.shared for name in group}, sorted(rounding.names)
    found = dict.fromkeys(tuple(each for each in sharing.get(name, (name,)) if each in rounding.names) for name in rounded)
    cycles, total = cycles_in_float(view, plan, rounded), model_cycles(view)
    ops = {names: {op: more / total for name in names for op, more in cycles[name].items()} for names in found}
    effects = referee.group_effects(rounding, found)
    return [_Group(names=names, effect=effects[names], ops=tuple(ops[names].items())) for names in found]


def _trials(order: Sequence[_Group], own: float, of_weights: float) -> list[_Trial]:
    """Return ever more groups, as ordered: the first, and no more than may stay float.

    Errors add up; where they don't, since each alone ruins the outputs, the others still do.
    """
    rests = [*accumulate((each.effect for each in reversed(order)), initial=0.0)][::-1]
    most, found = _MAX_FLOAT * sum(len(each.names) for each in order), list[_Trial]()
    count, gone, ops = 0, 0.0, dict[TensorId, float]()
    for place, each in enumerate(order, 1):
        count, gone, ops = count + len(each.names), gone + each.effect, {**ops, **dict(each.ops)}
        if found and count > most:
            break
        left = min(own, max(own - gone, of_weights + rests[place]))
        share = rests[place] / max(rests[0], _NO_ERROR)
        found.append(_Trial(groups=tuple(order[:place]), left=left, share=share, time=sum(ops.values())))
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class FuseFunctions(FloatStep):
    """Products' results that are not rounded before a function of them: else a table gives 8 bits of these 8 bits."""

    name: ClassVar = "fuse functions"

    @classmethod
    def of(cls, recipe: Recipe) -> list[FuseFunctions]:
        """Return it, unless bare rounding is wanted."""
        return [cls()] if recipe.corrects else []

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with them; where an op would become float for it, what that reads stays rounded."""
        planner, named = evidence.planner, planned.named
        supports = {layer.output: planner.support(layer) for layer in planned.plan.layers if layer.output not in named}
        able = [name for name, support in supports.items() if support is not None and support.float_function]
        chosen = _worth_their_time(planned, able, evidence) if able else {}
        while chosen:
            found = Choices(float_tensors=chosen).with_more(planned.choices.uncorrected)
            kept = {layer.output for layer in planner.planned(found).plan.layers}
            gone = {name for layer in planned.plan.layers if layer.output not in kept for name in (*layer.inputs, layer.output)}
            if not gone:
                return found
            left = {name: reason for name, reason in chosen.items() if name not in gone}
            chosen = left if len(left) < len(chosen) else {}
        return None


def _worth_their_time(planned: Planned, able: Collection[TensorId], evidence: Evidence) -> dict[TensorId, str]:
    """Return which of these products' results are best not rounded before a function of them, each with the reason."""
    plan, floats = planned.plan, evidence.planner.form(planned.choices.equalization)
    view = DataflowView(floats.exact.module["main"])
    cycles = function_cycles(view, plan.layers, [name for name in able if name in plan.activations])
    if not cycles:
        return {}
    referee = evidence.runs.referee(plan)
    effects = referee.effects(referee.rounding(plan), list(cycles))
    total = sum(min(effect, 1.0) for effect in effects.values())
    if total < _MIN_EFFECT:
        return {}
    room = _SHARE * model_cycles(view)
    found: dict[TensorId, str] = {}
    for name in sorted(cycles, key=lambda name: (-effects[name] / cycles[name], name)):
        if cycles[name] <= room and effects[name] >= _MIN_SHARE * total:
            room -= cycles[name]
            found[name] = said_alone(effects[name])
    return found
