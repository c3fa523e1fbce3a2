"""What a step is: something that may bring a model's outputs nearer, as a value, and what it may ask. The referee decides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from ..choices import Choices
from ..planner import Planned, Planner
from ..recipe import Recipe
from ..sample_runs import SampleRuns

NEAR_DB = 3.0
"""Above what outputs must have: other samples may have as much less."""
ENOUGH_DB = 40.0
"""Outputs as near to the float model's have little to gain: what costs time is not worth it."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Evidence:
    """What makes models of choices, and what runs these on samples."""

    planner: Planner
    runs: SampleRuns


_MAX_PRICE_DB = 1.0
"""More no step must gain for its time that does not ask for it: who takes much for less than it is worth has not proposed it."""


class Step(ABC):
    """A value: two that are equal propose the same for the same model and samples."""

    name: ClassVar[str]
    """What the journal calls it, and all others of its kind."""

    below_db: float = inf
    """It is tried where the worst output's signal to noise ratio is less."""

    is_presumed: ClassVar[bool] = False
    """Whether it is kept unless the referee finds a loss: what it proposes was found best already, on more samples than are held
    back."""

    small_bytes: ClassVar[int] = 0
    """Of what measures activation by activation: with no more bytes of all that a float model has on a sample that takes seconds,
    and it is tried whatever outputs have."""

    @property
    def min_gain_db(self) -> float:
        """What it must gain in dB to be kept, though it takes no time: what gains less is not worth what it makes of a plan."""
        return 0.1

    def demanded_db(self, worth: float) -> float:
        """Return what it must gain in dB for time that is worth as much (`price.worth_db`)."""
        return max(self.min_gain_db, min(worth, _MAX_PRICE_DB))

    @property
    def below_db_if_large(self) -> float:
        """`below_db` of a large model, which is not asked at all what takes minutes."""
        return -inf if self.small_bytes else self.below_db

    @property
    def detail(self) -> str:
        """What tells it from others of its kind, in words; "" of the only one."""
        return ""

    @property
    def said(self) -> str:
        """Both."""
        return f"{self.name} {self.detail}".strip()

    @classmethod
    def of(cls, recipe: Recipe) -> Sequence[Step]:
        """Return those of the kind that a recipe wants tried, of which one can be kept; none of what no recipe asks for."""
        return ()

    @abstractmethod
    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return the model's choices with the step's own; None where it has none to make.

        Parameters
        ----------
        planned
            The model as the steps before this one leave it.
        evidence
            What samples tell of it.

        Raises
        ------
        NotImplementedError
            The referee cannot run the model here, rounded as it is: there is nothing to propose, either.
        """

    def again(self, planned: Planned, evidence: Evidence, before: Choices, chosen: Choices) -> Choices | None:
        """Return what it proposes once more, of evidence of all samples: numbers that are fitted to these.

        Parameters
        ----------
        planned, evidence
            See `propose`.
        before, chosen
            What it was given, and what it made of that, by some of the samples.
        """
        del before, chosen
        return self.propose(planned, evidence)


class FloatStep(Step):
    """Leaves tensors float. Which ones, the referee found a gain of: of other samples they are the same."""

    def again(self, planned: Planned, evidence: Evidence, before: Choices, chosen: Choices) -> Choices | None:
        """Return choices with the same float."""
        del evidence
        floats = {name: why for name, why in chosen.float_tensors.items() if name not in before.float_tensors}
        results = {name: why for name, why in chosen.float_results.items() if name not in before.float_results}
        return planned.choices.with_floats(floats, planned.plan).with_more(Choices(float_results=results)).uncorrected
