"""What a search found: candidates, each a plan, and which of them are worth having."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import QuantizationError
from ...ir.identity import TensorId
from ..choices import Choices
from ..plan.plan import QuantizationPlan
from .scoring import Score


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """What makes a candidate differ from plain quantization.

    Parameters
    ----------
    range_estimator
        In place of the recipe's; None for that.
    corrects
        Whether weights and biases are corrected as the recipe says.
    keeps_min_sqnr
        Whether `quantize` does for the recipe's `min_sqnr` what it takes.
    choices
        Ranges, and activations that stay float.
    """

    range_estimator: str | None = None
    corrects: bool = True
    keeps_min_sqnr: bool = False
    choices: Choices = field(default_factory=Choices)

    def to_json(self) -> dict[str, Any]:
        """Return plain values: the same for the same change."""
        return {
            "range_estimator": self.range_estimator,
            "corrects": self.corrects,
            "keeps_min_sqnr": self.keeps_min_sqnr,
            "ranges": {str(name): list(ends) for name, ends in sorted(self.choices.ranges.items())},
            "float_tensors": {str(name): why for name, why in sorted(self.choices.float_tensors.items())},
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Change:
        """Return what `to_json` made plain."""
        ranges = {TensorId(name): (float(low), float(high)) for name, (low, high) in value["ranges"].items()}
        floats = {TensorId(name): str(why) for name, why in value["float_tensors"].items()}
        return Change(
            range_estimator=value["range_estimator"],
            corrects=value["corrects"],
            keeps_min_sqnr=value["keeps_min_sqnr"],
            choices=Choices(ranges=ranges, float_tensors=floats),
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Candidate:
    """One way to quantize the model.

    Parameters
    ----------
    name
        "c000" and on, in the order in which they were tried.
    change
        What makes it differ from plain quantization.
    plan
        All that was decided: ``octavo.quantize(model, plan=candidate.plan)`` is the model.
    path
        Its file, where the search has a folder.
    score
        None where the search was interrupted before any candidate was measured.
    cost
        Of running it, as a share of what the float model costs.
    """

    name: str
    change: Change
    plan: QuantizationPlan
    path: Path | None
    score: Score | None
    cost: float

    @property
    def float_tensors(self) -> tuple[TensorId, ...]:
        """The activations that stay float for the sake of accuracy."""
        return tuple(self.change.choices.float_tensors)

    @property
    def rank(self) -> tuple[float, float]:
        """Greater for the more accurate one."""
        return (-math.inf, -math.inf) if self.score is None else self.score.rank


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SearchResult:
    """What a search found.

    Parameters
    ----------
    candidates
        All that were tried, in that order; one at least.
    float_metric
        What the float model is worth; None where the search was interrupted before that was known.
    max_drop
        By how much less than that a candidate's metric may be; None for any.
    finished
        Whether the search came to its end by itself: it was not interrupted, nor did its time run out.
    min_sqnr
        What a candidate's `Score.sqnr_db` must be besides; None for any.
    cut
        What was left out for want of time, in words.
    """

    candidates: tuple[Candidate, ...]
    float_metric: float | None
    max_drop: float | None
    finished: bool
    min_sqnr: float | None = None
    cut: tuple[str, ...] = ()

    @property
    def front(self) -> tuple[Candidate, ...]:
        """The candidates than which no other is both cheaper and as accurate, the cheapest first."""
        found: list[Candidate] = []
        for candidate in sorted(self.candidates, key=lambda each: (each.cost, [-value for value in each.rank], each.name)):
            if candidate.score is not None and (not found or candidate.rank > found[-1].rank):
                found.append(candidate)
        return tuple(found)

    @property
    def best(self) -> Candidate:
        """The cheapest candidate within `max_drop`; where there is none, or no such limit, the most accurate one."""
        front = self.front
        if not front:
            return self.candidates[0]
        return next((each for each in front if self.is_enough(each)), front[-1])

    def is_enough(self, candidate: Candidate) -> bool:
        """Return whether a candidate is within `max_drop`, with `min_sqnr`; False where there is no `max_drop`."""
        drop = self.drop(candidate)
        if self.min_sqnr is not None and candidate.score is not None and candidate.score.sqnr_db < self.min_sqnr:
            return False
        return self.max_drop is not None and drop is not None and drop <= self.max_drop

    def drop(self, candidate: Candidate) -> float | None:
        """Return by how much less a candidate's metric is than the float model's; None where one of them is unknown."""
        return None if candidate.score is None or self.float_metric is None else self.float_metric - candidate.score.metric

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        front, best = self.front, self.best
        return {
            "float_metric": self.float_metric,
            "max_drop": self.max_drop,
            "min_sqnr": self.min_sqnr,
            "finished": self.finished,
            "cut": list(self.cut),
            "best": best.name,
            "front": [each.name for each in front],
            "candidates": [
                {
                    "name": each.name,
                    "plan": None if each.path is None else str(each.path),
                    "metric": None if each.score is None else each.score.metric,
                    "drop": self.drop(each),
                    "divergence": None if each.score is None else each.score.divergence,
                    "sqnr_db": None if each.score is None or math.isinf(each.score.sqnr_db) else each.score.sqnr_db,
                    "cost": each.cost,
                    **each.change.to_json(),
                }
                for each in self.candidates
            ],
        }


def checked_limit(value: Any, name: str) -> float | None:
    """Return a limit, 0 or more, or None; QuantizationError."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise QuantizationError(f"{name} must be a number, 0 or more, or None, got {value!r}")
    return float(value)
