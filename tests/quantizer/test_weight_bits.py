"""Weights of fewer than 8 bits: the bounds of their integers through plan, file, encodings, ONNX and kernels; widths by layer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_nets import convolutional

import octavo
import octavo.frontends
from apply_steps import with_steps
from handmade_profile import ranged
from nets import residual_net
from octavo.errors import QuantizationError
from octavo.export.encodings import read_encodings, write_encodings
from octavo.export.onnx.onnx_export import export_onnx
from octavo.ir.graph import Model
from octavo.ir.graph.inputs import input_specs
from octavo.numerics import QuantParams, dequantize
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.numerics.statistics.ranges import symmetric_params
from octavo.quantizer.recipe import Recipe
from reference_sessions import reference_session
from tvm_alone import tvm_alone

Net = tuple[Model, octavo.Profile, np.ndarray]
QUICK = Recipe(weight_rounding="nearest", bias_correction=False, equalization="none", min_sqnr=None)
"""Widths alone: every run of a model that corrections, factors and ratios need is compiled."""


@pytest.fixture(scope="module")
def conv_net(tmp_path_factory: pytest.TempPathFactory) -> Net:
    """A network with depthwise and dense layers, its profile with samples, and these."""
    file = tmp_path_factory.mktemp("net") / "float.onnx"
    onnx.save(convolutional(), file)
    model = octavo.frontends.load(file)
    shape = input_specs(model)[0].shape
    samples = np.random.default_rng(4).standard_normal((24, *shape[1:])).astype(np.float32)
    return model, octavo.profile(model, samples, keep_samples=24), samples


@pytest.fixture(scope="module")
def real(conv_net: Net) -> Any:
    return octavo.compile(conv_net[0])


def extremes(model: Model) -> set[tuple[int, int]]:
    plan: Any = getattr(model, "plan")  # noqa: B009  # a quantized model's
    return {(int(plan.weight_values[key].min()), int(plan.weight_values[key].max())) for key in plan.weights}


@pytest.mark.parametrize(("bits", "rounding"), [(2, "nearest"), (4, "gram"), (7, "nearest")])
def test_bounds_hold_in_the_plan_its_file_onnx_and_kernels(bits: int, rounding: Any, conv_net: Net, tmp_path: Path) -> None:
    model, profile, samples = conv_net
    recipe = replace(QUICK, weight_bits=bits, weight_rounding=rounding, bias_correction=rounding == "gram")
    quantized = octavo.quantize(model, profile, recipe=recipe)
    most = 2 ** (bits - 1) - 1
    plan = quantized.plan
    assert {(each.dtype, each.qmin, each.qmax) for each in plan.weights.values()} == {("int8", -most, most)}
    assert {bound for pair in extremes(quantized) for bound in pair} <= set(range(-most, most + 1))
    assert (-most, most) in extremes(quantized)
    assert bool(plan.corrections.weight_values) == (rounding == "gram")
    plan.save(tmp_path / "plan.json")
    again = octavo.quantize(model, plan=octavo.QuantizationPlan.load(tmp_path / "plan.json"))
    assert again.plan.weights == plan.weights
    assert extremes(again) == extremes(quantized)
    assert again.fingerprint == quantized.fingerprint
    export_onnx(quantized, tmp_path / "int8.onnx")
    kind = onnx.TensorProto.INT4 if bits <= 4 else onnx.TensorProto.INT8
    initializers = [each for each in onnx.load(tmp_path / "int8.onnx").graph.initializer if each.data_type == kind]
    stored = [onnx.numpy_helper.to_array(each) for each in initializers if len(each.dims) > 1]
    assert max(int(np.abs(each.astype(int)).max()) for each in stored) == most
    simulate, runtime = tvm_alone(quantized.bound()), reference_session(tmp_path / "int8.onnx", optimized=False, threads=1)
    kernels = octavo.compile(quantized)
    name = runtime.get_inputs()[0].name
    for row in samples[:8]:
        simulated, theirs = simulate(row[None]), runtime.run(None, {name: row[None]})
        for ours, other, computed in zip(kernels(row[None]).values(), theirs, simulated, strict=True):
            assert sqnr_db(computed, ours) > 40
            assert sqnr_db(computed, other) > 40


def test_widths_by_layer_count_in_the_order_in_which_they_are_given(conv_net: Net, tmp_path: Path) -> None:
    model, profile, _ = conv_net
    quantized = octavo.quantize(model, profile, recipe=replace(QUICK, weight_bits={"conv1": 8, "conv3": 3, "Conv": 5, "*": 4}))
    found = {layer.source: quantized.plan.weights[layer.weight].qmax for layer in quantized.plan.layers if layer.weight}
    assert (found["relu1"], found["conv3"], found["clip2"]) == (127, 3, 15)
    assert sorted(found.values()) == [3, 7, 7, 15, 15, 127]
    alone = octavo.quantize(model, profile, recipe=replace(QUICK, weight_bits={"conv1": 4}))
    assert sorted(each.qmax for each in alone.plan.weights.values()) == [7, 127, 127, 127, 127, 127]
    quantized.plan.save(tmp_path / "plan.json")
    read = octavo.QuantizationPlan.load(tmp_path / "plan.json")
    assert read.recipe.weight_bits == {"conv1": 8, "conv3": 3, "Conv": 5, "*": 4}
    assert octavo.quantize(model, plan=read).fingerprint == quantized.fingerprint


@pytest.mark.parametrize(("share", "spared"), [(0.0, 0), (0.2, 2), (0.999, 5), (1.0, 6)])
def test_without_samples_the_smallest_layers_keep_8_bits_up_to_a_share(share: float, spared: int, conv_net: Net) -> None:
    model, profile, _ = conv_net
    bare = replace(profile, kept_samples=(), kept_results=())
    plan = octavo.quantize(model, bare, recipe=Recipe(weight_bits=4, wide_weights=share)).plan
    sizes = {key: plan.weight_values[key].size for key in plan.weights}
    wide = [size for key, size in sizes.items() if plan.weights[key].qmax == 127]
    assert sorted(wide) == sorted(sizes.values())[:spared]
    assert sum(wide) <= share * sum(sizes.values())


def test_layers_that_cost_most_for_each_weight_keep_8_bits(conv_net: Net, real: Any) -> None:
    model, profile, samples = conv_net

    def plan_and_sqnr(**fields: Any) -> tuple[octavo.QuantizationPlan, float]:
        recipe = Recipe(weight_rounding="nearest", min_sqnr=None, equalization="none", **fields)
        quantized = octavo.quantize(model, profile, recipe=recipe)
        executable = octavo.compile(quantized)
        pairs = [(real(sample[None])["logits"], executable(sample[None])["logits"]) for sample in samples]
        return quantized.plan, sqnr_db(*(np.concatenate(each) for each in zip(*pairs, strict=True)))

    plan, chosen = plan_and_sqnr(weight_bits=4, wide_weights=0.2)
    wide = [name for name in plan.weights if plan.weights[name].qmax == 127]
    assert 0 < sum(plan.weight_values[name].size for name in wide) <= 0.2 * sum(each.size for each in plan.weight_values.values())
    assert plan.widths[8] == sum(plan.weight_values[name].size for name in wide)
    assert {each.tensor for each in plan.adjustments if "keep 8 bits" in each.message} == set(wide)
    assert chosen > plan_and_sqnr(weight_bits=4)[1]


def test_weights_of_few_bits_get_scales_that_suit_what_is_read(conv_net: Net, tmp_path: Path) -> None:
    model, profile, _ = conv_net
    largest, suited = (with_steps(model, profile, recipe=Recipe(weight_bits=3, weight_range=name)) for name in ("max", "auto"))
    scales = [(suited.plan.weights[name].scale, largest.plan.weights[name].scale) for name in largest.plan.weights]
    assert any((own < 0.95 * theirs).any() for own, theirs in scales)
    assert all((0.5 * theirs < own).all() and (own < 1.3 * theirs).all() for own, theirs in scales)
    suited.plan.save(tmp_path / "plan.json")
    assert octavo.quantize(model, plan=tmp_path / "plan.json").fingerprint == suited.fingerprint
    fixed = largest.plan.weights
    wished = with_steps(model, profile, recipe=Recipe(weight_bits=3, tensors={str(name): fixed[name] for name in fixed}))
    assert wished.plan.weights == fixed


def test_a_name_decides_before_the_size(conv_net: Net, tmp_path: Path) -> None:
    model, profile, _ = conv_net
    plan = octavo.quantize(model, profile, recipe=replace(QUICK, weight_bits={"conv3": 3, "*": 4}, wide_weights=1)).plan
    assert sorted(each.qmax for each in plan.weights.values()) == [3, 127, 127, 127, 127, 127]
    plan.save(tmp_path / "plan.json")
    assert octavo.QuantizationPlan.load(tmp_path / "plan.json").recipe.wide_weights == 1


@pytest.mark.parametrize("share", [-0.1, 1.1, True, "0.1", None, float("nan")])
def test_a_share_that_cannot_be_is_named(share: Any) -> None:
    with pytest.raises(QuantizationError, match=r"wide_weights must be a share from 0 to 1, got"):
        Recipe(wide_weights=share)


def test_a_name_that_no_layer_has_is_an_error(conv_net: Net) -> None:
    model, profile, _ = conv_net
    with pytest.raises(QuantizationError, match=r"weight_bits names 'convv1', .* did you mean conv1"):
        octavo.quantize(model, profile, recipe=Recipe(weight_bits={"convv1": 4}))


@pytest.mark.parametrize("bits", [1, 9, True, 4.0, "4", {"conv1": 1}, {1: 4}, None])
def test_widths_that_cannot_be_are_named(bits: Any) -> None:
    with pytest.raises(QuantizationError, match="weight_bits must be a whole number from 2 to 8, or a mapping of names to such"):
        Recipe(weight_bits=bits)


@pytest.mark.parametrize("form", ["aimet-0.6.1", "aimet-1.0.0"])
def test_encodings_give_back_the_width(form: str, tmp_path: Path) -> None:
    model = residual_net()
    plan = octavo.quantize(model, ranged(model), recipe=Recipe(weight_bits=4)).plan
    assert write_encodings(plan, tmp_path / "e", form) == ()
    of_eight = octavo.quantize(model, ranged(model)).plan
    for other in (plan, of_eight):
        read = read_encodings(tmp_path / "e", other)
        assert (read.unmatched, read.plan.weights) == ((), plan.weights)
    assert octavo.quantize(model, plan=read_encodings(tmp_path / "e", of_eight).plan).plan.weights == plan.weights


@pytest.mark.parametrize("axis", [None, 0])
def test_the_scale_of_least_error_is_no_worse_than_that_of_the_largest_magnitude(rng: np.random.Generator, axis: Any) -> None:
    weight = rng.standard_t(3, (6, 400)).astype(np.float32)

    def error(**options: Any) -> np.ndarray:
        params = symmetric_params(weight, "int8", axis=axis, bits=4, **options)
        integers = np.clip(np.rint(weight / params.scale.reshape(-1, 1)), params.qmin, params.qmax).astype(np.int8)
        return np.square(dequantize(integers, params) - weight).sum(axis=None if axis is None else 1)

    assert (error(least_error=True) < 0.8 * error()).all()


@pytest.mark.parametrize("weight_range", ["auto", "mse"])
def test_samples_choose_integers_that_are_better_on_others(weight_range: Any, conv_net: Net, real: Any) -> None:
    model, profile, _ = conv_net
    fresh = np.random.default_rng(9).standard_normal((64, *input_specs(model)[0].shape[1:])).astype(np.float32)

    def quality(**fields: Any) -> float:
        recipe = Recipe(weight_bits=4, weight_range=weight_range, **fields)
        ours = octavo.compile(with_steps(model, profile, recipe=recipe))
        pairs = [[next(iter(run(row[None]).values())) for row in fresh] for run in (real, ours)]
        return sqnr_db(np.concatenate(pairs[0]), np.concatenate(pairs[1]))

    assert quality() > quality(weight_rounding="nearest", bias_correction=False) + 0.5


def test_biases_stay_where_they_are_not_to_be_corrected(conv_net: Net) -> None:
    model, profile, _ = conv_net
    quantized = octavo.quantize(model, profile, recipe=replace(QUICK, weight_bits=4, weight_rounding=Recipe().weight_rounding))
    assert quantized.plan.corrections.weight_values
    assert not quantized.plan.corrections.bias_shifts


@pytest.mark.parametrize(("dtype", "qmin", "qmax", "bits"), [("uint8", 0, 255, 8), ("int8", -127, 127, 8), ("int8", -7, 7, 4)])
def test_the_width_of_a_weight_counts_a_sign_only_where_there_is_one(dtype: str, qmin: int, qmax: int, bits: int) -> None:
    params = QuantParams(scale=np.float32(0.1), zero_point=np.int32(0), dtype=dtype, qmin=qmin, qmax=qmax)
    assert params.num_bits == bits
