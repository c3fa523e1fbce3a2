"""Networks of ONNX's own node cases: in float what ONNX Runtime has, quantized and written what ran, or one clear line."""

from __future__ import annotations

import warnings
from collections import Counter

import pytest

from case_networks import outcome


@pytest.mark.parametrize("first", range(0, 16, 8))
def test_networks_of_node_cases_go_all_the_way(first: int) -> None:
    counts = Counter[str]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, of values that cases are made of, and the onnx package's
        for seed in range(first, first + 8):
            kind, said = outcome(seed, steps=2, most_apart=0)
            counts[kind] += 1
            assert kind not in ("differ", "raw"), f"seed {seed}: {said}"
            assert "\n" not in said
    assert counts["the same"] >= 4, counts
