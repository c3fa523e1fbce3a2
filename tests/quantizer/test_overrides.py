"""Overrides of a recipe, by name, pattern and kind of op: what each field changes, and that it changes nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_nets import convolutional

import octavo
from octavo.errors import QuantizationError
from octavo.ir.graph.inputs import input_specs
from octavo.numerics import PerTensor
from octavo.quantizer.recipe import Override, Recipe, fits, read_recipe
from octavo.target.tensor_support import TensorSupport

PLAIN: dict[str, Any] = {"weight_rounding": "nearest", "equalization": "none", "bias_correction": False}


@pytest.fixture(name="quantized", scope="module")
def fixture_quantized(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function from fields of a recipe to the plan of one network: conv1 .. conv4, sum, pool, fc1, logits."""
    file = tmp_path_factory.mktemp("net") / "float.onnx"
    onnx.save(convolutional(), file)
    model = octavo.load(file)
    samples = np.random.default_rng(4).standard_normal((8, *input_specs(model)[0].shape[1:])).astype(np.float32)
    profile = octavo.profile(model, samples, keep_samples=0)

    def quantize(plan: Any = None, **given: Any) -> Any:
        return octavo.quantize(model, plan=plan) if plan else octavo.quantize(model, profile, recipe=Recipe(**{**PLAIN, **given}))

    return quantize


def dtypes(plan: Any) -> dict[str, str]:
    return {str(name): params.dtype for name, params in plan.activations.items()}


def layer_of(plan: Any, weight: str) -> Any:
    return next(layer for layer in plan.layers if layer.weight is not None and weight in str(layer.weight))


def test_patterns_name_layers_tensors_and_kinds_of_ops(quantized: Any) -> None:
    plain = quantized().plan
    plan = quantized(overrides={"Conv": {"weight_bits": 5}, "conv?": {"weight_bits": 4}, "conv3": Override(weight_bits=3)}).plan
    found = {name: plan.weights[layer_of(plan, name).weight].qmax for name in ("conv1", "conv2", "conv3", "conv4")}
    assert found == {"conv1": 7, "conv2": 7, "conv3": 3, "conv4": 7}
    assert {plan.weights[layer_of(plan, name).weight].qmax for name in ("fc1", "fc2")} == {127}
    assert dtypes(plan) == dtypes(plain)
    by_weight = quantized(overrides={"fc*weight": {"weight_bits": 2}}).plan
    assert [by_weight.weights[layer_of(by_weight, name).weight].qmax for name in ("fc1", "fc2", "conv1")] == [1, 1, 127]


def test_a_later_one_counts_field_by_field(quantized: Any) -> None:
    plan = quantized(overrides={"*": {"weight_bits": 4, "weight_granularity": "per_tensor"}, "conv1": {"weight_bits": 8}}).plan
    conv1 = plan.weights[layer_of(plan, "conv1").weight]
    assert (conv1.qmax, conv1.granularity) == (127, PerTensor())
    assert {params.qmax for name, params in plan.weights.items() if params is not conv1} == {7}
    alone = quantized(overrides={"conv1": {"weight_granularity": "per_tensor"}}).plan
    assert sorted(params.scale.ndim for params in alone.weights.values()) == [0, 1, 1, 1, 1, 1]


def test_dtype_and_scheme_of_results_and_inputs(quantized: Any) -> None:
    plain = quantized().plan
    plan = quantized(overrides={"conv1": {"activation_dtype": "int16"}}).plan
    changed = {name for name, dtype in dtypes(plan).items() if dtype == "int16"}
    assert "relu1" in changed, "the result of the kernel in which conv1 is"
    assert {name for name, dtype in dtypes(plan).items() if dtype == "uint8"} == set(dtypes(plain)) - changed
    image = quantized(overrides={"image": {"activation_dtype": "int8", "activation_scheme": "symmetric"}}).plan
    assert [(dtypes(each)["image"], int(each.activations["image"].zero_point) == 0) for each in (plain, image)] == [
        ("uint8", False),
        ("int8", True),
    ]
    wide = TensorSupport(dtypes=("int16",))
    first = quantized(overrides={"image": {"activation_dtype": "int8"}}, tensors={"image": wide}).plan
    assert dtypes(first)["image"] == "int16", "tensors before overrides"


def test_estimators_of_some_tensors(quantized: Any) -> None:
    plain, plan = quantized().plan, quantized(overrides={"conv1": {"range_estimator": "percentile:90"}}).plan
    assert float(plan.activations["relu1"].scale) < 0.9 * float(plain.activations["relu1"].scale)
    assert all(plan.activations[name] == params for name, params in plain.activations.items() if name != "relu1")
    assert not Recipe(overrides={"x": {"range_estimator": "mse"}}).has_plain_ranges
    assert Recipe(overrides={"x": {"range_estimator": "mse"}}).with_ranges("min_max").has_plain_ranges


