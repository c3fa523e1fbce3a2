"""Tensors of a model with open sizes are followed through TVM's passes, and the claims hold at sizes of one's choice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import octavo

PASSES = [
    relax.transform.LegalizeOps(),
    relax.transform.AnnotateTIROpPattern(),
    relax.transform.FuseOps(),
    relax.transform.FuseTIR(),
]


@pytest.fixture(scope="module")
def attention() -> octavo.Model:
    """Return an attention of open batch and length, with a causal mask of -inf that the graph makes from its sizes."""
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((16, 16)).astype(np.float32) / 4 for name in ("wq", "wk", "wv")}
    constants = {
        "two": np.array([2], np.int64),
        "zero": np.array(0, np.int64),
        "one": np.array(1, np.int64),
        "axis": np.array([0], np.int64),
        "last": np.array([1], np.int64),
        "minus": np.array(-np.inf, np.float32),
        "none": np.array(0, np.float32),
    }
    nodes = [
        *(helper.make_node("MatMul", ["x", f"w{each}"], [each]) for each in "qkv"),
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["scores"]),
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["length"]),
        helper.make_node("Range", ["zero", "length", "one"], ["places"]),
        helper.make_node("Unsqueeze", ["places", "axis"], ["columns"]),
        helper.make_node("Unsqueeze", ["places", "last"], ["rows"]),
        helper.make_node("Greater", ["columns", "rows"], ["later"]),
        helper.make_node("Where", ["later", "minus", "none"], ["mask"]),
        helper.make_node("Add", ["scores", "mask"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["shares"], axis=-1),
        helper.make_node("MatMul", ["shares", "v"], ["mixed"]),
        helper.make_node("Relu", ["mixed"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "attention",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in {**weights, **constants}.items()],
    )
    return octavo.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def followed(model: octavo.Model, passes: list[Any]) -> tuple[octavo.Lineage, tvm.IRModule]:
    """Return the lineage of a model through passes, and what they made of it."""
    lineage = octavo.Lineage(model)
    with tvm.target.Target("llvm"), tvm.transform.PassContext(opt_level=3, instruments=[lineage]):
        return lineage, tvm.transform.Sequential(passes)(model.bound())


@pytest.mark.parametrize("count", [1, len(PASSES)])
def test_tensors_are_found_again_behind_kernels_of_open_sizes(attention: octavo.Model, count: int) -> None:
    lineage, final = followed(attention, PASSES[:count])
    computed = ("q", "k", "v", "scores", "masked", "shares", "mixed", "y")
    assert all(lineage[name].kind in ("kept", "inside", "laid out anew") for name in computed), {n: lineage[n] for n in computed}
    rng = np.random.default_rng(1)
    for batch, length in ((1, 5), (3, 9)):
        x = rng.standard_normal((batch, length, 16)).astype(np.float32)
        checks = octavo.verify_lineage(attention, final, x, lineage=lineage)
        assert all(check.is_right for check in checks), [check for check in checks if not check.is_right]
        assert {check.source_name for check in checks if check.is_compared} >= {"q", "k", "v", "y"}


def test_a_variable_is_one_of_the_module_that_passes_made(attention: octavo.Model) -> None:
    lineage, final = followed(attention, PASSES)
    bound = [binding.var for block in final["main"].body.blocks for binding in block.bindings]
    assert any(lineage.variable("y").same_as(var) for var in bound)


def test_a_pass_that_drops_an_op_is_named_at_any_size(attention: octavo.Model) -> None:
    @tvm.transform.module_pass(opt_level=0, name="DropRelu")
    def drop_relu(module: tvm.IRModule, _context: Any) -> tvm.IRModule:
        return relax.transform.EliminateCommonSubexpr()(_without_relu(module))

    lineage, _ = followed(attention, [drop_relu, *PASSES])
    assert lineage["y"].kind == "gone"
    assert lineage.story("y")[-1].pass_name == "DropRelu"
    assert lineage["v"].kind != "gone"


def _without_relu(module: tvm.IRModule) -> tvm.IRModule:
    @relax.expr_functor.mutator
    class Drop(relax.PyExprMutator):
        def visit_call_(self, call: Any) -> Any:
            return self.visit_expr(call.args[0]) if getattr(call.op, "name", "") == "relax.nn.relu" else super().visit_call_(call)

    changed = tvm.IRModule(dict(module.functions))
    changed["main"] = Drop().visit_expr(module["main"])
    return changed
