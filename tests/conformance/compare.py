"""Runs cases in Octavo and compares with what the peer computed: shares of equal values, largest difference in steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tflite_case import Case, litert, write

import octavo
from octavo.errors import OctavoError


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One case: differences of all its results, in quantization steps for integers, relative to the largest value for floats."""

    case: Case
    values: int
    different: int
    largest: float
    is_integer_kernel: bool
    reasons: tuple[str, ...]
    error: str = ""


def run(cases: list[Case], folder: Path) -> list[Outcome]:
    """Compile all cases as one graph; where it cannot be imported, each alone, so that the others still count."""
    data = write(cases)
    path = folder / "cases.tflite"
    path.write_bytes(data)
    try:
        executable = octavo.compile(octavo.load(path))
    except OctavoError as error:
        if len(cases) > 1:
            return [outcome for case in cases for outcome in run([case], folder)]
        return [Outcome(case=cases[0], values=0, different=0, largest=0.0, is_integer_kernel=False, reasons=(), error=str(error))]
    expected = litert(data, cases)
    fed = [array for case in cases for array in case.fed]
    results = executable(dict(zip((spec.id for spec in executable.inputs), fed, strict=True)))
    arrays = iter(results.values())
    actual = [[next(arrays) for _ in case.outputs] for case in cases]
    ops = octavo.explain(executable).ops
    return [
        _outcome(case, want, got, [op for op in ops if op.tensor.startswith(f"c{number}_")])
        for number, (case, want, got) in enumerate(zip(cases, expected, actual, strict=True))
    ]


def _outcome(case: Case, expected: list[np.ndarray], actual: list[np.ndarray], ops: list[Any]) -> Outcome:
    values = different = 0
    largest = 0.0
    for want, got in zip(expected, actual, strict=True):
        assert (want.shape, want.dtype) == (got.shape, got.dtype), (
            f"{case.op} {case.label}: {want.shape} {want.dtype} {got.shape}"
        )
        distance = np.abs(want.astype(np.float64) - got.astype(np.float64))
        if want.dtype == np.float32:
            distance /= max(float(np.abs(want).max(initial=0.0)), 1e-6)
        values += want.size
        different += int((distance > (1e-5 if want.dtype == np.float32 else 0)).sum())
        largest = max(largest, float(distance.max(initial=0.0)))
    is_integer = all(op.integer for op in ops)
    reasons = tuple(op.reason for op in ops if not op.integer)
    return Outcome(case=case, values=values, different=different, largest=largest, is_integer_kernel=is_integer, reasons=reasons)
