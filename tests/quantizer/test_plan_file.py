"""The plan as a file: nothing is lost, an edit is obeyed exactly or refused with the reason, a bad file is one clear error."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from plan_edits import INT8, NPU, Edit, drop, edited, layer, put, save_plan, scale

import octavo
from handmade_profile import ranged
from nets import residual_net
from octavo.compiler.backends import CodeGenerator
from octavo.errors import QuantizationError
from octavo.ir.graph.dataflow import DataflowView, call_to
from octavo.ir.identity import TensorId
from octavo.ir.qdq.values import numpy_constant
from octavo.numerics import PerAxis, QuantParams
from octavo.quantizer.plan.plan import QuantizationPlan
from octavo.quantizer.recipe import Recipe
from octavo.target import OpSupport, TargetDescription
from octavo.target.limits import Limit
from octavo.target.tensor_support import TensorSupport
from random_nets import random_net


class Vendor(CodeGenerator):
    """Has a description, and is never asked for code."""

    def __init__(self, description: TargetDescription) -> None:
        self.description = description

    def generate(self, composite: Any) -> Any:
        raise AssertionError(composite)


def pointwise(**more: Any) -> Vendor:
    given = {"activations": ("int8",), "weights": ("int8",), "fusions": ("bias",), "limits": {"kernel": Limit(maximum=1)}}
    return Vendor(TargetDescription(name="pointwise", ops=(OpSupport(op="nn.conv2d", **given, **more),)))


@pytest.fixture(name="saved")
def fixture_saved(tmp_path: Path) -> Path:
    return save_plan(tmp_path / "plan.json")


def applied(path: Path, target: Any = NPU) -> Any:
    return octavo.quantize(residual_net(), plan=path, target=target)


TARGETS = {
    "cpu": (lambda: "cpu", Recipe()),
    "int16": (lambda: "cpu", Recipe(activation_dtype="int16")),
    "asked for": (lambda: "cpu", Recipe(activation_dtype="int8", weight_granularity="per_tensor", float_ops=("sigmoid", "add"))),
    "npu": (lambda: NPU, Recipe()),
    "two": (lambda: [pointwise(scales="power_of_two", rounding="half_away", weight_range="full"), "cpu"], Recipe()),
}


@pytest.mark.parametrize("case", TARGETS)
@pytest.mark.parametrize("seed", [None, 5, 20, 193])
def test_a_saved_plan_gives_the_same_bytes(seed: int | None, case: str, tmp_path: Path) -> None:
    model = residual_net() if seed is None else random_net(seed)
    rng = np.random.default_rng(seed)
    ends = {str(key): tuple(sorted(rng.normal(scale=float(rng.choice([0.1, 1, 8])), size=2))) for key in model.tensors}
    make, recipe = TARGETS[case]
    target = make()
    first = octavo.quantize(model, ranged(model, ends), target=target, recipe=recipe)
    first.plan.save(tmp_path / "plan.json")
    loaded = QuantizationPlan.load(tmp_path / "plan.json")
    again = octavo.quantize(model, plan=loaded, target=target)
    again.plan.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "plan.json").read_bytes()
    assert tvm.ir.save_json(again.bound()) == tvm.ir.save_json(first.bound())
    assert again.fingerprint == first.fingerprint
    for each in fields(QuantizationPlan):
        if each.name != "weight_values":
            assert getattr(loaded, each.name) == getattr(first.plan, each.name) == getattr(again.plan, each.name), each.name
    assert first.plan.layers


@pytest.mark.parametrize(
    ("seed", "target"), [(1, "cpu"), (7, NPU), (30, "cpu"), (30, NPU)], ids=["1-cpu", "7-npu", "30-cpu", "30-npu"]
)
def test_other_scales_of_every_tensor_are_those_of_the_module_and_of_its_code(seed: int, target: Any, tmp_path: Path) -> None:
    model, rng = random_net(seed), np.random.default_rng(seed)
    plan = octavo.quantize(model, ranged(model), target=target).plan
    given = {**plan.activations, **plan.weights}
    groups = {key: group for group in plan.shared for key in group}
    wanted: dict[TensorId, QuantParams] = {}
    for key, params in given.items():
        factor = np.float32(2.0 ** rng.integers(-1, 2))
        for each in () if key in wanted else groups.get(key, (key,)):
            wanted[each] = replace(given[each], scale=params.scale * factor)
    plan.with_params(wanted).save(tmp_path / "plan.json")
    quantized = octavo.quantize(model, plan=tmp_path / "plan.json", target=target)
    assert {**quantized.plan.activations, **quantized.plan.weights} == wanted
    view = DataflowView(quantized.module["main"])
    calls = {binding.var.name: call_to(binding.value, "quantize") for binding in view.bindings}
    scales = {name.removesuffix("_q"): numpy_constant(call.args[1]) for name, call in calls.items() if call is not None}
    assert scales == {str(key): wanted[key].scale for key in plan.activations}
    assert wanted != given
    x = rng.normal(size=model.tensors[model.input_ids[0]].shape).astype(np.float32)
    results = [octavo.compile(quantized, target=each)(x) for each in (target, "generic")]
    assert all(np.array_equal(value, results[1][name]) for name, value in results[0].items())


def test_nothing_is_lost_that_a_plan_holds(saved: Path, tmp_path: Path) -> None:
    plan = QuantizationPlan.load(saved)
    odd = np.nextafter(np.float32(0.1), np.float32(1))
    key, weight = TensorId("r1"), TensorId("w1")
    changed = replace(
        plan,
        activations={**plan.activations, key: QuantParams.per_tensor("int16", odd, -7)},
        weights={
            **plan.weights,
            weight: QuantParams(
                dtype="int8",
                scale=np.array([odd, 1e-38, 3e38], np.float32),
                zero_point=np.zeros(3),
                granularity=PerAxis(3),
                qmin=-127,
            ),
        },
        roundings={**plan.roundings, key: "fixed_point_twice_away"},
        recipe=Recipe(exclude=("a/b:0", "Conv"), range_estimator="percentile:99.5", activation_dtype="int8"),
        float_ops=(replace(plan.float_ops[0], reason='says "no", in ünïcode\nand lines'), *plan.float_ops[1:]),
    )
    changed.save(tmp_path / "changed.json")
    loaded = QuantizationPlan.load(tmp_path / "changed.json")
    assert loaded == changed
    assert loaded.activations[key].scale.tobytes() == odd.tobytes()


def test_what_was_changed_is_used_and_the_rest_stays(saved: Path) -> None:
    before = QuantizationPlan.load(saved)

    def edit(data: dict[str, Any]) -> None:
        data["activations"]["r1"]["scale"] = 0.125
        data["weights"]["w2"]["scale"] = [2 * scale for scale in data["weights"]["w2"]["scale"]]
        data["activations"]["r2"]["rounding"] = "shift_half_even"
        data["activations"]["r3"]["rounding"] = None

    model = applied(edited(saved, edit))
    after = model.plan
    assert before.roundings[TensorId("r3")] == "shift_half_up", "what null stands for"
    assert float(after.activations[TensorId("r1")].scale) == 0.125
    assert after.weights[TensorId("w2")].scale.tolist() == [2 * scale for scale in before.weights[TensorId("w2")].scale.tolist()]
    others = [key for key in before.activations if key != "r1"]
    assert all(after.activations[key] == before.activations[key] for key in others)
    assert all(after.weights[key] == before.weights[key] for key in before.weights if key != "w2")
    assert after.roundings == {**before.roundings, TensorId("r2"): "shift_half_even"}
    assert [layer.output for layer in after.layers] == [layer.output for layer in before.layers]
    assert after.biases[TensorId("b2")].scale.tolist() == [
        0.125 * scale for scale in after.weights[TensorId("w2")].scale.tolist()
    ]
    text = model.module.script(show_meta=False)
    assert '"shift_half_even"' in next(line for line in text.splitlines() if "r2_q:" in line)
    assert model.fingerprint != octavo.quantize(residual_net(), plan=before, target=NPU).fingerprint


def test_a_layer_that_is_taken_out_stays_float(saved: Path) -> None:
    def edit(data: dict[str, Any]) -> None:
        data["layers"] = [layer for layer in data["layers"] if layer["output"] != "r2"]
        data["float_ops"].append({"op": "nn.conv2d", "tensor": "zz", "reason": "our engineers want it float"})

    with pytest.raises(QuantizationError, match="float_ops: the model has no tensor 'zz'"):
        applied(edited(saved, edit))

    def name_it(data: dict[str, Any]) -> None:
        data["float_ops"][-1]["tensor"] = "r2"

    with pytest.raises(QuantizationError, match=r"r2: rounding 'shift_half_up': .* results of a change from float half_even"):
        applied(edited(saved, name_it))
    plan = applied(edited(saved, put("activations", "r2", rounding="half_even"))).plan
    assert "r2" not in [layer.output for layer in plan.layers]
    reasons = {str(op.tensor): op.reason for op in plan.float_ops}
    assert reasons["r2"] == reasons["_c2_conv"] == "our engineers want it float"

    def leave_unsaid(data: dict[str, Any]) -> None:
        del data["float_ops"][-1]

    plan = applied(edited(saved, leave_unsaid)).plan
    assert {str(op.tensor): op.reason for op in plan.float_ops}["_c2_conv"] == "the plan has no layer for it"


REFUSED: dict[str, tuple[Edit, str]] = {
    "no power of two": (
        scale("activations", "r1", 0.3),
        "r1 cannot be all that its ops need: the plan scale 0.300000012, nn.conv2d r1 a scale that is a power of two",
    ),
    "no power of two of a weight": (
        scale("weights", "w1", [0.3] * 8),
        "w1 has scale 0.3; .* takes powers of two alone",
    ),
    "shared parameters apart": (
        scale("activations", "m", 0.5),
        r"m, f \(of one scale and zero point\) cannot be all that its ops need: the plan scale",
    ),
    "asymmetric": (
        put("activations", "c3", zero_point=3),
        "c3 cannot be all that its ops need: the plan zero point 3, nn.conv2d c3 symmetric",
    ),
    "dtype": (
        put("activations", "c3", dtype="uint8", qmin=0, qmax=255),
        "c3 cannot be all that its ops need: .*the plan uint8.*int8",
    ),
    "narrow activation": (put("activations", "c3", qmin=-127), "c3: qmin -127, qmax 127: activations use the whole range"),
    "wide weight": (
        put("weights", "w1", qmin=-128),
        "w1: the plan gives it integers from -128, nn.conv2d r1 needs a narrow range, from -127",
    ),
    "weight's zero point": (put("weights", "w1", zero_point=[1] * 8), "w1: the plan gives it a zero point other than 0"),
    "channels": (put("weights", "w1", scale=[0.5] * 3, zero_point=[0] * 3), "w1: the plan gives it 3 scales along axis 0"),
    "axis": (put("weights", "w1", axis=2), "w1: the plan gives it 8 scales along axis 2, .* needs 8 scales along axis 0"),
    "activation by channel": (
        put("activations", "r1", scale=[0.5, 0.5], zero_point=[0, 0], axis=1),
        "the plan needs per_axis for r1; quantize makes .* one scale per tensor",
    ),
    "accumulator": (scale("weights", "w4", [2.0**-40] * 10), "matmul y cannot be integer"),
    "bias": (scale("weights", "w1", [2.0**-30] * 8), "nn.conv2d r1 cannot be integer: .*bias"),
    "rounding": (
        put("activations", "r3", rounding="half_up"),
        "r3: rounding 'half_up': target npu rounds results of add shift_half_up",
    ),
    "another op": (layer(0, op="matmul"), r"matmul r1 cannot be integer: the plan has matmul .* the model has nn.conv2d \+ bias"),
    "another input": (
        layer(1, inputs=["x"]),
        "nn.conv2d r2 cannot be integer: the plan has .* of x, w2 .* the model has .* of r1, w2",
    ),
    "a layer that is none": (
        layer(0, output="c1"),
        "nn.conv2d c1 cannot be integer: its result c1 has no parameters in the plan",
    ),
    "a layer elsewhere": (layer(0, output="x"), "nn.conv2d x cannot be integer: the model has no nn.conv2d there"),
    "target": (layer(0, target="dsp"), "layer nn.conv2d r1 is for target 'dsp', and quantize was given 'npu'"),
    "unknown tensor": (
        lambda data: data["activations"].update(zz=data["activations"]["r1"]),
        "activations: the model has no tensor 'zz'",
    ),
    "another name": (
        put("activations", "r1", name="net/r2:0"),
        "activations: r1 is called 'net/r1:0' in the source, got 'net/r2:0'",
    ),
    "another source": (layer(0, source="r2"), "layer nn.conv2d r1 has source r1, bias b1, got source r2, bias b1"),
    "no bias": (layer(0, bias=None), "layer nn.conv2d r1 has source r1, bias b1, got source r1, bias None"),
    "a reason for no op": (
        lambda data: data["float_ops"].append({"op": "nn.conv2d", "tensor": "c1", "reason": "slow"}),
        "float_ops: c1 is made by no op that stays float",
    ),
    "no parameters of an input": (drop("activations", "r1"), "layer nn.conv2d r2 reads r1, which has no parameters in the plan"),
    "no parameters of a result": (drop("activations", "r3"), "r3"),
    "no parameters of a weight": (drop("weights", "w1"), "layer nn.conv2d r1 reads w1, which has no parameters in the plan"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_target_cannot_take_is_refused_with_the_reason(saved: Path, case: str) -> None:
    edit, said = REFUSED[case]
    full = replace(
        NPU, ops=(*NPU.ops, OpSupport(op="matmul", weights=("int8",), weight_schemes=("symmetric",), fusions=("bias",), **INT8))
    )
    if case == "accumulator":
        model = residual_net()
        octavo.quantize(model, ranged(model), target=full).plan.save(saved)
    with pytest.raises(QuantizationError, match=said) as raised:
        applied(edited(saved, edit), full if case == "accumulator" else NPU)
    assert "\n" not in str(raised.value)


VALUES = (
    *(None, True, 0, 1, -1, 2**70, 0.5, 1e-45, 1e39, -128, 127, 2.0**-20, 2.0**59, "", "x", "int8", "uint8", "half_up", "r1"),
    *([], [0], [0.5] * 8, {}),
)


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of everything in JSON values."""
    if path:
        yield path
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from places(value, (*path, key))


