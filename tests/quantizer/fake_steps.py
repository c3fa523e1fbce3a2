"""Steps and a referee that do and say what a test wants them to: each step gives one activation a range, and nothing is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

import numpy as np
import pytest

from octavo.ir.identity import TensorId
from octavo.quantizer import steps, tune
from octavo.quantizer.choices import Choices
from octavo.quantizer.plan.plan import QuantizationPlan
from octavo.quantizer.recipe import Recipe
from octavo.quantizer.referee import Score

WIDE = 1000.0
"""Ends of ranges that steps choose begin here: what comes on top says to how many samples they were fitted."""


@dataclass(frozen=True, kw_only=True)
class FakeStep:
    """It widens one activation's range, or has nothing to propose."""

    name: str
    below_db: float = inf
    min_gain_db: float = 0.1
    is_presumed: ClassVar[bool] = False
    small_bytes: ClassVar[int] = 0
    has_proposal: bool = True
    shut_out_by: str = ""
    """Behind this one it has nothing to propose."""
    detail: str = ""
    offered: ClassVar[Sequence[FakeStep]] = ()
    seen: ClassVar[list[tuple[str, frozenset[str], int]]] = []
    """What steps were asked: each with those applied before it, and the number of samples."""
    also: ClassVar[Callable[[], object]] = lambda: None
    """What else happens when a step is asked."""

    @property
    def said(self) -> str:
        return self.name

    @property
    def below_db_if_large(self) -> float:
        return -inf if self.small_bytes else self.below_db

    def demanded_db(self, worth: float) -> float:
        return max(self.min_gain_db, min(worth, 1.0))

    @classmethod
    def of(cls, recipe: Recipe) -> Sequence[FakeStep]:
        return cls.offered

    def propose(self, planned: Any, evidence: Any) -> Choices | None:
        count = len(evidence.runs.samples)
        FakeStep.also()
        FakeStep.seen.append((self.name, taken(planned.plan), count))
        has_proposal = self.has_proposal and self.shut_out_by not in taken(planned.plan)
        ranges = {TensorId(self.name): (0.0, WIDE + count)}
        return planned.choices.with_more(Choices(ranges=ranges)) if has_proposal else None

    def again(self, planned: Any, evidence: Any, before: Choices, chosen: Choices) -> Choices | None:
        assert before.ranges.keys() | ({TensorId(self.name)} if self.has_proposal else set()) == chosen.ranges.keys()
        return self.propose(planned, evidence)


class AllFloat(FakeStep):
    """Leaves all that is quantized float."""

    def propose(self, planned: Any, evidence: Any) -> Choices | None:
        return planned.choices.with_more(Choices(float_tensors=dict.fromkeys(planned.plan.activations, "it wants that")))

    def again(self, planned: Any, evidence: Any, before: Choices, chosen: Choices) -> Choices | None:
        return self.propose(planned, evidence)


class First(FakeStep):
    """One kind."""


class Second(FakeStep):
    """Another."""


class Last(FakeStep):
    """The kind that is applied last."""


def taken(plan: QuantizationPlan) -> frozenset[str]:
    """Return the names of the steps that a plan has."""
    return frozenset(str(name) for name, params in plan.activations.items() if params.scale * 255 > WIDE - 1)


class FakeReferee:
    """Has a list of errors, one a sample, for what a plan is: the same on each fold, or a list for each."""

    errors_of: ClassVar[Callable[[QuantizationPlan], Sequence[float]]]
    promised: ClassVar[Callable[[QuantizationPlan], float]] = staticmethod(lambda plan: 10.0 ** -len(taken(plan)))
    """The error where activations alone are rounded."""
    scored: ClassVar[list[QuantizationPlan]] = []
    samples: ClassVar[int] = 0
    folds: ClassVar[int] = 0

    def __init__(self, program: Any, samples: Sequence[Any]) -> None:
        self.program = program
        type(self).samples = len(samples)
        self.fold = type(self).folds % 3
        type(self).folds += 1

    def score(self, plan: QuantizationPlan) -> Score:
        self.scored.append(plan)
        errors = np.array(type(self).errors_of(plan), np.float64)
        return Score(errors=np.atleast_2d(errors if errors.ndim == 1 else errors[self.fold]))

    def score_of_activations(self, plan: QuantizationPlan) -> Score:
        """Say that each step may gain much, unless a test knows better."""
        return Score(errors=np.full((1, type(self).samples), type(self).promised(plan)))


def with_referee(monkeypatch: pytest.MonkeyPatch, errors_of: Callable[[QuantizationPlan], Sequence[float]]) -> None:
    """Let plans have these errors on the samples held back."""
    monkeypatch.setattr(FakeReferee, "errors_of", staticmethod(errors_of), raising=False)
    monkeypatch.setattr(FakeReferee, "scored", [])
    monkeypatch.setattr(tune, "Referee", FakeReferee)
    monkeypatch.setattr(FakeReferee, "folds", 0)


def with_fakes(
    monkeypatch: pytest.MonkeyPatch,
    errors_of: Callable[[frozenset[str]], Sequence[float]],
    *,
    first: Sequence[FakeStep] = (),
    second: Sequence[FakeStep] = (),
    last: Sequence[FakeStep] = (),
) -> None:
    """Let these steps be all that there are, and plans have errors by the names of the steps in them."""
    order = (First, Second, Last)
    for kind, offered in zip(order, (first, second, last), strict=True):
        monkeypatch.setattr(kind, "offered", offered, raising=False)
    monkeypatch.setattr(FakeStep, "seen", [])
    monkeypatch.setattr(steps, "_ORDER", list(order))
    with_referee(monkeypatch, lambda plan: errors_of(taken(plan)))


class Clock:
    """Stands still, but for what steps take."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    @contextmanager
    def each_step_takes(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> Iterator[None]:
        def pass_by() -> None:
            self.now += seconds

        with monkeypatch.context() as context:
            for module in ("octavo.quantizer.tune", "octavo.quantizer.quantize"):
                context.setattr(f"{module}.time", self)
            context.setattr(FakeStep, "also", staticmethod(pass_by))
            yield
