"""A search as a folder: what was tried and measured, and the plan of each candidate. A search that was cut off goes on from it.

Every file is written under another name and renamed; the list comes after the plan that it names. JSON: reading runs no code.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
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
        self.float_metric: float | None = None
        """The float model's, once that is known."""
        self.known: dict[tuple[str, ...], Candidate] = {}
        """Candidates that were measured before or now, by their steps, in order."""
        if path is not None:
            self._open(path)

    def add(self, candidate: Candidate) -> Candidate:
        """Keep a candidate that was measured, under a name of its own."""
        name = f"c{len(self.known):03d}"
        path = None if self._path is None else self._path / f"{name}.plan.json"
        candidate = replace(candidate, name=name, path=path)
        if path is not None:
            candidate.plan.save(path)
        self.known[candidate.steps] = candidate
        self.write()
        return candidate

    def write(self) -> None:
        """Write the list; QuantizationError if it can't be."""
        if self._path is None:
            return
        listed = [each.to_json() for each in self.known.values()]
        content = {**self._header, "facts": {"float_metric": self.float_metric}, "candidates": listed}
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
            other = next((name for name, value in self._header.items() if content[name] != value), None)
            if other is not None:
                raise QuantizationError(f"{path}: a search with another {other.replace('_', ' ')}; {advice}")
            self.float_metric, by_metric = content["facts"].get("float_metric"), content["metric"] == "evaluate"
            self.known = {each.steps: each for each in (_candidate(folder, entry, by_metric) for entry in content["candidates"])}
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
    return SearchResult(candidates=tuple(kept.known.values()), float_metric=kept.float_metric, max_drop=None, finished=False)


def _candidate(folder: Path, entry: Mapping[str, Any], ranks_by_metric: bool) -> Candidate:
    """Return a candidate of a list; ValueError, KeyError or TypeError for what is none."""
    name, plan = entry["name"], entry["plan"]
    if not isinstance(name, str) or plan != f"{name}.plan.json" or os.sep in name:
        raise ValueError(f"a candidate has the plan {plan!r}")
    numbers = metric, cost, sqnr_db = entry["metric"], entry["cost"], entry["sqnr_db"] or 0.0
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in numbers):
        raise ValueError(f"{name} has numbers that are none")
    sqnr_db = math.inf if entry["sqnr_db"] is None else float(sqnr_db)
    return Candidate(
        name=name,
        steps=tuple(entry["steps"]),
        float_tensors=tuple(map(TensorId, entry["float_tensors"])),
        plan=QuantizationPlan.load(folder / plan),
        path=folder / plan,
        score=Score(metric=float(metric), sqnr_db=sqnr_db, ranks_by_metric=ranks_by_metric),
        cost=float(cost),
    )
