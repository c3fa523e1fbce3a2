"""A search as a folder: what was tried and measured, and the plan of each candidate. A search that was cut off goes on from it.

Every file is written under another name and renamed; the list comes after the plan that it names. JSON: reading runs no code.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import QuantizationError
from ...ir.identity import TensorId
from ...runtime.atomic_write import write_atomically
from ..plan.plan import QuantizationPlan
from .result import Candidate, Score, SearchResult

_FORMAT, _VERSION = "octavo-search", 3
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
        self._known: dict[tuple[str, ...], dict[str, Any]] = {}
        self.facts: dict[str, Any] = {}
        """What was found out besides candidates, as JSON."""
        self.candidates: list[Candidate] = []
        """Those of this run, in order: measured now or read."""
        if path is not None:
            self._open(path)

    def has(self, steps: Sequence[str]) -> bool:
        """Return whether `known` would return a candidate."""
        return tuple(steps) in self._known or any(each.steps == tuple(steps) for each in self.candidates)

    def known(self, steps: Sequence[str]) -> Candidate | None:
        """Return a candidate that was measured before, in this run or another; None of a new one."""
        key = tuple(steps)
        listed = next((each for each in self.candidates if each.steps == key), None)
        if listed is not None or key not in self._known or self._path is None:
            return listed
        entry = self._known[key]
        path = self._path / entry["plan"]
        sqnr_db = math.inf if entry["sqnr_db"] is None else float(entry["sqnr_db"])
        score = Score(metric=float(entry["metric"]), sqnr_db=sqnr_db, ranks_by_metric=self._header["metric"] == "evaluate")
        found = Candidate(
            name=entry["name"],
            steps=key,
            float_tensors=tuple(map(TensorId, entry["float_tensors"])),
            plan=QuantizationPlan.load(path),
            path=path,
            score=score,
            cost=float(entry["cost"]),
        )
        self.candidates.append(found)
        return found

    def add(self, candidate: Candidate) -> Candidate:
        """Keep a candidate that was measured, under a name of its own."""
        name = f"c{max(len(self.candidates), len(self._known)):03d}"
        path = None if self._path is None else self._path / f"{name}.plan.json"
        candidate = replace(candidate, name=name, path=path)
        if path is not None:
            candidate.plan.save(path)
            self._known[candidate.steps] = candidate.to_json()
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
            entries = {tuple(entry["steps"]): _entry(entry) for entry in content["candidates"]}
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
    found = tuple(each for entry in content["candidates"] if (each := kept.known(entry["steps"])) is not None)
    if not found:
        raise QuantizationError(f"{folder}: its search has measured nothing yet")
    metric = kept.facts.get("float_metric")
    return SearchResult(candidates=found, float_metric=metric, max_drop=None, finished=False)


def _entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of a list, checked."""
    name, plan = entry["name"], entry["plan"]
    if not isinstance(name, str) or plan != f"{name}.plan.json" or os.sep in name:
        raise ValueError(f"a candidate has the plan {plan!r}")
    numbers = [entry["metric"], entry["cost"], entry["sqnr_db"] or 0.0]
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in numbers):
        raise ValueError(f"{name} has numbers that are none")
    return dict(entry)
