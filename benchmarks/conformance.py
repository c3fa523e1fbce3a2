"""Op by op against LiteRT: generated models of one op each, random shapes and quantization, from fixed seeds.

    python benchmarks/conformance.py                    every op
    python benchmarks/conformance.py --only CONV_2D,ADD
    python benchmarks/conformance.py --reasons          with what kept an op from integer kernels

Each row is an op on one kind of tensors: its cases, how many run as integer kernels alone, the share of equal values, and the
largest difference (in quantization steps; for float results relative to the largest value). The bound is 99.9% equal and one
step; the last column says why a row may miss it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "conformance"))

import compare
from tflite_allowances import ALLOWANCES
from tflite_cases import SUITE, cases


def line(row: compare.Row) -> str:
    allowed = ALLOWANCES.get((row.op, row.kind))
    note = f"{len(row.errors)} do not compile: {row.errors[0]}" if row.errors else allowed.reason if allowed else ""
    count = len(row.outcomes)
    return f"| {row.op} | {row.kind} | {count} | {row.integer} | {row.equal:.3%} | {row.largest:.3g} | {note} |"


def within_bound(row: compare.Row) -> bool:
    """Whether the row meets the bound without an allowance."""
    most = 1.0 if row.kind in ("int8", "uint8", "int16") else 1e-5
    return not row.errors and row.equal >= 0.999 and row.largest <= most


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="comma-separated ops")
    parser.add_argument("--reasons", action="store_true", help="print why ops run in float")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    ops = options.only.split(",") if options.only else list(SUITE)
    unknown = [op for op in ops if op not in SUITE]
    if unknown:
        parser.error(f"unknown op {unknown[0]}; known are {', '.join(SUITE)}")
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        table = [row for op in ops for row in compare.rows(list(cases(op)), Path(folder))]
    if options.json:
        fields = ("op", "kind", "equal", "largest", "integer")
        values = [{**{name: getattr(row, name) for name in fields}, "cases": len(row.outcomes)} for row in table]
        json.dump(values, sys.stdout, indent=1)
        return 0
    print("| op | tensors | cases | integer | equal | largest | note |\n| --- | --- | --- | --- | --- | --- | --- |")
    print("\n".join(line(row) for row in table))
    if options.reasons:
        for row in table:
            for reason in dict.fromkeys(reason for outcome in row.outcomes for reason in outcome.reasons):
                print(f"{row.op} {row.kind}: {reason}")
    total, met = sum(len(row.outcomes) for row in table), sum(within_bound(row) for row in table)
    print(f"\n{total} cases in {time.perf_counter() - started:.0f} s; {met} of {len(table)} rows within the bound")
    return 0


if __name__ == "__main__":
    sys.exit(main())
