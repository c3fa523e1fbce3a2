"""Every ONNX op on generated cases against ONNX Runtime: 99.9% of the values equal, none off by more than one step.

A part of the cases of each op is run here; benchmarks/conformance.py runs all.
"""

import compare
import frameworks
import numpy as np
import onnx_cases
import pytest
from onnx_allowances import ALLOWANCES
from onnx_case import Writer

import octavo

CASES = {op: list(onnx_cases.cases(op)) for op in onnx_cases.SUITE}
FEW = 12
"""Ops of more cases run every fourth (kinds come in threes and twos), the others every second."""


@pytest.mark.parametrize("op", CASES)
def test_op(op, tmp_path):
    for row in compare.rows(CASES[op][:: 4 if len(CASES[op]) > FEW else 2], tmp_path, frameworks.ONNX):
        assert not row.errors
        allowed = ALLOWANCES.get((op, row.kind))
        least, most = (allowed.equal, allowed.largest) if allowed else (0.999, 1e-5 if row.kind == "f32" else 1)
        found = f"{op} {row.kind}: {row.equal:.4%} equal, off by {row.largest:.3g} at most"
        # One value of a few small tensors is more than one in a thousand.
        assert row.equal >= least or row.different <= 1, found
        assert row.largest <= most, found
        if op in onnx_cases.INTEGER_OPS and (op, row.kind) not in onnx_cases.FLOAT_KINDS:
            assert row.integer == len(row.outcomes), [outcome.reasons for outcome in row.outcomes if outcome.reasons]


def test_there_are_enough_cases():
    assert sum(len(of_op) for of_op in CASES.values()) >= 350


def test_allowances_are_of_cases_that_exist():
    assert set(ALLOWANCES) <= {(op, case.kind) for op, of_op in CASES.items() for case in of_op}


@pytest.mark.parametrize("form", [(5, 1), (5, 8)])
def test_a_gemm_with_a_bias_for_each_row_multiplies_integers_and_adds_behind_it(form, tmp_path):
    w = Writer(rng=np.random.default_rng(6), activation="uint8", weight="int8")
    x, weight = w.quantized((5, 16)), w.weights((16, 8), 1, per_axis=True)
    c = w.constant(w.rng.normal(size=form).astype(np.float32))
    w.quantize(w.node("Gemm", [w.real(x), w.real(weight, 1), c]))
    case = w.case("Gemm", "rows", "u8s8")
    (outcome,) = compare.run([case], tmp_path, frameworks.ONNX)
    assert (outcome.different, outcome.error) == (0, "")
    ops = octavo.explain(octavo.load(tmp_path / f"cases.{frameworks.ONNX.suffix}")).ops
    assert [(op.op, op.integer) for op in ops if op.macs] == [("matmul", True)]
    (added,) = [op for op in ops if op.op == "add"]
    assert "is float" in added.reason
    assert not added.integer