@pytest.mark.parametrize("seed", range(4))
def test_a_mutated_plan_is_an_error_or_is_applied(seed: int, saved: Path) -> None:
    draw = random.Random(seed)
    text = saved.read_text()
    found = list(places(json.loads(text)))
    applied_count, errors = 0, list[str]()
    for _ in range(40):
        data = json.loads(text)
        *path, last = draw.choice(found)
        held: Any = data
        for key in path:
            held = held[key]
        if draw.random() < 0.2:
            del held[last]
        else:
            held[last] = draw.choice(VALUES)
        saved.write_text(json.dumps(data))
        try:
            applied_count += bool(applied(saved).plan.fingerprint)
        except octavo.OctavoError as error:
            errors.append(str(error))
    assert applied_count > 0
    assert len(errors) > 20
    assert [text for text in errors if "\n" in text] == []


def test_a_plan_of_another_model_is_refused(saved: Path) -> None:
    other = replace(residual_net(), fingerprint="sha256:" + "1" * 64)
    with pytest.raises(QuantizationError, match=f"the plan belongs to another model: .*{'1' * 64}"):
        octavo.quantize(other, plan=saved, target=NPU)


def test_a_plan_for_another_target_is_refused(saved: Path) -> None:
    with pytest.raises(QuantizationError, match="is for target 'npu', and quantize was given 'cpu': pass its target"):
        octavo.quantize(residual_net(), plan=saved)


