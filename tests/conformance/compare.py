"""Runs a batch of cases in Octavo and compares with the peer: how many values are equal, and the largest difference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import octavo
from octavo.errors import OctavoError

FLOAT_TOLERANCE = 1e-5
"""Difference of two floats, relative to the largest of a tensor, up to which they count as equal."""


@dataclass(frozen=True, kw_only=True)
class Framework:
    """Where cases come from: how several are written as one file, and what the framework's own runtime computes for it.

    A case has `op`, `label`, `kind`, `fed` (its input arrays) and `outputs`; the tensors of case n are called c<n>_...
    """

    suffix: str
    write: Callable[[list[Any]], bytes]
    run: Callable[[bytes, list[Any]], list[list[np.ndarray]]]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One case: differences over all its results, in quantization steps or, for floats, relative to the largest value."""

    case: Any
    values: int
    different: int
    largest: float
    is_integer: bool
    reasons: tuple[str, ...]
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """All cases of an op in one dtype."""

    op: str
    kind: str
    outcomes: tuple[Outcome, ...]

    @property
    def equal(self) -> float:
        """Share of equal values, 0 to 1."""
        return 1.0 - self.different / max(sum(outcome.values for outcome in self.outcomes), 1)

    @property
    def different(self) -> int:
        """Values that differ."""
        return sum(outcome.different for outcome in self.outcomes)

    @property
    def largest(self) -> float:
        """Largest difference."""
        return max(outcome.largest for outcome in self.outcomes)

    @property
    def integer(self) -> int:
        """Cases of which every op runs as an integer kernel."""
        return sum(outcome.is_integer for outcome in self.outcomes)

    @property
    def errors(self) -> tuple[str, ...]:
        """Messages of the cases that did not compile."""
        return tuple(outcome.error for outcome in self.outcomes if outcome.error)


def rows(cases: list[Any], folder: Path, framework: Framework) -> list[Row]:
    """Run the cases of one op as one graph and sort them by kind of tensors."""
    outcomes = run(cases, folder, framework)
    kinds = dict.fromkeys(outcome.case.kind for outcome in outcomes)
    return [
        Row(op=cases[0].op, kind=kind, outcomes=tuple(outcome for outcome in outcomes if outcome.case.kind == kind))
        for kind in kinds
    ]


def run(cases: list[Any], folder: Path, framework: Framework) -> list[Outcome]:
    """Compile all cases as one graph; where that fails, each alone, so that the others still count."""
    data = framework.write(cases)
    path = folder / f"cases.{framework.suffix}"
    path.write_bytes(data)
    try:
        executable = octavo.compile(octavo.load(path))
    except OctavoError as error:
        if len(cases) > 1:
            return [outcome for case in cases for outcome in run([case], folder, framework)]
        return [Outcome(case=cases[0], values=0, different=0, largest=0.0, is_integer=False, reasons=(), error=str(error))]
    expected = framework.run(data, cases)
    fed = [array for case in cases for array in case.fed]
    results = executable(dict(zip((spec.id for spec in executable.inputs), fed, strict=True)))
    arrays = iter(results.values())
    actual = [[next(arrays) for _ in case.outputs] for case in cases]
    ops = octavo.explain(executable).ops
    return [
        _outcome(case, want, got, [op for op in ops if op.tensor.startswith(f"c{number}_")])
        for number, (case, want, got) in enumerate(zip(cases, expected, actual, strict=True))
    ]


def _outcome(case: Any, expected: list[np.ndarray], actual: list[np.ndarray], ops: list[Any]) -> Outcome:
    values = different = 0
    largest = 0.0
    for want, got in zip(expected, actual, strict=True):
        forms = [(array.shape, array.dtype) for array in (got, want)]
        assert forms[0] == forms[1], f"{case.op} {case.label}: {forms[0]}, expected {forms[1]}"
        distance = np.abs(want.astype(np.float64) - got.astype(np.float64))
        is_float = want.dtype == np.float32
        if is_float:
            distance /= max(float(np.abs(want).max(initial=0.0)), 1e-6)
        values += want.size
        different += int((distance > (FLOAT_TOLERANCE if is_float else 0)).sum())
        largest = max(largest, float(distance.max(initial=0.0)))
    reasons = tuple(op.reason for op in ops if not op.integer)
    return Outcome(case=case, values=values, different=different, largest=largest, is_integer=not reasons, reasons=reasons)
