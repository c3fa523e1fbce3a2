"""Lineage through TVM's passes: every tensor classified, the reason named, every claim right by value."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from lineage_nets import branched_net, python_pass, rename_pass, renamed
from nets import model_of
from octavo.evaluation.verify import verify_lineage
from octavo.ir.graph import Model
from octavo.ir.graph.dataflow import BodyWriter
from octavo.ir.graph.evaluate import Evaluator
from octavo.ir.graph.lineage import Lineage, announce
from octavo.ir.graph.recast import Recast
from octavo.ir.graph.tracking import Announced
from tvm_alone import TARGET

transform: Any = relax.transform

PASSES = (
    transform.FoldBatchnormToConv2D(),
    transform.DecomposeOpsForInference("main"),
    transform.FoldConstant(),
    transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "OHWI"]}),
    transform.EliminateCommonSubexpr(),
    transform.CanonicalizeBindings(),
    transform.DeadCodeElimination(),
    transform.LegalizeOps(),
    transform.AnnotateTIROpPattern(),
    transform.FuseOps(),
    transform.FuseTIR(),
)

SHORT = (transform.FoldBatchnormToConv2D(), transform.LegalizeOps())


def followed(model: Model, *passes: tvm.transform.Pass) -> tuple[Lineage, tvm.IRModule]:
    """Run passes under a Lineage."""
    lineage = Lineage(model, target=TARGET)
    module = model.bound()
    with TARGET, tvm.transform.PassContext(opt_level=3, instruments=[lineage]):
        for each in passes:
            module = each(module)
    return lineage, module


def check_right(model: Model, lineage: Lineage, module: tvm.IRModule) -> None:
    """Every claim holds on an input that the lineage never saw, and no claim goes unchecked."""
    x = np.random.default_rng(7).standard_normal((1, 3, 8, 8)).astype(np.float32)
    checks = verify_lineage(model, module, x, lineage=lineage)
    assert [check.id for check in checks] == list(model.tensors)
    assert [(check.id, check.max_abs_error) for check in checks if not check.is_right] == []
    assert all(check.is_compared for check in checks if check.state.is_alive)


@pytest.fixture(scope="module")
def model() -> Model:
    """One network for all."""
    return branched_net()


def test_the_pass_list(model: Model) -> None:
    lineage, module = followed(model, *PASSES)
    check_right(model, lineage, module)
    kinds = {str(tensor): state.kind for tensor, state in lineage.states.items()}
    assert kinds["x"] == "kept"
    assert kinds["unread"] == "gone"
    assert kinds["doubled"] == "folded"
    assert all(state.evidence != "none" for state in lineage.states.values() if state.is_alive)


def test_the_default_pipeline(model: Model) -> None:
    lineage, module = followed(model, relax.pipeline.get_default_pipeline(TARGET))
    check_right(model, lineage, module)
    assert lineage["y"].is_alive
    assert lineage["active"].kind == "inside" or lineage["active"].is_alive


def test_batch_norm_folded_into_its_convolution(model: Model) -> None:
    lineage, _ = followed(model, transform.FoldBatchnormToConv2D())
    change = lineage.story("conv")[-1]
    assert (change.pass_name, change.state.kind) == ("FoldBatchnormToConv2D", "rescaled")
    expected = model.params["gamma"] / np.sqrt(model.params["variance"] + 1e-5)
    assert change.state.relation.axis == 1
    np.testing.assert_allclose(change.state.relation.factors, expected, rtol=1e-4)
    assert lineage["normed"].kind == "kept"


def test_batch_norm_swallowed_by_a_kernel_still_has_its_factors(model: Model) -> None:
    lineage, _ = followed(
        model,
        transform.FoldBatchnormToConv2D(),
        transform.FoldConstant(),
        transform.LegalizeOps(),
        transform.AnnotateTIROpPattern(),
        transform.FuseOps(),
        transform.FuseTIR(),
    )
    state = lineage["conv"]
    assert (state.kind, state.is_alive) == ("inside", False)
    assert state.composite.startswith("fused_conv2d")
    assert state.relation.factors.size == 8


def test_layout(model: Model) -> None:
    lineage, _ = followed(model, transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "OHWI"]}))
    assert lineage["conv"].kind == "laid out anew"
    assert lineage["conv"].relation.permutation == (0, 2, 3, 1)
    assert lineage.story("conv")[-1].pass_name == "ConvertLayout"
    assert lineage["y"].kind == "kept"


def test_ops_of_tuples_are_known_by_what_they_legalize_to(monkeypatch: pytest.MonkeyPatch) -> None:
    @I.ir_module
    class Tuples:
        @R.function
        def main(x: R.Tensor((1, 6), "float32"), z: R.Tensor((1, 3), "float32")):
            with R.dataflow():
                halves = R.split(x, 2, axis=1)
                left = R.tanh(halves[0])
                pair = (left, z)
                joined = R.concat(pair, axis=1)
                nested = R.stack((joined, x), axis=0)
                y = R.exp(nested)
                R.output(y)
            return y

    def fail(*_: Any) -> None:
        raise AssertionError("an op of a tuple legalizes to the kernel that its call becomes: nothing has to be computed")

    monkeypatch.setattr(Evaluator, "_run", fail)
    lineage = Lineage(Tuples, target=TARGET)
    with TARGET, tvm.transform.PassContext(opt_level=3, instruments=[lineage]):
        transform.LegalizeOps()(Tuples)
    assert {"x", "z", "left", "joined", "nested", "y"} <= set(lineage.states)
    assert {state.kind for state in lineage.states.values()} == {"kept"}


def test_merging(model: Model) -> None:
    lineage, _ = followed(model, transform.EliminateCommonSubexpr(), transform.CanonicalizeBindings())
    assert lineage["again"].kind == "merged"
    assert lineage["again"].merged_with == ("right_conv",)
    assert lineage["right_conv"].kind == "kept"
    assert lineage["left_conv"].kind == "kept"


def test_dead_code_and_constants(model: Model) -> None:
    lineage, _ = followed(model, transform.DeadCodeElimination(), transform.FoldConstant())
    last = lineage.story("unread")[-1]
    assert (last.pass_name, last.state.kind) == ("DeadCodeElimination", "gone")
    assert lineage["unread"].reason == "nothing read it"
    assert (lineage["doubled"].kind, lineage.story("doubled")[-1].pass_name) == ("folded", "FoldConstant")
    constant = lineage.constant("doubled")
    assert constant is not None
    np.testing.assert_allclose(constant, model.params["bias"] * 2)


def test_mixed_precision(model: Model) -> None:
    lineage, module = followed(model, transform.DecomposeOpsForInference("main"), transform.ToMixedPrecision())
    check_right(model, lineage, module)
    assert (lineage["active"].kind, lineage["active"].dtype) == ("kept", "float16")


# ---------------------------------------------------------------------------------------------- passes that would mislead


def test_a_pass_that_renames_everything(model: Model) -> None:
    lineage, module = followed(model, rename_pass(lambda name: f"z_{name[::-1]}"), *SHORT)
    check_right(model, lineage, module)
    after = lineage.after(2)
    assert lineage.steps[2].pass_name == "Rename"
    assert (after["conv"].kind, after["conv"].holder) == ("kept", "z_vnoc")


def test_a_pass_that_gives_every_variable_the_same_name(model: Model) -> None:
    lineage, module = followed(model, rename_pass(lambda _name: "t"), *SHORT)
    check_right(model, lineage, module)
    changed = [tensor for tensor, state in lineage.after(2).items() if state.kind != lineage.after(1)[tensor].kind]
    assert changed == []


def test_functions_whose_variables_bear_the_names_of_others(model: Model) -> None:
    """Fused functions name their inner values by the ids of outer ones, over and over; main has no names left at all."""

    def shadow(module: tvm.IRModule) -> tvm.IRModule:
        names = itertools.cycle([*model.tensors, ""])
        inner = [var.name_hint for var, function in module.functions.items() if isinstance(function, relax.Function)]
        nameless = renamed(module, lambda _name: "")
        return renamed(nameless, lambda _name: next(names), [name for name in inner if name != "main"])

    fused = (transform.LegalizeOps(), transform.AnnotateTIROpPattern(), transform.FuseOps())
    lineage, module = followed(model, *fused, python_pass("Shadow", shadow))
    check_right(model, lineage, module)
    before = next(index for index, step in enumerate(lineage.steps) if step.pass_name == "Shadow") - 1
    kept = {tensor: state.kind for tensor, state in lineage.after(before).items()}
    assert {tensor: state.kind for tensor, state in lineage.states.items()} == kept
    assert lineage["y"].holder == ""


def test_a_pass_that_swaps_two_names(model: Model) -> None:
    swap = {"left_conv": "right_conv", "right_conv": "left_conv", "conv": "active", "active": "conv"}
    lineage, module = followed(model, rename_pass(lambda name: swap.get(name, name)))
    check_right(model, lineage, module)
    assert lineage["left_conv"].holder == "right_conv"
    assert lineage["conv"].holder == "active"


def test_a_pass_that_lowers_folds_and_swaps_at_once(model: Model) -> None:
    swap = {"left_conv": "right_conv", "right_conv": "left_conv", "joined": "folded", "folded": "joined"}

    def change(module: tvm.IRModule) -> tvm.IRModule:
        lowered = transform.LegalizeOps()(transform.FoldBatchnormToConv2D()(module))
        return renamed(lowered, lambda name: swap.get(name, name))

    lineage, module = followed(model, python_pass("AllAtOnce", change))
    check_right(model, lineage, module)
    assert lineage["joined"].holder == "folded"
    assert lineage["conv"].kind == "rescaled"


def test_a_name_kept_on_another_value_is_not_believed(model: Model) -> None:
    def change(module: tvm.IRModule) -> tvm.IRModule:
        return relax.transform.BindSymbolicVars({})(_with_tanh_for_relu(module))

    lineage, module = followed(model, python_pass("Wrong", change))
    check_right(model, lineage, module)
    assert lineage["conv"].kind == "kept"
    assert [(change.pass_name, change.state.kind) for change in lineage.story("active")][-1] == ("Wrong", "gone")
    assert lineage["y"].kind == "gone"


def test_a_pass_that_duplicates_a_function(model: Model) -> None:
    first = (transform.LegalizeOps(), transform.AnnotateTIROpPattern(), transform.FuseOps())
    lineage, module = followed(model, *first, python_pass("Duplicate", _with_every_function_twice), transform.FuseTIR())
    check_right(model, lineage, module)
    assert "Duplicate" in [step.pass_name for step in lineage.steps]
    assert lineage["left_conv"].composite == "" or lineage["left_conv"].composite.endswith("_copy")


def test_names_that_are_missing_or_stand_twice() -> None:
    names = iter(["", "a", "a", "x"])
    x = relax.Var("x", relax.TensorType((2, 8), "float32"))
    builder = relax.BlockBuilder()
    bindings: list[Any] = []
    value: Any = x
    for op in (relax.op.tanh, relax.op.exp, relax.op.sigmoid, relax.op.nn.relu):
        call = builder.normalize(op(value))
        value = relax.Var(next(names), call.ty)
        bindings.append(relax.VarBinding(value, call))
    body = builder.normalize(relax.SeqExpr([relax.BindingBlock(bindings)], value))
    module = tvm.IRModule({tvm.ir.GlobalVar("main"): relax.Function([x], body, ret_ty=value.ty)})
    lineage = Lineage(module)
    with TARGET, tvm.transform.PassContext(opt_level=3, instruments=[lineage]):
        transform.LegalizeOps()(module)
    assert lineage.ids == ("x", "tensor", "a", "a_2", "x_2")
    assert [lineage[tensor].position for tensor in lineage.ids] == [0, 1, 2, 3, 4]
    assert all(lineage[tensor].kind == "kept" for tensor in lineage.ids)


def test_the_bounds_of_a_slice_are_part_of_its_op() -> None:
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        part = builder.emit(relax.op.strided_slice(x, [1], [0], [8], [2]), "part")
        other = builder.emit(relax.op.strided_slice(x, [1], [1], [8], [2]), "other")
        builder.emit_func_output(builder.emit(relax.op.add(part, other), "total"))
    module = builder.get()
    lineage = Lineage(module)
    with TARGET, tvm.transform.PassContext(opt_level=3, instruments=[lineage]):
        renamed(transform.LegalizeOps()(module), lambda name: f"z_{name}")
        transform.LegalizeOps()(renamed(module, lambda name: f"z_{name}"))
    assert [(lineage[tensor].kind, lineage[tensor].holder) for tensor in ("part", "other", "total")] == [
        ("kept", "z_part"),
        ("kept", "z_other"),
        ("kept", "z_total"),
    ]
    assert {lineage[tensor].evidence for tensor in lineage.ids} == {"structure"}


def test_a_wrong_claim_is_found(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    lineage, module = followed(model, transform.LegalizeOps())
    states = lineage.states
    swapped = {**states, "left_conv": states["right_conv"], "conv": states["normed"]}
    monkeypatch.setattr(Lineage, "states", property(lambda _self: swapped))
    x = np.random.default_rng(7).standard_normal((1, 3, 8, 8)).astype(np.float32)
    wrong = [check.id for check in verify_lineage(model, module, x, lineage=lineage) if not check.is_right]
    assert wrong == ["conv", "left_conv"]


def test_a_pass_within_a_pass_on_another_module_is_no_step(model: Model) -> None:
    other = branched_net(3).bound()

    def change(module: tvm.IRModule) -> tvm.IRModule:
        transform.LegalizeOps()(other)
        return transform.FoldConstant()(module)

    lineage, module = followed(model, python_pass("Outer", change))
    check_right(model, lineage, module)
    assert [step.pass_name for step in lineage.steps] == ["(source)", "(given)", "FoldConstant"]


def _with_tanh_for_relu(module: tvm.IRModule) -> tvm.IRModule:
    @relax.expr_functor.mutator
    class Replace(relax.PyExprMutator):
        def visit_call_(self, call: Any) -> Any:
            call = super().visit_call_(call)
            return relax.op.tanh(call.args[0]) if getattr(call.op, "name", "") == "relax.nn.relu" else call

    return tvm.IRModule({module.get_global_var("main"): Replace().visit_expr(module["main"])})


def _with_every_function_twice(module: tvm.IRModule) -> tvm.IRModule:
    """Copy each fused function and let every second call go to the copy."""
    copies: dict[str, Any] = {}
    result = tvm.IRModule(dict(module.functions.items()))
    for var, function in module.functions.items():
        if var.name_hint.startswith("fused"):
            copies[var.name_hint] = tvm.ir.GlobalVar(f"{var.name_hint}_copy")
            relax.expr._update_type(copies[var.name_hint], var.ty)
            result[copies[var.name_hint]] = function
    calls = iter(range(1000))

    @relax.expr_functor.mutator
    class Redirect(relax.PyExprMutator):
        def visit_call_(self, call: Any) -> Any:
            call = super().visit_call_(call)
            copy = copies.get(getattr(call.op, "name_hint", ""))
            return call if copy is None or next(calls) % 2 else relax.Call(copy, call.args, call.attrs, call.ty_args)

    result.update_func(result.get_global_var("main"), Redirect().visit_expr(result["main"]))
    return result


def test_pools_of_several_sizes_in_mixed_precision() -> None:
    """Ops of one name on one tensor, as a detector's spatial pyramid has them: their attributes tell them apart."""

    def body(writer: BodyWriter, **v: Any) -> Any:
        conv = writer.emit("conv", relax.op.nn.conv2d(v["x"], v["w"], padding=1))
        pools = [writer.emit(f"pool{size}", relax.op.nn.max_pool2d(conv, (size, size), padding=size // 2)) for size in (3, 5, 7)]
        joined = writer.emit("joined", relax.op.concat([conv, *pools], axis=1))
        return writer.emit("y", relax.op.sigmoid(joined), is_output=True)

    weight = np.random.default_rng(2).standard_normal((8, 3, 3, 3)).astype(np.float32)
    net = model_of({"x": ((1, 3, 8, 8), "float32")}, {"w": weight}, body, ("y",))
    lineage, module = followed(net, transform.ToMixedPrecision())
    check_right(net, lineage, module)
    alive = {tensor: state.dtype for tensor, state in lineage.states.items() if state.is_alive}
    assert alive == {"x": "float32", "conv": "float16", "joined": "float16", "y": "float32"} | {
        f"pool{size}": "float16" for size in (3, 5, 7)
    }


def test_a_value_of_the_same_float_type_is_no_stand_in(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever float32 passes compute otherwise is found as the value itself, whose number later passes know."""
    found: list[Any] = []
    find = Recast.find
    monkeypatch.setattr(Recast, "find", lambda self: found.append(find(self)) or found[-1])
    lineage, _ = followed(model, *PASSES)
    assert lineage["y"].is_alive
    assert len(found) > 3
    assert found == [{}] * len(found)


def test_what_another_thread_announces_is_no_step(model: Model) -> None:
    """A pass context is a thread's: what is built beside a step is another module."""
    lineage, other = Lineage(model), branched_net().bound()
    nothing = Announced(holders={}, fused_into={}, gone={}, relations={})
    with tvm.transform.PassContext(instruments=[lineage]):
        before = len(lineage.steps)
        with ThreadPoolExecutor(1) as beside:
            beside.submit(announce, "beside", lambda: other, {}, nothing).result()
        assert len(lineage.steps) == before
        announce("own", lambda: other, {}, nothing)
        assert len(lineage.steps) == before + 1
