"""Runs an implementation on conformance cases and compares what it gives, value by value. It knows no arithmetic."""

from __future__ import annotations

import json
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...compiler.backends import Backend
from ...compiler.compile import compile_model
from ...errors import DataError, OctavoError, check_path
from ...frontends.load import load
from ...numerics.arrays import Array
from ...quantizer.compile import explain
from .case import Case, read_arrays
from .diagnosis import difference
from .report import CaseResult, Report
from .suite import INDEX, SCHEMA_VERSION

Implementation = Callable[[Case, dict[str, Array]], Mapping[str, Array]]
_TIMEOUT_S = 600
_XML_TEXT = str.maketrans({chr(code): "?" for code in range(32) if chr(code) not in "\n\t"})
"""What XML cannot hold."""


def run(
    folder: str | Path,
    implementation: Implementation | Backend | str,
    *,
    progress: Callable[[CaseResult], object] = lambda _: None,
) -> Report:
    """Run the cases of a folder that `write` made.

    Parameters
    ----------
    implementation
        A function of a `Case` and {input name: integers} that returns {output name: integers}; what it raises fails the case.
        A `Backend`, such as a CodeGenerator: each model is compiled for it and run here; it fails a case that it does not take.
        Or a command in which {case} stands for the case's folder and {output} for the .npz that it writes.
    progress
        Called with each result.

    Raises
    ------
    DataError
        The folder has no index, or is damaged; a command without {case} or {output}.
    """
    place = check_path(folder, DataError, "a folder of conformance cases")
    index = _index(place)
    if isinstance(implementation, str):
        call = _of_command(implementation)
    else:
        call = _of_backend(implementation) if isinstance(implementation, Backend) else implementation
    results: list[CaseResult] = []
    for entry in index["cases"]:
        case = Case(name=str(entry["name"]), folder=place / str(entry["name"]))
        results.append(_result(case, call))
        progress(results[-1])
    left = tuple(f"{entry['op']}: {entry['reason']}" for entry in index["not_covered"])
    return Report(target=str(index["description"]["name"]), results=tuple(results), not_covered=left)


def _index(folder: Path) -> dict[str, Any]:
    try:
        index: Any = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: no cases: {INDEX} cannot be read ({error}); octavo conformance writes it") from error
    if not isinstance(index, dict) or index.get("schema_version") != SCHEMA_VERSION:
        raise DataError(f"{folder}: {INDEX} has no schema_version {SCHEMA_VERSION}; write the cases again")
    return index


def _result(case: Case, call: Implementation) -> CaseResult:
    about: Any = {"name": case.name, "op": case.op, "checks": str(case.description["checks"])}
    inputs, expected = case.inputs, case.expected
    try:
        given: Any = call(case, inputs)
    except OctavoError as error:
        return CaseResult(**about, problem=str(error).translate(_XML_TEXT))
    except Exception as error:  # whatever somebody's implementation raises
        return CaseResult(**about, problem=f"it raised {type(error).__name__}: {error}".translate(_XML_TEXT))
    if not isinstance(given, Mapping):
        return CaseResult(**about, problem=f"it returned {type(given).__name__}, expected a dict of {', '.join(expected)}")
    for name, values in expected.items():
        problem = _misfit(name, given, values)
        if problem:
            return CaseResult(**about, problem=problem)
        info = case.description["quantize_info"]
        found = difference(np.asarray(given[name]), values, case.details, info, case.description["channel_axis"])
        if found is not None:
            return CaseResult(**about, problem=found.describe(), difference=found)
    return CaseResult(**about)


def _misfit(name: str, given: Mapping[str, Any], expected: Array) -> str:
    """Return why an output cannot be compared, "" where it can."""
    if name not in given:
        return f"it gave no {name}, only {', '.join(map(str, given)) or 'nothing'}"
    values = np.asarray(given[name])
    if values.shape != expected.shape:
        return f"{name} has shape {values.shape}, expected {expected.shape}"
    return "" if values.dtype == expected.dtype else f"{name} is {values.dtype}, expected {expected.dtype}"


def _of_backend(backend: Backend) -> Implementation:
    """Return what compiles each case's model for a back end and runs it."""

    def call(case: Case, inputs: dict[str, Array]) -> Mapping[str, Array]:
        executable = compile_model(load(case.module), target=backend)
        name = backend.description.name
        ops = explain(executable).ops
        if all(op.taker != name for op in ops):
            reasons = "; ".join(dict.fromkeys(op.declined or op.reason for op in ops if op.declined or op.reason))
            raise DataError(f"{name} does not take it: {reasons or 'no reason is known'}")
        return dict(zip(case.expected, executable(inputs).values(), strict=True))

    return call


def _of_command(command: str) -> Implementation:
    """Return what runs a command for each case."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise DataError(f"command {command!r}: {error}") from error
    for part in ("{case}", "{output}"):
        if not any(part in word for word in words):
            raise DataError(f"command {command!r}: {part} is missing: it stands for a path that the command is to be given")

    def call(case: Case, _inputs: dict[str, Array]) -> dict[str, Array]:
        with tempfile.TemporaryDirectory() as scratch:
            output = Path(scratch) / "output.npz"
            given = [word.replace("{case}", str(case.folder.absolute())).replace("{output}", str(output)) for word in words]
            try:
                done = subprocess.run(given, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False)
            except subprocess.TimeoutExpired:
                raise DataError(f"the command took more than {_TIMEOUT_S} s") from None
            except OSError as error:
                raise DataError(f"the command cannot be run: {error.strerror or error}") from error
            if done.returncode:
                lines = done.stderr.strip().splitlines() or ["nothing on standard error"]
                raise DataError(f"the command failed with exit code {done.returncode}: {lines[-1].strip()}")
            if not output.exists():
                raise DataError("the command wrote no {output}")
            return read_arrays(output)

    return call
