"""Measuring one candidate: its steps fitted, its outputs scored by the referee, its cost modelled. It keeps no list of them.

Nothing is compiled, unless a function of the user's is to run it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ...compiler.compile import compile_model
from ...compiler.target_choice import TargetLike, resolve_target
from ...errors import QuantizationError, brief
from ...ir.graph import Model
from ...numerics.arrays import Samples
from ...profiling.model_profile import Profile
from ...runtime.executable import Executable
from ..compile import explain
from ..kept_samples import samples_of
from ..planner import Planned, Planner
from ..quantize import known_choices, split_of
from ..quantize_graph import planner_of, quantizing
from ..recipe import Recipe
from ..steps import FloatTensors
from ..tune import MIN_SAMPLES, Split, Steps, Tuning, planned_plainly
from .order import Order, order_of
from .result import Candidate, Score

Evaluate = Callable[[Executable], float]
_LOST_DB = -1000.0
"""Of outputs of which nothing is left."""


@dataclass(kw_only=True, slots=True, eq=False)
class Bench:
    """Measures candidates of one model, as `search` was asked to.

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
    plain: Planned = field(init=False)
    """The model without any step."""
    float_metric: float | None = field(init=False, default=None)
    """The float model's, once it was run."""
    tuning: Tuning = field(init=False)
    _planner: Planner = field(init=False)
    _split: Split = field(init=False)
    _float_cycles: float = field(init=False)

    def __post_init__(self) -> None:
        """Plan the model without any step."""
        chosen, samples = resolve_target(self.target), samples_of(self.model, self.profile)
        compared = self.data or (samples if len(samples) < MIN_SAMPLES else None)
        with quantizing():
            self._planner = planner_of(self.model, self.profile, chosen, self.recipe)
            found = split_of(chosen, self.profile, samples, self.recipe, ThreadPoolExecutor(1), compared)
            assert found is not None, "there is something to compare on"
            self._split = found
            known = known_choices(chosen, self.model, self.profile, self.recipe)
            self.plain = planned_plainly(self._planner, found.every, changes=known)

    @property
    def options(self) -> dict[str, Any]:
        """What it was made of besides the model."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.init and each.name != "model"}

    def start(self, float_metric: float | None = None) -> None:
        """Build the referee, and run the float model: before anything is measured. Its metric is found where it is not known.

        Raises
        ------
        QuantizationError
            TVM's virtual machine alone can run the model.
        """
        try:
            with quantizing():
                self.tuning = Tuning(planner=self._planner, split=self._split, plain=self.plain)
        except NotImplementedError as error:
            raise QuantizationError(f"a search cannot score this model here: {error}") from error
        self._float_cycles = explain(self.model).cycles
        self.float_metric = float_metric
        if float_metric is None:
            self.float_metric = 1.0 if self.evaluate is None else _checked(self.evaluate(compile_model(self.model)))

    def best(self, deadline: float) -> Steps:
        """Return the steps that the loop keeps, of those that the recipe wants tried.

        Parameters
        ----------
        deadline
            See `Split`.
        """
        self.tuning.split = replace(self.tuning.split, deadline=deadline)
        with quantizing():
            return self.tuning.best()

    def order(self, steps: Steps) -> Order:
        """Return the activations of the model with some steps by what their staying float brings for what it costs."""
        with quantizing():
            planned = self.tuning.planned(steps)
            exact = self._planner.form(planned.choices.equalization).exact
            return order_of(self.tuning.referees[0], planned.plan, exact, explain(planned.quantized, target=self.target))

    def measure(self, steps: Steps, check: Callable[[], None]) -> Candidate:
        """Fit a candidate to samples, and measure it; `check` is called on the way. It has no name yet."""
        with quantizing():
            score = self.tuning.score(steps)
            check()
            quantized = self.tuning.finished(steps)
            self.tuning.forget(steps)
        check()
        metric = max(0.0, 1 - score.error) if score.agreement is None else score.agreement
        if self.evaluate is not None:
            executable = compile_model(quantized, target=self.target)
            check()
            metric = _checked(self.evaluate(executable))
        return Candidate(
            name="",
            steps=said(steps),
            float_tensors=next((each.names for each in steps if isinstance(each, FloatTensors)), ()),
            plan=quantized.plan,
            path=None,
            score=Score(metric=metric, sqnr_db=max(score.sqnr_db, _LOST_DB), ranks_by_metric=self.evaluate is not None),
            cost=explain(quantized, target=self.target).cycles / self._float_cycles,
        )


class Measuring:
    """Measures candidates in this process, one at a time; another one may do so elsewhere, several at a time."""

    width = 1
    """How many at a time."""

    def start(self, bench: Bench) -> None:
        """Take what candidates are measured with; before any is."""
        self.bench = bench

    def begin(self, candidates: Sequence[Steps]) -> None:
        """Begin to measure what is not being measured yet, where that goes on by itself: each may be asked for later, or not."""

    def measure(self, steps: Steps, check: Callable[[], None]) -> Candidate:
        """Return what a candidate is; `check`, called on the way, may raise."""
        return self.bench.measure(steps, check)


def said(steps: Steps) -> tuple[str, ...]:
    """Return what a candidate is known by."""
    return tuple(step.said for step in steps)


def _checked(value: Any) -> float:
    try:
        number = float(value)  # of arrays and tensors of one element, too
    except (TypeError, ValueError):
        raise QuantizationError(
            f"evaluate must return one number, greater for a better model; it returned {brief(value)}"
        ) from None
    if not math.isfinite(number):
        raise QuantizationError(f"evaluate must return a finite number, greater for a better model; it returned {number}")
    return number