def test_a_plan_stands_alone(saved: Path) -> None:
    model = residual_net()
    for more in ({"profile": ranged(model)}, {"recipe": Recipe()}, {"params": lambda _: None}):
        with pytest.raises(QuantizationError, match="a plan says all"):
            octavo.quantize(model, plan=saved, target=NPU, **more)
    with pytest.raises(octavo.OctavoError, match="expected a Profile"):
        octavo.quantize(model)


def test_a_write_that_fails_leaves_the_old_file(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, plan = saved.read_bytes(), QuantizationPlan.load(saved)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(QuantizationError, match=re.escape(f"{saved}: cannot write the plan: No space left on device")):
        plan.save(saved)
    assert saved.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [saved.name]


def test_tensors_that_share_parameters_follow_in_python(saved: Path) -> None:
    plan = QuantizationPlan.load(saved)
    assert ("f", "m") in plan.shared
    assert plan.with_params({}).biases == {}
    wider = QuantParams.per_tensor("int8", 0.5, 0)
    quantized = octavo.quantize(residual_net(), plan=plan.with_params({TensorId("m"): wider}), target=NPU)
    assert quantized.plan.activations[TensorId("f")] == quantized.plan.activations[TensorId("m")] == wider
    with pytest.raises(QuantizationError, match="the plan has no activation or weight 'zz'"):
        plan.with_params({TensorId("zz"): wider})


def test_a_recipe_takes_whole_parameters_of_weights_too() -> None:
    model, key = residual_net(), TensorId("w1")
    profile = ranged(model)
    own = QuantParams(
        dtype="int8", scale=np.full(8, 0.0625, np.float32), zero_point=np.zeros(8, np.int32), granularity=PerAxis(0), qmin=-127
    )
    plan = octavo.quantize(model, profile, recipe=Recipe(tensors={"net/w1:0": own})).plan
    assert plan.weights[key] == own
    support = TensorSupport(scale=0.125, granularity=("per_tensor",))
    plan = octavo.quantize(model, profile, recipe=Recipe(tensors={"w1": support})).plan
    assert plan.weights[key].to_json()["scale"] == 0.125
    plan = octavo.quantize(model, profile, recipe=Recipe(tensors={"b1": support})).plan
    assert [each.message for each in plan.adjustments if each.tensor == "b1"] == [
        "the recipe says what it must be, and a bias has the scale of its input times that of its weight"
    ]


def test_plans_are_equal_by_the_numbers_of_their_weights() -> None:
    model = residual_net()
    ends = {str(key): (-1.0, 2.0) for key in model.tensors}
    plan = octavo.quantize(model, ranged(model, ends)).plan
    same = {name: value.copy() for name, value in plan.weight_values.items()}
    assert same
    assert replace(plan, weight_values=same) == plan
    assert replace(plan, weight_values={name: value + 1 for name, value in same.items()}) != plan
    assert replace(plan, fingerprint="") != plan
