"""Lineage through local functions, calls within calls and both branches of an If."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.dpl import is_op, wildcard
from tvm.script import ir as I
from tvm.script import relax as R

from lineage_nets import branched_net, followed, python_pass, value_of
from octavo.ir.graph.lineage import Lineage
from tvm_alone import TARGET

transform: Any = relax.transform


def patterns() -> list[tuple[str, Any]]:
    conv = is_op("relax.nn.conv2d")(wildcard(), wildcard())
    singles = {"concat": (wildcard(),), "tanh": (wildcard(),), "add": (wildcard(), wildcard())}
    return [("npu.conv2d", conv), *((f"npu.{name}", is_op(f"relax.{name}")(*operands)) for name, operands in singles.items())]


def test_composites_bound_inside_functions_for_a_code_generator() -> None:
    lineage = followed(branched_net(), transform.FuseOpsByPattern(patterns(), annotate_codegen=True))
    assert [name for name, state in lineage.states.items() if state.kind == "gone"] == []
    assert lineage["conv"].kind == "kept"


def test_composites_merged_for_a_code_generator() -> None:
    lineage = followed(
        branched_net(), transform.FuseOpsByPattern(patterns(), annotate_codegen=False), transform.MergeCompositeFunctions()
    )
    assert [name for name, state in lineage.states.items() if state.kind == "gone"] == ["unread"]
    assert lineage["summed"].kind == "kept"
    for tensor, composite in {"left_conv": "npu.conv2d", "once": "npu.tanh", "joined": "npu.concat"}.items():
        state = lineage[tensor]
        assert (state.kind, state.composite.rpartition("/")[2]) == ("inside", composite)
        assert state.composite.startswith("fused_")


@I.ir_module
class Closures:
    """A local function that reads a variable of the function around it, called twice, once within another one."""

    @R.function
    def main(x: R.Tensor((2, 3), "float32")) -> R.Tensor((2, 3), "float32"):
        around = R.tanh(x)

        @R.function
        def inner(a: R.Tensor((2, 3), "float32")) -> R.Tensor((2, 3), "float32"):
            return R.add(a, around)

        @R.function
        def outer(b: R.Tensor((2, 3), "float32")) -> R.Tensor((2, 3), "float32"):
            twice = R.add(b, b)
            done: R.Tensor((2, 3), "float32") = inner(twice)
            return done

        once: R.Tensor((2, 3), "float32") = inner(x)
        y: R.Tensor((2, 3), "float32") = outer(once)
        return y


def test_a_local_function_reads_what_is_around_it() -> None:
    x = np.random.default_rng(1).standard_normal((2, 3)).astype(np.float32)
    np.testing.assert_allclose(value_of(Closures, x), 2 * (x + np.tanh(x)) + np.tanh(x), rtol=1e-6)


@I.ir_module
class Branches:
    """A choice between two computations, one of which calls a function of the module."""

    @R.function
    def helper(a: R.Tensor((2, 3), "float32")) -> R.Tensor((2, 3), "float32"):
        return R.add(a, a)

    @R.function
    def main(x: R.Tensor((2, 3), "float32"), c: R.Tensor((), "bool")) -> R.Tensor((2, 3), "float32"):
        cls = Branches
        start = R.tanh(x)
        if c:
            first = R.exp(start)
            chosen: R.Tensor((2, 3), "float32") = cls.helper(first)
        else:
            other = R.sqrt(R.abs(start))
            chosen: R.Tensor((2, 3), "float32") = other
        return R.add(chosen, x)


@pytest.mark.parametrize("condition", [True, False])
def test_the_value_of_a_branch_that_is_taken(condition: bool) -> None:
    x = np.random.default_rng(1).standard_normal((2, 3)).astype(np.float32)
    expected = 2 * np.exp(np.tanh(x)) if condition else np.sqrt(np.abs(np.tanh(x)))
    np.testing.assert_allclose(value_of(Branches, x, np.array(condition)), expected + x, rtol=1e-6)


def test_tensors_in_branches_are_followed_by_structure() -> None:
    lineage = Lineage(Branches, target=TARGET)
    module: Any = Branches
    with TARGET, tvm.transform.PassContext(opt_level=3, instruments=[lineage]):
        for each in (transform.LegalizeOps(), transform.ConvertToDataflow(1), python_pass("Copy", tvm.IRModule.clone)):
            module = each(module)
    assert [name for name, state in lineage.states.items() if state.kind == "gone"] == []
    assert (lineage["chosen"].kind, lineage["chosen"].evidence) == ("kept", "structure")
