"""Op by op against LiteRT and ONNX Runtime: generated models of one op each, random shapes and quantization, from fixed seeds.

    python benchmarks/conformance.py                    every op of both
    python benchmarks/conformance.py --framework onnx
    python benchmarks/conformance.py --only CONV_2D,Conv
    python benchmarks/conformance.py --reasons          with what kept an op from integer kernels

Each row is an op on one kind of tensors: its cases, how many run as integer kernels alone, the share of equal values, and the
largest difference (in quantization steps; for float results relative to the largest value). The bound is 99.9% equal and one
step; the last column says why a row may miss it. Kinds of ONNX cases: u8s8 is uint8 activations by int8 weights.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "conformance"))

import compare
import frameworks
import onnx_allowances
import onnx_cases
import tflite_allowances
import tflite_cases


@dataclass(frozen=True, kw_only=True)
class Suite:
    """The cases of one framework."""

    framework: compare.Framework
    ops: tuple[str, ...]
    cases: Callable[[str], Iterable[Any]]
    allowances: Mapping[tuple[str, str], tflite_allowances.Allowance]


SUITES = {
    "tflite": Suite(
        framework=frameworks.TFLITE,
        ops=tuple(tflite_cases.SUITE),
        cases=tflite_cases.cases,
        allowances=tflite_allowances.ALLOWANCES,
    ),
    "onnx": Suite(
        framework=frameworks.ONNX,
        ops=tuple(onnx_cases.SUITE),
        cases=onnx_cases.cases,
        allowances=onnx_allowances.ALLOWANCES,
    ),
}


def line(row: compare.Row, suite: Suite) -> str:
    allowed = suite.allowances.get((row.op, row.kind))
    note = f"{len(row.errors)} do not compile: {row.errors[0]}" if row.errors else allowed.reason if allowed else ""
    count = len(row.outcomes)
    return f"| {row.op} | {row.kind} | {count} | {row.integer} | {row.equal:.3%} | {row.largest:.3g} | {note} |"


def within_bound(row: compare.Row) -> bool:
    """Whether the row meets the bound without an allowance."""
    most = 1e-5 if row.kind in ("f32", "float32", "float16 weights", "dynamic range") else 1.0
    return not row.errors and row.equal >= 0.999 and row.largest <= most


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=[*SUITES, "all"], default="all")
    parser.add_argument("--only", help="comma-separated ops")
    parser.add_argument("--reasons", action="store_true", help="print why ops run in float")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    suites = [suite for name, suite in SUITES.items() if options.framework in (name, "all")]
    known = [op for suite in suites for op in suite.ops]
    wanted = options.only.split(",") if options.only else known
    unknown = [op for op in wanted if op not in known]
    if unknown:
        parser.error(f"unknown op {unknown[0]}; known are {', '.join(known)}")
    values: list[dict[str, Any]] = []
    for suite in suites:
        ops = [op for op in suite.ops if op in wanted]
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            table = [row for op in ops for row in compare.rows(list(suite.cases(op)), Path(folder), suite.framework)]
        if options.json:
            values += [{"framework": suite.framework.suffix, **_as_json(row)} for row in table]
        elif table:
            _print_table(suite, table, time.perf_counter() - started, with_reasons=options.reasons)
    if options.json:
        json.dump(values, sys.stdout, indent=1)
    return 0


def _as_json(row: compare.Row) -> dict[str, Any]:
    fields = ("op", "kind", "equal", "largest", "integer")
    return {**{name: getattr(row, name) for name in fields}, "cases": len(row.outcomes)}


def _print_table(suite: Suite, table: list[compare.Row], seconds: float, *, with_reasons: bool) -> None:
    print("| op | tensors | cases | integer | equal | largest | note |\n| --- | --- | --- | --- | --- | --- | --- |")
    print("\n".join(line(row, suite) for row in table))
    for row in table if with_reasons else ():
        for reason in dict.fromkeys(reason for outcome in row.outcomes for reason in outcome.reasons):
            print(f"{row.op} {row.kind}: {reason}")
    total, met = sum(len(row.outcomes) for row in table), sum(within_bound(row) for row in table)
    print(f"\n{suite.framework.suffix}: {total} cases in {seconds:.0f} s; {met} of {len(table)} rows within the bound\n")


if __name__ == "__main__":
    sys.exit(main())
