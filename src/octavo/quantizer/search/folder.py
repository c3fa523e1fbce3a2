"""A search as a folder: what was tried and measured, and the plan of each candidate. A search that was cut off goes on from it.

Every file is written under another name and renamed; the list comes after the plan that it names. JSON: reading runs no code.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import QuantizationError
from ...runtime.atomic_write import write_atomically
from ..plan.plan import QuantizationPlan
from .result import Candidate, Change, SearchResult
from .scoring import Score

_FORMAT, _VERSION = "octavo-search", 2
_LIST = "search.json"


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
        self._header = {"format": _FORMAT, "schema_version": _VERSION, **header}
        self._known: dict[str, dict[str, Any]] = {}
        self.facts: dict[str, Any] = {}
        """What was found out besides candidates, as JSON: by what it is about."""
        self.candidates: list[Candidate] = []
        """Those of this run, in order: measured now or read."""
        if path is not None:
            self._open(path)

    def has(self, change: Change) -> bool:
        """Return whether `known` would return a candidate."""
        key = _key(change)
        return key in self._known or any(_key(each.change) == key for each in self.candidates)

    def known(self, change: Change) -> Candidate | None:
        """Return a candidate that was measured before, in this run or another; None of a new one."""
        key = _key(change)
        listed = next((each for each in self.candidates if _key(each.change) == key), None)
        if listed is not None or key not in self._known or self._path is None:
            return listed
        entry = self._known[key]
        path = self._path / entry["plan"]
        divergence = math.inf if entry["divergence"] is None else float(entry["divergence"])
        score = Score(
            metric=float(entry["metric"]),
            divergence=divergence,
            sqnr_db=float(entry["sqnr_db"] if entry["sqnr_db"] is not None else math.copysign(math.inf, 1 - divergence)),
            ranks_by_metric=self._header["metric"] == "evaluate",
        )
        found = Candidate(
            name=entry["name"], change=change, plan=QuantizationPlan.load(path), path=path, score=score, cost=float(entry["cost"])
        )
        self.candidates.append(found)
        return found

    def add(self, change: Change, plan: QuantizationPlan, score: Score, cost: float) -> Candidate:
        """Keep a candidate that was measured."""
        name = f"c{max(len(self.candidates), len(self._known)):03d}"
        path = None if self._path is None else self._path / f"{name}.plan.json"
        candidate = Candidate(name=name, change=change, plan=plan, path=path, score=score, cost=cost)
        if path is not None:
            plan.save(path)
            self._known[_key(change)] = {
                "name": name,
                "plan": path.name,
                "metric": score.metric,
                "divergence": score.divergence if math.isfinite(score.divergence) else None,
                "sqnr_db": score.sqnr_db if math.isfinite(score.sqnr_db) else None,
                "cost": cost,
                "change": change.to_json(),
            }
        self.candidates.append(candidate)
        self.write()
        return candidate

    def write(self) -> None:
        """Write the list; QuantizationError if it can't be."""
        if self._path is None:
            return
        content = {**self._header, "facts": self.facts, "candidates": list(self._known.values())}
        text = json.dumps(content, indent=1, allow_nan=False) + "\n"
        write_atomically(self._path / _LIST, text, QuantizationError, "the search", temporary=self._path / f".{_LIST}.tmp")

    def _open(self, folder: Path) -> None:
        path = folder / _LIST
        try:
            folder.mkdir(exist_ok=True)
            text = path.read_text(encoding="utf-8") if path.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise QuantizationError(f"{folder}: cannot keep a search there: {reason}") from error
        if text:
            self._read(path, text)

    def _read(self, path: Path, text: str) -> None:
        advice = "give the search a folder of its own"
        try:
            content = json.loads(text)
            header = {name: content[name] for name in self._header}
            entries = {_key(Change.from_json(entry["change"])): _entry(entry) for entry in content["candidates"]}
            facts = dict(content["facts"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise QuantizationError(f"{path}: no list of a search ({type(error).__name__}: {error}); {advice}") from error
        other = next((name for name, value in self._header.items() if header[name] != value), None)
        if other is not None:
            raise QuantizationError(f"{path}: a search with another {other.replace('_', ' ')}; {advice}")
        self._known, self.facts = entries, facts


def read_search(folder: Path, fingerprint: str) -> SearchResult:
    """Return what a search has found so far, from its folder alone: its limit is not known, `best` is the most accurate one.

    Raises
    ------
    QuantizationError
        The folder holds no search, or that of another model.
    """
    path = folder / _LIST
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        header = {name: content[name] for name in ("format", "schema_version", "fingerprint", "metric")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise QuantizationError(f"{folder}: it holds no search ({type(error).__name__}: {error})") from error
    kept = SearchFolder(folder, {"fingerprint": fingerprint, "metric": header["metric"]})
    changes = [Change.from_json(entry["change"]) for entry in content["candidates"]]
    found = tuple(each for each in map(kept.known, changes) if each is not None)
    if not found:
        raise QuantizationError(f"{folder}: its search has measured nothing yet")
    metric = kept.facts.get("float_metric")
    return SearchResult(candidates=found, float_metric=metric, max_drop=None, finished=False)


def _entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of a list, checked."""
    name, plan = entry["name"], entry["plan"]
    if not isinstance(name, str) or plan != f"{name}.plan.json" or os.sep in name:
        raise ValueError(f"a candidate has the plan {plan!r}")
    numbers = [entry["metric"], entry["cost"], *(entry[key] or 0.0 for key in ("divergence", "sqnr_db"))]
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in numbers):
        raise ValueError(f"{name} has numbers that are none")
    return dict(entry)


def _key(change: Change) -> str:
    return json.dumps(change.to_json(), sort_keys=True)
