"""The plan as a file: nothing is lost, an edit is obeyed exactly or refused with the reason, a bad file is one clear error."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from handmade_profile import ranged

import octavo
from nets import residual_net
from octavo.backends import CodeGenerator
from octavo.errors import QuantizationError
from octavo.identity import TensorId
from octavo.numerics import PerAxis, QuantParams
from octavo.quantize import QuantizationPlan, Recipe
from octavo.target import OpSupport, TargetDescription
from octavo.target.limits import Limit
from octavo.target.tensor_support import TensorSupport
from random_nets import random_net

SHIFTS = {"scales": "power_of_two", "activation_schemes": ("symmetric",), "requantize": "shift"}
INT8 = {"activations": ("int8",), **SHIFTS}
NPU = TargetDescription(
    name="npu",
    ops=(
        OpSupport(
            op="nn.conv2d",
            weights=("int8",),
            weight_schemes=("symmetric",),
            fusions=("bias", "nn.relu", "clip"),
            rounding=("half_up", "half_even"),
            **INT8,
        ),
        OpSupport(op="add", fusions=("nn.relu",), **INT8),
        OpSupport(op="mean", **INT8),
        OpSupport(op="reshape", same_params=True, **INT8),
    ),
)
Edit = Callable[[dict[str, Any]], None]


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
    """A plan of `residual_net` for NPU."""
    model = residual_net()
    octavo.quantize(model, ranged(model), target=NPU).plan.save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def edited(path: Path, edit: Edit) -> Path:
    """Change a plan as its user does: as JSON."""
    data = json.loads(path.read_text())
    edit(data)
    path.write_text(json.dumps(data, indent=2))
    return path


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

    model = applied(edited(saved, edit))
    after = model.plan
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
    assert reasons["r2"] == "our engineers want it float"
    assert "the plan has no layer for it" in " ".join(reasons.values())


def scale(group: str, key: str, value: Any) -> Edit:
    def edit(data: dict[str, Any]) -> None:
        data[group][key]["scale"] = value

    return edit


def put(group: str, key: str, **more: Any) -> Edit:
    def edit(data: dict[str, Any]) -> None:
        data[group][key].update(more)

    return edit


def layer(place: int, **more: Any) -> Edit:
    def edit(data: dict[str, Any]) -> None:
        data["layers"][place].update(more)

    return edit


def drop(*path: Any) -> Edit:
    def edit(data: dict[str, Any]) -> None:
        for key in path[:-1]:
            data = data[key]
        del data[path[-1]]

    return edit


REFUSED: dict[str, tuple[Edit, str]] = {
    "no power of two": (
        scale("activations", "r1", 0.3),
        "r1 cannot be all that its ops need: the plan scale 0.300000012, nn.conv2d r1 a scale that is a power of two",
    ),
    "no power of two of a weight": (
        scale("weights", "w1", [0.3] * 8),
        "its weight w1: the plan gives it the scale 0.300000012, .*power of two",
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


MALFORMED: dict[str, tuple[Edit, str]] = {
    "version": (lambda data: data.update(schema_version=2), "schema_version must be 1, got 2"),
    "format": (lambda data: data.update(format="octavo-profile"), 'it has no "format": "octavo-plan"'),
    "unknown field": (lambda data: data.update(comment="x"), "the plan: unknown field 'comment'"),
    "missing field": (drop("layers"), "the plan: field 'layers' is missing"),
    "field of a tensor": (put("activations", "r1", zeropoint=0), "activations: r1: unknown field 'zeropoint'"),
    "no zero point": (drop("activations", "r1", "zero_point"), "activations: r1: field 'zero_point' is missing"),
    "negative scale": (scale("activations", "r1", -0.5), "activations: r1: scale must be a positive float32 number, got -0.5"),
    "scale 0": (scale("weights", "w1", [0.0] * 8), "weights: w1: scale must be a positive float32 number, got 0.0"),
    "tiny scale": (scale("activations", "r1", 1e-60), "activations: r1: scale must be a positive float32 number"),
    "large scale": (scale("activations", "r1", 1e60), "activations: r1: scale must be a positive float32 number"),
    "text": (scale("activations", "r1", "0.5"), "scale must be a positive float32 number, got '0.5'"),
    "true": (scale("activations", "r1", True), "scale must be a positive float32 number, got True"),
    "list without axis": (scale("activations", "r1", [0.5]), "r1: scale must be one number, for axis is null"),
    "number with axis": (scale("weights", "w1", 0.5), "w1: scale must be a list"),
    "lengths": (scale("weights", "w1", [0.5]), r"w1: scale \(1,\) and zero_point \(8,\) must have one shape"),
    "zero point": (put("activations", "r1", zero_point=128), r"r1: zero_point must be a whole number in \[-128; 127\], got 128"),
    "half a zero point": (put("activations", "r1", zero_point=0.5), "r1: zero_point must be a whole number"),
    "dtype": (put("activations", "r1", dtype="int9"), "r1: dtype must be one of int4, .*, got 'int9'"),
    "qmin": (put("weights", "w1", qmin=-200), r"w1: qmin must be a whole number in \[-128; 127\], got -200"),
    "order": (put("weights", "w1", qmin=5, qmax=5), "w1: qmin 5 must be below qmax 5"),
    "rounding": (put("activations", "r1", rounding="up"), "r1: rounding must be one of .*, got 'up'"),
    "recipe": (lambda data: data["recipe"].update(weight_dtype="int3"), "recipe: weight_dtype must be one of int8, got 'int3'"),
    "layer": (layer(0, inputs="x"), r"layers\[0\]: inputs must be a list, got 'x'"),
    "layer's field": (layer(0, padding=1), r"layers\[0\]: unknown field 'padding'"),
    "twice": (lambda data: data["layers"].append(data["layers"][0]), "layers: two have the output r1"),
    "both": (
        lambda data: data["float_ops"].append({"op": "nn.conv2d", "tensor": "r1", "reason": "slow"}),
        "r1 is the output of a layer and stands in float_ops",
    ),
    "fold": (
        lambda data: data["derived"]["folds"].append(
            {"op": "nn.pad", "tensor": "a", "gone": "b", "weight": None, "bias": None, "padding": [1]}
        ),
        r"derived: folds\[0\]: padding must be 4 numbers",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_field_that_is_wrong_is_named(saved: Path, case: str) -> None:
    edit, said = MALFORMED[case]
    with pytest.raises(QuantizationError, match=said) as raised:
        QuantizationPlan.load(edited(saved, edit))
    assert str(raised.value).startswith(f"{saved}: not a valid plan: ")


def test_a_file_that_is_none_is_one_error(saved: Path, tmp_path: Path) -> None:
    text = saved.read_text()
    bad = tmp_path / "bad.json"
    for content, said in (
        (text[: len(text) // 2], r"not a plan \(not JSON, or cut short\)"),
        (text.replace('"scale": 0', '"scale": NaN, "was": 0', 1), "NaN is not allowed"),
        (text.replace('"fingerprint"', '"format": "octavo-plan",\n"fingerprint"', 1), "'format' stands twice in one object"),
        ("[]", "it has no"),
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
    ):
        bad.write_text(content)
        with pytest.raises(QuantizationError, match=said):
            QuantizationPlan.load(bad)
    bad.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(QuantizationError, match="it is not text"):
        QuantizationPlan.load(bad)
    with pytest.raises(QuantizationError, match="No such file"):
        QuantizationPlan.load(tmp_path / "none.json")
    with pytest.raises(QuantizationError, match="expected the path of a plan, got int 3"):
        octavo.quantize(residual_net(), plan=3)


def test_every_truncation_is_found(saved: Path, tmp_path: Path) -> None:
    text = saved.read_text()
    for length in range(0, len(text.rstrip()) - 1, 97):
        (tmp_path / "cut.json").write_text(text[:length])
        with pytest.raises(QuantizationError, match="cut short"):
            QuantizationPlan.load(tmp_path / "cut.json")


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
