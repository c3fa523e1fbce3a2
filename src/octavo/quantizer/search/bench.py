"""Measuring one candidate: its steps fitted, its outputs scored by the referee, its cost modelled. It keeps no list of them.

Nothing is compiled, unless a function of the user's is to run it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ...compiler.compile import compile_model
from ...compiler.target_choice import TargetLike, resolve_target
from ...errors import QuantizationError, brief
from ...ir.graph import Model
from ...ir.graph.dataflow import DataflowView
from ...ir.identity import TensorId
from ...numerics.arrays import Samples
from ...profiling import Profile, samples_of
from ...runtime.executable import Executable
from ..compile import explain
from ..planner import Planned
from ..price import cycles_in_float
from ..quantize import known_choices, split_of
from ..quantize_graph import planner_of, quantizing
from ..recipe import Recipe
from ..steps import FloatTensors
from ..tune import Steps, Tuning, planned_plainly
from .result import BY_FUNCTION, Candidate

Evaluate = Callable[[Executable], float]
_LOST_DB = -1000.0
"""Of outputs of which nothing is left."""


@dataclass(kw_only=True, eq=False)
class Bench:
    """Measures candidates of one model in this process, one at a time; another kind may do so elsewhere, several at a time.

    Parameters
    ----------
    model, profile, target, recipe, evaluate
        As `search` takes them.
    data
        On which candidates are compared with the float model; None for samples of the profile that steps are not fitted to.
    """

    model: Model
    profile: Profile
    target: TargetLike
    recipe: Recipe
    data: Samples | None
    evaluate: Evaluate | None
    width: int = field(init=False, default=1)
    """How many candidates are measured at a time."""
    plain: Planned = field(init=False)
    """The model without any step."""
    float_metric: float | None = field(init=False, default=None)
    """The float model's, once it was run."""
    tuning: Tuning = field(init=False)
    _float_cycles: float = field(init=False)

    def __post_init__(self) -> None:
        """Plan the model without any step."""
        chosen, samples = resolve_target(self.target), samples_of(self.model, self.profile)
        with quantizing():
            self._planner = planner_of(self.model, self.profile, chosen, self.recipe)
            self._split = split_of(self._planner, self.profile, samples, compared=self.data)
            known = known_choices(self._planner, self.profile)
            self.plain = planned_plainly(self._planner, self._split.every, changes=known)

    @property
    def options(self) -> dict[str, Any]:
        """What it was made of besides the model."""
        return {each.name: getattr(self, each.name) for each in fields(Bench) if each.init and each.name != "model"}

    @property
    def header(self) -> dict[str, Any]:
        """What a search with it is of: one with another header is another search."""
        return {
            "fingerprint": self.model.fingerprint,
            "recipe": repr(replace(self.recipe, min_sqnr=None)),
            "profile": self.plain.quantized.fingerprint,
            "samples": len(self.data or ()),
            "metric": "agreement" if self.evaluate is None else BY_FUNCTION,
        }

    def start(self, float_metric: float | None = None) -> None:
        """Build the referee, and run the float model: before anything is measured. Its metric is found where it is not known.

        Raises
        ------
        QuantizationError
            TVM's virtual machine alone can run the model.
        """
        try:
            with quantizing():
                self.tuning = Tuning(self._planner, self._split, self.plain)
        except NotImplementedError as error:
            raise QuantizationError(f"a search cannot score this model here: {error}") from error
        self._float_cycles = explain(self.model).cycles
        if float_metric is None:
            float_metric = 1.0 if self.evaluate is None else _checked(self.evaluate(compile_model(self.model)))
        self.float_metric = float_metric

    def best(self, deadline: float) -> Steps:
        """Return the steps that the loop keeps, of those that the recipe wants tried until then, by `time.monotonic`."""
        self.tuning.split = replace(self.tuning.split, deadline=deadline)
        with quantizing():
            return self.tuning.best()

    def order(self, steps: Steps) -> dict[TensorId, float]:
        """Return what each activation's staying float brings a model with some steps, most for what it costs first.

        That is power of the error at the worst output, as a share of its power: what rounding it alone, and the weights beside
        it, makes.
        """
        with quantizing():
            plan, referee = self.tuning.planned(steps).plan, self.tuning.referees[0]
            rounding = referee.rounding(plan)
            gains = referee.effects(rounding)
            of_weights = referee.layer_effects(rounding, [layer.output for layer in plan.layers if layer.weight is not None])
        costs = cycles_in_float(DataflowView(self._planner.simple.module["main"]), plan, gains)
        for layer in plan.layers:
            for name in gains.keys() & layer.inputs:
                gains[name] += of_weights.get(layer.output, 0.0)
        ordered = sorted(gains, key=lambda name: (-gains[name] / max(sum(costs[name].values()), 1.0), str(name)))
        return {name: gains[name] for name in ordered}

    def begin(self, candidates: Sequence[Steps]) -> None:
        """Begin to measure what is not being measured yet, where that goes on by itself: each may be asked for later, or not."""

    def measure(self, steps: Steps) -> Candidate:
        """Fit a candidate to samples, and measure it; it has no name yet."""
        with quantizing():
            score, quantized = self.tuning.score(steps), self.tuning.finished(steps)
            self.tuning.forget(steps)
        metric = max(0.0, 1 - score.error) if score.agreement is None else score.agreement
        if self.evaluate is not None:
            metric = _checked(self.evaluate(compile_model(quantized, target=self.target)))
        return Candidate(
            steps=said(steps),
            float_tensors=next((each.names for each in steps if isinstance(each, FloatTensors)), ()),
            plan=quantized.plan,
            metric=metric,
            sqnr_db=max(score.sqnr_db, _LOST_DB),
            cost=explain(quantized, target=self.target).cycles / self._float_cycles,
        )


def said(steps: Steps) -> tuple[str, ...]:
    """Return what a candidate is known by."""
    return tuple(step.said for step in steps)


def _checked(value: Any) -> float:
    try:
        number = float(value)  # of arrays and tensors of one element, too
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise QuantizationError(f"evaluate must return one finite number, greater for a better model; it returned {brief(value)}")
    return number
