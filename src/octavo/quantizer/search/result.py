"""What a search found: candidates, each a plan, and which of them are worth having."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...ir.identity import TensorId
from ..plan.plan import QuantizationPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """How good a candidate is.

    Parameters
    ----------
    metric
        What the user's function returns; without one, the share of samples of which the first output names the float model's
        class, or, where outputs are no scores of classes, 1 less the error's share of the worst output's power.
    sqnr_db
        Signal to noise ratio of the worst output on the samples, in dB; inf of equal ones.
    ranks_by_metric
        Whether a greater metric is better however near outputs are: the user's is. Agreement on a few samples is a worse judge of
        two candidates than their error.
    """

    metric: float
    sqnr_db: float
    ranks_by_metric: bool

    @property
    def rank(self) -> tuple[float, float]:
        """Greater for the better one."""
        return (self.metric if self.ranks_by_metric else 0.0), self.sqnr_db


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Candidate:
    """One way to quantize the model.

    Parameters
    ----------
    name
        "c000" and on, in the order in which they were tried.
    steps
        What makes it differ from plain quantization, in words: it is known by them.
    float_tensors
        The activations that the search leaves float.
    plan
        All that was decided: ``octavo.quantize(model, plan=candidate.plan)`` is the model.
    path
        Its file, where the search has a folder.
    score
        None where the search was interrupted before any candidate was measured.
    cost
        Of running it, as a share of what the float model costs.
    """

    name: str = ""
    steps: tuple[str, ...] = ()
    float_tensors: tuple[TensorId, ...] = ()
    plan: QuantizationPlan
    path: Path | None = None
    score: Score | None
    cost: float

    @property
    def rank(self) -> tuple[float, float]:
        """Greater for the more accurate one."""
        return (-math.inf, -math.inf) if self.score is None else self.score.rank

    def to_json(self) -> dict[str, Any]:
        """Return plain values; of the plan the name of its file."""
        return {
            "name": self.name,
            "plan": None if self.path is None else self.path.name,
            "metric": None if self.score is None else self.score.metric,
            "sqnr_db": None if self.score is None or math.isinf(self.score.sqnr_db) else self.score.sqnr_db,
            "cost": self.cost,
            "steps": list(self.steps),
            "float_tensors": list(self.float_tensors),
        }


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
                {**each.to_json(), "plan": None if each.path is None else str(each.path), "drop": self.drop(each)}
                for each in self.candidates
            ],
        }
