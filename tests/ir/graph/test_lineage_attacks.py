"""Passes that move, split, reorder and disguise what they compute: a link is right, or the tensor is lost by that very pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from lineage_nets import branched_net, followed, python_pass, rewriting
from nets import model_of
from octavo.evaluation.verify import verify_lineage
from octavo.ir.graph import Model
from octavo.ir.graph.dataflow import BodyWriter
from octavo.ir.graph.lineage import Lineage
from tvm_alone import TARGET

transform: Any = relax.transform
op: Any = relax.op


@pytest.fixture(scope="module")
def model() -> Model:
    return branched_net()


def lost_by(lineage: Lineage, tensor: str) -> str:
    """Return the pass that lost a tensor."""
    last = lineage.story(tensor)[-1]
    assert last.state.kind == "gone", str(last.state)
    return last.pass_name


def test_a_pass_that_swaps_two_tensors_of_one_shape(model: Model) -> None:
    def swap(_writer: BodyWriter, name: str, value: Any, new: dict[str, Any]) -> Any:
        return op.concat([new["right_conv"], new["left_conv"]], axis=1) if name == "joined" else None

    lineage = followed(model, rewriting("Swap", swap))
    assert lost_by(lineage, "joined") == lost_by(lineage, "summed") == lost_by(lineage, "y") == "Swap"
    assert {lineage[tensor].kind for tensor in ("left_conv", "right_conv", "folded")} == {"kept"}


@pytest.mark.parametrize("of", [op.nn.avg_pool2d, op.nn.max_pool2d], ids=["average", "largest"])  # -3.4e38 without a pixel
def test_windows_to_which_tvm_gives_one_hash(of: Any) -> None:
    def pool(x: Any, strides: tuple[int, int], dilation: tuple[int, int]) -> Any:
        return of(x, (1, 4), strides, (0, 0, 1, 1), dilation)

    def net(writer: BodyWriter, x: Any) -> Any:
        return writer.emit("y", pool(x, (2, 2), (1, 2)), is_output=True)

    replace = rewriting("Replace", lambda _writer, name, _value, new: pool(new["x"], (2, 3), (2, 1)) if name == "y" else None)
    assert lost_by(followed(model_of({"x": ((1, 2, 8, 8), "float32")}, {}, net, ("y",)), replace), "y") == "Replace"


@pytest.mark.parametrize("disguise", ["flip", "roll", "channels"])
def test_a_tensor_replaced_by_one_with_the_same_statistics(model: Model, disguise: str) -> None:
    """The same elements elsewhere: equal minimum, maximum, mean and histogram, under the old name."""

    def replace(writer: BodyWriter, name: str, value: Any, new: dict[str, Any]) -> Any:
        if name != "active":
            return None
        real = writer.emit("other", value)
        if disguise == "flip":
            return op.flip(real, axis=3)
        axis = 3 if disguise == "roll" else 1
        first, second = op.strided_slice(real, [axis], [0], [3]), op.strided_slice(real, [axis], [3], [8])
        return op.concat([writer.emit("second", second), writer.emit("first", first)], axis=axis)

    lineage = followed(model, rewriting("Disguise", replace))
    assert (lineage["active"].kind, lineage["active"].holder) == ("kept", "other")
    assert lost_by(lineage, "left") == lost_by(lineage, "joined") == "Disguise"
    # Pointwise layers and a mean over all pixels don't see where a pixel was: that the result is the same is the truth.
    assert lineage["y"].kind == ("gone" if disguise == "channels" else "kept")


def test_a_convolution_split_in_two_along_its_outputs(model: Model) -> None:
    def split(writer: BodyWriter, name: str, value: Any, new: dict[str, Any]) -> Any:
        if name != "left_conv":
            return None
        weight = model.params[next(each for each in model.params if each == "shared")]
        parts = [relax.const(weight[:3]), relax.const(weight[3:])]
        halves = [writer.emit(f"half_{index}", op.nn.conv2d(new["left"], part)) for index, part in enumerate(parts)]
        return op.concat(halves, axis=1)

    lineage = followed(model, rewriting("SplitOutputs", split), transform.LegalizeOps())
    assert (lineage["left_conv"].kind, lineage["left_conv"].evidence) == ("kept", "value")
    assert lineage["y"].kind == "kept"


def test_a_convolution_split_in_two_along_its_inputs(model: Model) -> None:
    """Each half has the shape of the whole and part of its value; only the sum is the tensor."""

    def split(writer: BodyWriter, name: str, value: Any, new: dict[str, Any]) -> Any:
        if name != "left_conv":
            return None
        weight = model.params[next(each for each in model.params if each == "shared")]
        bounds = [(0, 2), (2, 4)]
        data = [writer.emit(f"part_{low}", op.strided_slice(new["left"], [1], [low], [high])) for low, high in bounds]
        sums = [
            writer.emit("left_conv" if low == 0 else "rest", op.nn.conv2d(part, relax.const(weight[:, low:high])))
            for part, (low, high) in zip(data, bounds, strict=True)
        ]
        return op.add(*sums)

    lineage = followed(model, rewriting("SplitInputs", split), transform.CanonicalizeBindings())
    assert lineage["left_conv"].kind == "kept"
    assert lineage["left_conv"].expression.startswith("add(")


def test_weights_that_a_pass_changes_a_little(model: Model) -> None:
    def change(_writer: BodyWriter, name: str, value: Any, new: dict[str, Any]) -> Any:
        if name != "left_conv":
            return None
        return op.nn.conv2d(new["left"], relax.const(model.params[next(iter(model.params.keys() & {"shared"}))] * 1.01))

    lineage = followed(model, rewriting("Nudge", change))
    state = lineage["left_conv"]
    # One factor for all elements is what became of it, and what verify_lineage found right; nothing behind it is kept.
    assert (state.kind, state.relation.axis) == ("rescaled", None)
    np.testing.assert_allclose(state.relation.factors, [1.01], rtol=1e-5)
    assert lost_by(lineage, "y") == "Nudge"


def test_function_outlined_inlined_and_outlined_again(model: Model) -> None:
    fuse = (transform.LegalizeOps(), transform.AnnotateTIROpPattern(), transform.FuseOps())
    lineage = followed(model, *fuse, transform.InlinePrivateFunctions(), transform.FuseOps(), transform.FuseTIR())
    kinds = [states["y"].kind for states in (lineage.after(step) for step in range(len(lineage.steps)))]
    assert set(kinds) <= {"kept", "inside"}
    names = [step.pass_name for step in lineage.steps]
    inlined = lineage.after(names.index("InlinePrivateFunctions"))
    assert inlined["normed"].composite == ""


def test_parameters_that_a_pass_reorders() -> None:
    """A call passes arguments by their order: what the function now does with the first input is another thing."""

    def body(writer: BodyWriter, **v: Any) -> Any:
        twice = writer.emit("twice", op.add(v["a"], v["a"]))
        root = writer.emit("root", op.tanh(v["b"]))
        return writer.emit("y", op.subtract(twice, root), is_output=True)

    model = model_of({"a": ((2, 8), "float32"), "b": ((2, 8), "float32")}, {}, body, ("y",))

    def reorder(module: tvm.IRModule) -> tvm.IRModule:
        function = module["main"]
        first, second = function.params
        swapped = relax.Function([second, first], function.body, function.ret_ty, function.is_pure, function.attrs)
        return tvm.IRModule({module.get_global_var("main"): swapped})

    lineage = followed(model, python_pass("Reorder", reorder))
    assert (lineage["a"].holder, lineage["b"].holder) == ("b", "a")  # the argument passed first is a's, whatever it is called
    assert lost_by(lineage, "twice") == lost_by(lineage, "root") == lost_by(lineage, "y") == "Reorder"


def test_an_operand_swapped_where_order_matters_in_float16(model: Model) -> None:
    """The partner that structure proposes has the same op and the same operands; only values can tell that it is another."""

    def swap(_writer: BodyWriter, name: str, value: Any, new: dict[str, Any]) -> Any:
        return op.concat([new["right_conv"], new["left_conv"]], axis=1) if name == "joined" else None

    decompose = transform.DecomposeOpsForInference("main")
    change = tvm.transform.Sequential([rewriting("Swap", swap), transform.ToMixedPrecision()])
    lineage = followed(model, decompose, python_pass("SwapAndCast", lambda module: change(module)))
    assert lineage["left_conv"].is_alive
    assert not lineage["joined"].is_alive
    assert not lineage["y"].is_alive


def drifting_net() -> Model:
    """Two convolutions, each moved by a large number and back, time and again: each round costs float16 some of their bits."""

    def body(writer: BodyWriter, **v: Any) -> Any:
        sides: list[Any] = []
        for name in ("left", "right"):
            value = writer.emit(f"{name}_conv", op.nn.conv2d(v["x"], v[f"{name}_w"]))
            for number in range(16):
                far = writer.emit(f"{name}_far{number}", op.add(value, v["big"]))
                back = writer.emit(f"{name}_back{number}", op.subtract(far, v["big"]))
                value = writer.emit(name if number == 15 else f"{name}{number}", op.multiply(back, v["turn"]))
            sides.append(value)
        return writer.emit("y", op.multiply(*sides), is_output=True)

    rng = np.random.default_rng(4)
    params = {f"{name}_w": rng.standard_normal((4, 3, 1, 1)).astype(np.float32) for name in ("left", "right")}
    params["big"] = np.full((1, 4, 1, 1), 500, np.float32)
    params["turn"] = np.full((1, 4, 1, 1), -1.013, np.float32)
    return model_of({"x": ((1, 3, 8, 8), "float32")}, params, body, ("y",))


def test_float16_that_drifted_far_is_told_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model = drifting_net()
    lineage = Lineage(model, target=TARGET)
    with TARGET, tvm.transform.PassContext(opt_level=3, instruments=[lineage]):
        module = transform.ToMixedPrecision()(model.bound())
    x = np.random.default_rng(7).standard_normal((1, 3, 8, 8)).astype(np.float32)
    checks = {check.id: check for check in verify_lineage(model, module, x, lineage=lineage)}
    assert [str(check) for check in checks.values() if not check.is_right] == []
    for side in ("left", "right"):
        assert checks[side].is_compared, str(checks[side].state)
        assert checks[side].sqnr_db < 20
    states = lineage.states
    swapped = {**states, "left": states["right"], "right": states["left"]}
    monkeypatch.setattr(Lineage, "states", property(lambda _self: swapped))
    checks = {check.id: check for check in verify_lineage(model, module, x, lineage=lineage)}
    assert [check.id for check in checks.values() if not check.is_right] == ["left", "right"]
