"""Every TFLite op on generated cases against LiteRT: 99.9% of the values equal, none off by more than one step.

A fifth of the cases of each op and dtype, or one, is run here; benchmarks/conformance.py runs all.
"""

import compare
import frameworks
import pytest
from tflite_allowances import ALLOWANCES
from tflite_cases import SUITE, cases, is_integer
from tflite_place_cases import DETECTIONS

CASES = {op: list(cases(op)) for op in SUITE}
SHARE = 5
FLOAT_KINDS = ("float32", "float16 weights", "dynamic range")


def few(op):
    """The cases of an op that are run.

    Of detections both dtypes and both kinds of suppression, in two of the four pairs;
    of GELU all, as each draws which of two it is.
    """
    return CASES[op][::3] if op == DETECTIONS else CASES[op] if op == "GELU" else list(cases(op, share=SHARE))


@pytest.mark.parametrize("op", SUITE)
def test_op(op, tmp_path):
    for row in compare.rows(few(op), tmp_path, frameworks.TFLITE):
        assert not row.errors
        allowed = ALLOWANCES.get((op, row.kind))
        least, most = (allowed.equal, allowed.largest) if allowed else (0.999, 1e-5 if row.kind in FLOAT_KINDS else 1)
        found = f"{op} {row.kind}: {row.equal:.4%} equal, off by {row.largest:.3g} at most"
        assert row.equal >= least, found
        assert row.largest <= most, found
        if is_integer(op, row.kind):
            assert row.integer == len(row.outcomes), [outcome.reasons for outcome in row.outcomes if outcome.reasons]


def test_there_are_enough_cases():
    assert sum(len(of_op) for of_op in CASES.values()) >= 400


def test_allowances_are_of_cases_that_exist():
    kinds = {(op, case.kind) for op, of_op in CASES.items() for case in of_op}
    assert set(ALLOWANCES) <= kinds


def test_a_comparison_of_floats_says_what_would_make_it_integer(tmp_path):
    kinds = {case.kind: case for case in CASES["EQUAL"]}
    quantized, real = compare.run([kinds["int8"], kinds["float32"]], tmp_path, frameworks.TFLITE)
    assert quantized.is_integer
    assert real.different == 0
    assert ["boolean values of float operands" in reason for reason in real.reasons] == [True]
