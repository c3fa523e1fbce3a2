"""What a search found: candidates, each a plan, and which of them are worth having; and a folder that keeps them.

Every file there is written under another name and renamed; the list comes after the plan that it names, so that a search that was
cut off goes on from it. JSON: reading runs no code.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...errors import QuantizationError
from ...ir.identity import TensorId
from ...runtime.atomic_write import write_atomically
from ..plan.plan import QuantizationPlan

_FORMAT, _VERSION = "octavo-search", 3
_LIST = "search.json"
BY_FUNCTION = "evaluate"
"""What a header calls the metric of the user's function."""


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
    metric
        What the user's function returns; without one, the share of samples of which the first output names the float model's
        class, or, where outputs are no scores of classes, 1 less the error's share of the worst output's power. None where the
        search was interrupted before any candidate was measured.
    sqnr_db
        Signal to noise ratio of the worst output on the samples, in dB; inf of equal ones, None of what was not measured.
    cost
        Of running it, as a share of what the float model costs.
    """

    name: str = ""
    steps: tuple[str, ...] = ()
    float_tensors: tuple[TensorId, ...] = ()
    plan: QuantizationPlan
    path: Path | None = None
    metric: float | None
    sqnr_db: float | None
    cost: float

    def to_json(self) -> dict[str, Any]:
        """Return plain values; of the plan the name of its file."""
        return {
            "name": self.name,
            "plan": None if self.path is None else self.path.name,
            "metric": self.metric,
            "sqnr_db": None if self.sqnr_db == math.inf else self.sqnr_db,
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
    by_metric
        Whether a greater metric is better however near outputs are: the user's is. Agreement on a few samples is a worse judge of
        two candidates than their error.
    max_drop
        By how much less than `float_metric` a candidate's metric may be; None for any.
    min_sqnr
        What a candidate's `sqnr_db` must be besides; None for any.
    finished
        Whether the search came to its end by itself: it was not interrupted, nor did its time run out.
    cut
        What was left out for want of time, in words.
    """

    candidates: tuple[Candidate, ...]
    float_metric: float | None
    by_metric: bool = False
    max_drop: float | None = None
    min_sqnr: float | None = None
    finished: bool = False
    cut: tuple[str, ...] = ()

    @property
    def front(self) -> tuple[Candidate, ...]:
        """The candidates than which no other is both cheaper and as accurate, the cheapest first."""
        found: list[Candidate] = []
        for candidate in sorted(self.candidates, key=lambda each: (each.cost, [-value for value in self.rank(each)], each.name)):
            if candidate.metric is not None and (not found or self.rank(candidate) > self.rank(found[-1])):
                found.append(candidate)
        return tuple(found)

    @property
    def best(self) -> Candidate:
        """The cheapest candidate within `max_drop`; where there is none, or no such limit, the most accurate one."""
        front = self.front or self.candidates[:1]
        return next((each for each in front if self.is_enough(each)), front[-1])

    def rank(self, candidate: Candidate) -> tuple[float, float]:
        """Return what is greater for the more accurate one."""
        metric, sqnr_db = (-math.inf if value is None else value for value in (candidate.metric, candidate.sqnr_db))
        return (metric if self.by_metric else 0.0), sqnr_db

    def is_enough(self, candidate: Candidate) -> bool:
        """Return whether a candidate is within `max_drop`, with `min_sqnr`; False where there is no `max_drop`."""
        drop, has_sqnr = self.drop(candidate), self.min_sqnr is None or (candidate.sqnr_db or 0.0) >= self.min_sqnr
        return has_sqnr and self.max_drop is not None and drop is not None and drop <= self.max_drop

    def drop(self, candidate: Candidate) -> float | None:
        """Return by how much less a candidate's metric is than the float model's; None where one of them is unknown."""
        return None if candidate.metric is None or self.float_metric is None else self.float_metric - candidate.metric

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            **{name: getattr(self, name) for name in ("float_metric", "max_drop", "min_sqnr", "finished")},
            "cut": list(self.cut),
            "best": self.best.name,
            "front": [each.name for each in self.front],
            "candidates": [
                {**each.to_json(), "plan": None if each.path is None else str(each.path), "drop": self.drop(each)}
                for each in self.candidates
            ],
        }