def test_ops_are_excluded_and_included_by_pattern(quantized: Any, tmp_path: Path) -> None:
    excluded = quantized(exclude=("conv*",), overrides={"conv3": {"exclude": False}})
    convs = [str(layer.weight) for layer in excluded.plan.layers if layer.op == "nn.conv2d"]
    assert ["conv3" in name for name in convs] == [True]
    other = quantized(overrides={"Conv": {"exclude": True}, "conv3": {"exclude": False}})
    assert [layer.output for layer in other.plan.layers] == [layer.output for layer in excluded.plan.layers]
    softmax = quantized(overrides={"Softmax": {"exclude": False}})
    assert "probabilities" in [str(layer.output) for layer in softmax.plan.layers]
    for each in (other, softmax):
        each.plan.save(tmp_path / "plan.json")
        assert quantized(plan=tmp_path / "plan.json").fingerprint == each.fingerprint
    floats = quantized(float_tensors=("p?ol",)).plan
    assert "pool" not in floats.activations


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"convv1": {"weight_bits": 4}}, "overrides names 'convv1', but the model has no such op or tensor; did you mean conv1"),
        ({"cnv*": {"weight_bits": 4}}, r"overrides names 'cnv\*', but the model has no such op or tensor"),
        ({"onv1*": {"weight_bits": 4}}, r"overrides names 'onv1\*', .*; '\*onv1\*' fits \d, conv1 first"),
    ],
)
def test_names_that_fit_nothing_are_errors(overrides: Any, message: str, quantized: Any) -> None:
    with pytest.raises(QuantizationError, match=message):
        quantized(overrides=overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"a": {"weight_bit": 4}}, "overrides: a: field: unknown 'weight_bit': did you mean 'weight_bits'"),
        ({"a": {"weight_bits": 9}}, "overrides: a: weight_bits must be a whole number from 2 to 8"),
        ({"a": {"weight_bits": {"b": 4}}}, "overrides: a: weight_bits must be a whole number from 2 to 8"),
        (
            {"a": {"activation_dtype": "int4"}},
            "overrides: a: activation_dtype must be one of uint8, .* got 'int4'",
        ),
        (
            {"a": {"activation_scheme": "odd"}},
            "overrides: a: .*activation_scheme must be one of symmetric, asymmetric, got 'odd'",
        ),
        ({"a": {"range_estimator": "magic"}}, "overrides: a: range_estimator must be one of"),
        ({"a": {"range_estimator": "auto"}}, "overrides: a: range_estimator 'auto' chooses for all tensors"),
        ({"a": {"exclude": "yes"}}, "overrides: a: .*exclude must be True or False, got 'yes'"),
        ({"a": 4}, "overrides: a: expected an object with exclude, activation_dtype"),
        ([("a", {})], "overrides must be a mapping of names to Override"),
    ],
)
def test_what_an_override_cannot_be_is_named(overrides: Any, message: str) -> None:
    with pytest.raises(QuantizationError, match=message):
        Recipe(overrides=overrides)


def test_wildcards_stand_for_characters_and_brackets_for_themselves() -> None:
    assert [fits("/m/*/Conv?", name) for name in ("/m/0/1/Conv2", "/m/0/Conv", "/m/0/Relu2")] == [True, False, False]
    assert [fits("x[0]", name) for name in ("x[0]", "x0")] == [True, False]
    assert [fits("x[?]", name) for name in ("x[0]", "x0")] == [True, False]
    assert fits("a*b", "a*b")


def test_a_recipe_is_read_from_json(tmp_path: Path) -> None:
    content = {
        "activation_dtype": "int8",
        "exclude": ["fc*"],
        "weight_bits": {"conv1": 8, "*": 4},
        "tensors": {"x": {"dtypes": ["int16"], "scale": 0.5}},
        "overrides": {"Conv": {"weight_bits": 4, "exclude": False}},
    }
    (tmp_path / "r.json").write_text(json.dumps(content))
    assert read_recipe(tmp_path / "r.json") == Recipe(
        activation_dtype="int8",
        exclude=("fc*",),
        weight_bits={"conv1": 8, "*": 4},
        tensors={"x": TensorSupport(dtypes=("int16",), scale=0.5)},
        overrides={"Conv": Override(weight_bits=4, exclude=False)},
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the recipe is no JSON"),
        ("[]", "expected an object of its fields"),
        ('{"excludes": []}', "field: unknown 'excludes': did you mean 'exclude'"),
        ('{"tensors": {"x": {"dtype": "int8"}}}', "tensors: x: field"),
        ('{"tensors": []}', "tensors must be an object of names"),
        ('{"weight_bits": 1}', "weight_bits must be"),
        (None, "cannot read the recipe"),
    ],
)
def test_what_is_wrong_with_a_recipe_file_is_named(text: str | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(QuantizationError, match=rf"r\.json: .*{message}"):
        read_recipe(file)
