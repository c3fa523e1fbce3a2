"""Masks that choose between scores and a number below all of them become sums; others stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from octavo.compiler.partition.add_masks import add_masks
from qdq_graph import graph, run_float

op: Any = relax.op
LOWEST = float(np.finfo(np.float32).min)


@I.ir_module
class Before:
    @R.function
    def main(s: R.Tensor((1, 4, "rows", "columns"), "float32"), hidden: R.Tensor(("rows", "columns"), "bool")):
        with R.dataflow():
            m = R.where(hidden, R.const(-1e38, "float32"), s)
            p = R.nn.softmax(m)
            R.output(p)
        return p


@I.ir_module
class Expected:
    @R.function
    def main(s: R.Tensor((1, 4, "rows", "columns"), "float32"), hidden: R.Tensor(("rows", "columns"), "bool")):
        rows = T.int64()
        columns = T.int64()
        with R.dataflow():
            m_addend: R.Tensor((rows, columns), "float32") = R.where(hidden, R.const(-1e38, "float32"), R.const(0, "float32"))
            m = R.add(s, m_addend)
            p = R.nn.softmax(m)
            R.output(p)
        return p


def test_a_choice_before_a_softmax_is_a_sum() -> None:
    assert_structural_equal(add_masks(Before), Expected, map_free_vars=True)


def masked(kind: str) -> Any:
    """Scores (2, 3, 5) where a condition holds, or where it doesn't, else a number; `kind` says what is different."""
    number = {"high": -1e9, "lowest": LOWEST}.get(kind, -np.inf)
    shape = (3, 1) if kind == "column" else (3, 5)

    def body(writer: Any, params: Any) -> Any:
        sides = [relax.const(number, "float32"), params["s"]]
        m = writer.emit("m", op.where(params["c"], *(sides if kind != "seen" else sides[::-1])), is_output=kind == "read")
        p = writer.emit("p", op.tanh(m) if kind == "tanh" else op.nn.softmax(m), is_output=True)
        return relax.Tuple([p, m]) if kind == "read" else p

    return graph({"s": ((2, 3, 5), "float32"), "c": (shape, "bool")}, body)


@pytest.mark.parametrize("kind", ["hidden", "seen", "lowest"])
def test_the_same_values(kind: str, rng: np.random.Generator) -> None:
    """A row of nothing but masked values, too: it is the same one of all of them, or NaN."""
    module = masked(kind)
    made = add_masks(module)
    assert made is not module
    scores, condition = rng.normal(0, 9, (2, 3, 5)).astype(np.float32), rng.random((3, 5)) < 0.5
    condition[1] = kind != "seen"
    np.testing.assert_array_equal(run_float(made, scores, condition), run_float(module, scores, condition))


@pytest.mark.parametrize("kind", ["high", "column", "tanh", "read"])
def test_others_stay(kind: str) -> None:
    """A number that scores may come near, a mask of other columns, no softmax behind it, and what somebody else reads."""
    module = masked(kind)
    assert add_masks(module) is module