class SearchFolder:
    """What a search keeps, in memory and, with a path, in a folder.

    Parameters
    ----------
    path
        The folder; made where there is none. None keeps nothing.
    header
        What the search is of. A folder of another search is refused.

    Raises
    ------
    QuantizationError
        The folder cannot be made or read, or is another search's.
    """

    def __init__(self, path: Path | None, header: Mapping[str, Any]) -> None:
        self._path = path
        self.header: dict[str, Any] = {"format": _FORMAT, "schema_version": _VERSION, **header}
        self.float_metric: float | None = None
        """The float model's, once that is known."""
        self.known: dict[tuple[str, ...], Candidate] = {}
        """Candidates that were measured before or now, by their steps, in order."""
        if path is not None:
            self._open(path)

    def add(self, candidate: Candidate) -> Candidate:
        """Keep a candidate that was measured, under a name of its own."""
        candidate = replace(candidate, name=f"c{len(self.known):03d}")
        if self._path is not None:
            candidate = replace(candidate, path=self._path / f"{candidate.name}.plan.json")
            candidate.plan.save(self._path / f"{candidate.name}.plan.json")
        self.known[candidate.steps] = candidate
        self.write()
        return candidate

    def write(self) -> None:
        """Write the list; QuantizationError if it can't be."""
        if self._path is not None:
            listed = [each.to_json() for each in self.known.values()]
            content = {**self.header, "facts": {"float_metric": self.float_metric}, "candidates": listed}
            text = json.dumps(content, indent=1, allow_nan=False) + "\n"
            write_atomically(self._path / _LIST, text, QuantizationError, "the search", temporary=self._path / f".{_LIST}.tmp")

    def _open(self, folder: Path) -> None:
        path, advice = folder / _LIST, "give the search a folder of its own"
        try:
            folder.mkdir(exist_ok=True)
            text = path.read_text(encoding="utf-8") if path.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise QuantizationError(f"{folder}: cannot keep a search there: {reason}") from error
        if not text:
            return
        try:
            content = json.loads(text)
            other = next((name for name, value in self.header.items() if content[name] != value), None)
            if other is not None:
                raise QuantizationError(f"{path}: a search with another {other.replace('_', ' ')}; {advice}")
            self.header["metric"], self.float_metric = content["metric"], content["facts"].get("float_metric")
            self.known = {each.steps: each for each in (_candidate(folder, entry) for entry in content["candidates"])}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise QuantizationError(f"{path}: no list of a search ({type(error).__name__}: {error}); {advice}") from error


def read_search(folder: Path, fingerprint: str) -> SearchResult:
    """Return what a search has found so far, from its folder alone: its limit is not known, `best` is the most accurate one.

    Raises
    ------
    QuantizationError
        The folder holds no search, or that of another model.
    """
    if not (folder / _LIST).exists():
        raise QuantizationError(f"{folder}: it holds no search, which octavo.search(folder=) keeps")
    kept = SearchFolder(folder, {"fingerprint": fingerprint})
    if not kept.known:
        raise QuantizationError(f"{folder}: its search has measured nothing yet")
    by_metric = kept.header["metric"] == BY_FUNCTION
    return SearchResult(candidates=tuple(kept.known.values()), float_metric=kept.float_metric, by_metric=by_metric)


def _candidate(folder: Path, entry: Mapping[str, Any]) -> Candidate:
    """Return a candidate of a list; ValueError, KeyError or TypeError for what is none."""
    path, numbers = folder / f"{entry['name']}.plan.json", [float(entry[name]) for name in ("metric", "cost")]
    if entry["plan"] != path.name or path.parent != folder or not all(map(math.isfinite, numbers)):
        raise ValueError(f"it has a candidate {entry}")
    return Candidate(
        name=str(entry["name"]),
        steps=tuple(entry["steps"]),
        float_tensors=tuple(map(TensorId, entry["float_tensors"])),
        plan=QuantizationPlan.load(path),
        path=path,
        metric=numbers[0],
        sqnr_db=math.inf if entry["sqnr_db"] is None else float(entry["sqnr_db"]),
        cost=numbers[1],
    )
