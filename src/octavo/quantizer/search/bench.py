"""Measuring one candidate: its steps fitted, its outputs scored by the referee, its cost modelled. It keeps no list of them.

Nothing is compiled, unless a function of the user's is to run it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ...compiler.compile import compile_model
from ...compiler.target_choice import TargetLike, resolve_target
from ...errors import QuantizationError, brief
from ...ir.graph import Model
from ...numerics.arrays import Samples
from ...profiling.model_profile import Profile
from ...runtime.executable import Executable
from ..compile import explain
from ..kept_samples import samples_of
from ..plan.plan import QuantizationPlan
from ..planner import Planned, Planner
from ..quantize import known_choices, split_of
from ..quantize_graph import planner_of, quantizing
from ..recipe import Recipe
from ..tune import MIN_SAMPLES, Split, Steps, Tuning, planned_plainly
from .order import Order, order_of
from .result import Score

Cost = Callable[[Executable], float]
Evaluate = Callable[[Executable], float]
BENCH_OPTIONS = ("profile", "target", "recipe", "data", "evaluate", "cost")
"""What a Bench is made of beside the model."""
_LOST_DB = -1000.0
"""Of outputs of which nothing is left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """What a candidate is; `cost` as a share of the float model's."""

    plan: QuantizationPlan
    score: Score
    cost: float


class Measures(Protocol):
    """Measures candidates, here or on other machines."""

    @property
    def width(self) -> int:
        """How many at a time."""
        ...

    def start(self, bench: Bench, /) -> None:
        """Take what candidates are measured with; before any is."""
        ...

    def begin(self, candidates: Sequence[Steps], /) -> None:
        """Begin to measure what is not being measured yet: each may be asked for later, or not."""
        ...

    def measure(self, steps: Steps, check: Callable[[], None], /) -> Measurement:
        """Return what a candidate is; `check`, called on the way, may raise."""
        ...


class Here:
    """Measures candidates in this process, one at a time."""

    width = 1

    def start(self, bench: Bench) -> None:
        """Take what candidates are measured with."""
        self._bench = bench

    def begin(self, candidates: Sequence[Steps]) -> None:
        """Do nothing ahead."""

    def measure(self, steps: Steps, check: Callable[[], None]) -> Measurement:
        """Return what a candidate is."""
        return self._bench.measure(steps, check)


@dataclass(kw_only=True, slots=True, eq=False)
class Bench:
    """Measures candidates of one model, as `search` was asked to.

    Parameters
    ----------
    model, profile, target, recipe, evaluate, cost
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
    cost: Cost | None
    plain: Planned = field(init=False)
    """The model without any step."""
    float_metric: float = field(init=False, default=1.0)
    tuning: Tuning = field(init=False)
    _planner: Planner = field(init=False)
    _split: Split = field(init=False)
    _float_cost: float = field(init=False, default=1.0)

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
        executable = self._executable(self.model, None)
        self._float_cost = self._cost_of(self.model, executable, None)
        if executable is not None and self.evaluate is not None:
            self.float_metric = _checked(self.evaluate(executable)) if float_metric is None else float_metric

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

    def measure(self, steps: Steps, check: Callable[[], None]) -> Measurement:
        """Fit a candidate to samples, and measure it; `check` is called on the way."""
        with quantizing():
            score = self.tuning.score(steps)
            check()
            quantized = self.tuning.finished(steps)
            self.tuning.forget(steps)
        check()
        executable = self._executable(quantized, self.target)
        check()
        metric = max(0.0, 1 - score.error) if score.agreement is None else score.agreement
        if executable is not None and self.evaluate is not None:
            metric = _checked(self.evaluate(executable))
        return Measurement(
            plan=quantized.plan,
            score=Score(metric=metric, sqnr_db=max(score.sqnr_db, _LOST_DB), ranks_by_metric=self.evaluate is not None),
            cost=self._cost_of(quantized, executable, self.target) / self._float_cost,
        )

    def _executable(self, model: Model, target: TargetLike) -> Executable | None:
        """Return what the user's functions are to run."""
        return None if self.evaluate is None and self.cost is None else compile_model(model, target=target)

    def _cost_of(self, model: Model, executable: Executable | None, target: TargetLike) -> float:
        """Return what running a model costs."""
        if executable is not None and self.cost is not None:
            return float(self.cost(executable))
        return explain(model if executable is None else executable, target=target).cycles


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
