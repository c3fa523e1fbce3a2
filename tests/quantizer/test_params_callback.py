"""A quantizer of the user's own, asked tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import octavo
from handmade_profile import ranged
from nets import residual_net
from octavo.errors import QuantizationError
from octavo.ir.identity import TensorId
from octavo.numerics import QuantParams
from octavo.profiling import TensorStatistics
from octavo.quantizer.recipe import Recipe
from octavo.quantizer.request import TensorChoice
from octavo.target.tensor_support import TensorSupport
from vendors import SYMMETRIC


def test_it_is_asked_of_every_tensor_with_what_it_would_get() -> None:
    model = residual_net()
    profile = ranged(model, {"x": (-2.0, 3.0)})
    asked: list[TensorChoice] = []
    quantized = octavo.quantize(model, profile, params=lambda tensor: asked.append(tensor))
    plan = octavo.quantize(model, profile).plan
    assert quantized.fingerprint == octavo.quantize(model, profile).fingerprint
    assert {choice.id: choice.params for choice in asked} == {**plan.activations, **plan.weights}
    found = {str(choice.id): choice for choice in asked}
    x, result, weight = found["x"], found["r1"], found["w1"]
    assert (x.name, x.op, x.kind, x.shape) == ("net/x:0", "", "input", (1, 3, 8, 8))
    assert (result.name, result.op, result.kind) == ("net/r1:0", "Op", "activation")
    assert (weight.name, weight.op, weight.kind, weight.shape) == ("net/w1:0", "", "weight", (8, 3, 3, 3))
    assert x.statistics is profile[TensorId("x")]
    assert x.values is None
    np.testing.assert_array_equal(weight.values, model.params[TensorId("w1")])
    assert weight.statistics is None, "this profile has no weights"


def test_what_it_returns_is_used_and_none_keeps_what_was_chosen() -> None:
    model = residual_net()
    profile = ranged(model)
    own = QuantParams.per_tensor("int8", 0.25, 0)

    def params(tensor: TensorChoice) -> QuantParams | TensorSupport | None:
        if tensor.id == "r1":
            return own
        if tensor.id == "w2":
            return replace(tensor.params, scale=tensor.params.scale * 2)
        return TensorSupport(scale=0.5, zero_point=0) if tensor.name == "net/c3:0" else None

    before = octavo.quantize(model, profile, target=SYMMETRIC).plan
    after = octavo.quantize(model, profile, target=SYMMETRIC, params=params).plan
    assert after.activations[TensorId("r1")] == own
    assert float(after.activations[TensorId("c3")].scale) == 0.5
    assert after.weights[TensorId("w2")].scale.tolist() == (before.weights[TensorId("w2")].scale * 2).tolist()
    kept = [key for key in before.activations if key not in ("r1", "c3")]
    assert kept
    assert all(after.activations[key] == before.activations[key] for key in kept)
    assert after.weights[TensorId("w1")] == before.weights[TensorId("w1")]
    by_recipe = octavo.quantize(
        model,
        profile,
        target=SYMMETRIC,
        recipe=Recipe(
            tensors={"r1": own, "w2": after.weights[TensorId("w2")], "net/c3:0": TensorSupport(scale=0.5, zero_point=0)}
        ),
    ).plan
    assert by_recipe == replace(after, weight_values=by_recipe.weight_values), "a recipe and a callback are one mechanism"


def test_it_overrides_the_recipe_for_the_tensors_that_it_decides() -> None:
    model = residual_net()
    recipe = Recipe(tensors={"r1": TensorSupport(scale=0.5), "c3": TensorSupport(scale=0.125)})
    own = QuantParams.per_tensor("int8", 0.25, 0)
    plan = octavo.quantize(
        model, ranged(model), target=SYMMETRIC, recipe=recipe, params=lambda tensor: own if tensor.id == "r1" else None
    ).plan
    assert [float(plan.activations[TensorId(key)].scale) for key in ("r1", "c3")] == [0.25, 0.125]


def test_what_the_target_cannot_take_leaves_the_op_float_with_both_named() -> None:
    model = residual_net()
    own = QuantParams.per_tensor("int8", 0.25, 5)
    plan = octavo.quantize(model, ranged(model), target=SYMMETRIC, params=lambda tensor: own if tensor.id == "c3" else None).plan
    reasons = {str(op.tensor): op.reason for op in plan.float_ops}
    assert any(
        "c3 cannot be all that its ops need: params zero point 5, nn.conv2d c3 symmetric" in each for each in reasons.values()
    )
    assert [each.message for each in plan.adjustments if each.tensor == "c3"] == [
        "params says what it must be, and no integer op reads or makes it: see why its ops stay float"
    ]


class Counted(Mapping[TensorId, TensorStatistics]):
    """A profile's tensors, counting which are read."""

    def __init__(self, tensors: Mapping[TensorId, TensorStatistics]) -> None:
        self.tensors, self.read = tensors, list[TensorId]()

    def __getitem__(self, key: TensorId) -> TensorStatistics:
        self.read.append(key)
        return self.tensors[key]

    def __iter__(self) -> Iterator[TensorId]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


def test_the_profile_is_read_for_the_tensors_that_are_looked_at_alone() -> None:
    model = residual_net()
    profile = ranged(model)
    counted = Counted(profile.tensors)
    start = 0

    def params(tensor: TensorChoice) -> None:
        nonlocal start
        start = start or len(counted.read)
        if tensor.id == "r2":
            assert tensor.statistics is not None

    octavo.quantize(model, replace(profile, tensors=counted), params=params)
    assert counted.read[start:] == ["r2"]


def test_a_folded_weight_has_values_and_no_statistics_of_others(tmp_path: Any) -> None:
    import onnx

    rng = np.random.default_rng(0)
    values = {"w": rng.normal(size=(4, 3, 3, 3)), **dict.fromkeys("smb", np.ones(4)), "v": np.full(4, 4.0)}
    graph = onnx.parser.parse_graph(
        "net (float[1, 3, 6, 6] x) => (float[1, 4, 4, 4] y) { c = Conv(x, w) y = BatchNormalization(c, s, b, m, v) }"
    )
    graph.initializer.extend(onnx.numpy_helper.from_array(value.astype(np.float32), name) for name, value in values.items())
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), tmp_path / "n.onnx")
    model = octavo.load(tmp_path / "n.onnx")
    profile = octavo.profile(model, [rng.normal(size=(1, 3, 6, 6)).astype(np.float32)])
    asked: list[TensorChoice] = []
    octavo.quantize(model, profile, params=lambda tensor: asked.append(tensor))
    (weight,) = [choice for choice in asked if choice.kind == "weight"]
    np.testing.assert_allclose(weight.values, values["w"] / 2, rtol=1e-4)
    assert weight.statistics is None


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (0.5, "params: x: expected QuantParams, a TensorSupport or None, got 0.5"),
        ((0.5, 0), "params: x: expected QuantParams"),
        (QuantParams.per_tensor("int8", 0.5, 0, qmin=-127), "params: x: qmin -127, qmax 127: activations use the whole range"),
    ],
)
def test_any_other_answer_is_an_error(answer: Any, said: str) -> None:
    model = residual_net()
    with pytest.raises(QuantizationError, match=said):
        octavo.quantize(model, ranged(model), params=lambda _: answer)


def test_what_is_no_function_is_an_error() -> None:
    model = residual_net()
    with pytest.raises(QuantizationError, match="expected a function of a TensorChoice"):
        octavo.quantize(model, ranged(model), params={"x": 0.5})
