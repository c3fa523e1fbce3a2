"""Equalization through `octavo.quantize`: outlier channels of transformers come back, and what compares values knows of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

import octavo
from apply_steps import with_steps
from octavo.errors import QuantizationError
from octavo.ir.graph.dataflow import DataflowView
from octavo.ir.simplify import simplify
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.profiling.observers import Compare, Record
from octavo.quantizer.causes import root_causes
from octavo.quantizer.equalized_float import EqualizedFloat
from octavo.quantizer.referee import rounding
from octavo.quantizer.referee.rounding import Gains, rounding_of
from octavo.runtime.llvm_host import host_target
from planted_encoder import Encoder, samples
from reference_sessions import reference_session

OUTLIERS = {3: 50.0, 17: 80.0, 40: 20.0}
UNCORRECTED = octavo.Recipe(weight_rounding="nearest", bias_correction=False, min_sqnr=None)
"""Equalization alone: every run of a model that corrections and ratios need is compiled."""


def planted(blocks: int, channels: dict[int, float]) -> tuple[octavo.Model, octavo.Profile]:
    model = octavo.load(Encoder(blocks, channels).model())
    return model, octavo.profile(model, samples(32, 1), keep_samples=32)


def logits(run: Any) -> np.ndarray:
    return np.concatenate([next(iter(run(x).values())) for x in samples(48, 2)])


def quality(model: octavo.Model, *quantized: octavo.Model) -> list[float]:
    """The signal to noise ratio of each quantized model's results, in dB."""
    exact = logits(octavo.compile(model))
    return [sqnr_db(exact, logits(octavo.compile(each))) for each in quantized]


@pytest.fixture(scope="module")
def encoder() -> tuple[octavo.Model, octavo.Profile, octavo.Model]:
    model, profile = planted(1, OUTLIERS)
    return model, profile, octavo.quantize(model, profile, recipe=UNCORRECTED)


@pytest.fixture(scope="module")
def norm() -> tuple[octavo.Model, octavo.Profile, octavo.Model]:
    """An encoder of no blocks: a dense layer, the last normalization, and a dense layer that reads it. It compiles in no time."""
    model, profile = planted(0, OUTLIERS)
    return model, profile, with_steps(model, profile)


def test_what_outlier_channels_cost_comes_back(encoder: Any) -> None:
    model, profile, equalized = encoder
    unequalized = octavo.quantize(model, profile, recipe=replace(UNCORRECTED, equalization="none"))
    without = octavo.quantize(*planted(1, {}), recipe=UNCORRECTED)  # in float they compute the same
    plain, lost, back = quality(model, without, unequalized, equalized)
    assert plain - lost > 15
    assert back - lost > 0.9 * (plain - lost)


def test_a_stream_of_unlike_channels_stays_float() -> None:
    model = octavo.load(Encoder(0, {}, {5: 60.0, 33: 30.0}).model())
    profile = octavo.profile(model, samples(32, 1), keep_samples=32)
    quantized = with_steps(model, profile)
    lost, back = quality(model, with_steps(model, profile, recipe=octavo.Recipe(equalization="none")), quantized)
    assert back - lost > 10
    reasons = [op.reason for op in quantized.plan.float_ops if "channels are unlike" in op.reason]
    assert reasons
    assert all("a norm reads all" in reason for reason in reasons)
    assert not [op for op in octavo.explain(quantized).ops if op.op == "matmul" and "unlike" in op.reason]


def test_a_plan_keeps_the_factors(norm: Any, tmp_path: Path) -> None:
    model, _, quantized = norm
    quantized.plan.save(tmp_path / "plan.json")
    again = octavo.quantize(model, plan=tmp_path / "plan.json")
    assert again.fingerprint == quantized.fingerprint
    assert np.array_equal(logits(octavo.compile(again)), logits(octavo.compile(quantized)))


def test_factors_of_large_weights_take_no_memory_of_their_own(norm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, equalized = norm
    simple, folds = simplify(model)
    scaled = EqualizedFloat(simple=simple, folds=folds, equalization=equalized.plan.equalization, profile=None)
    shared = [name for name, value in scaled.exact.params.items() if value is scaled.model.params.get(name)]
    assert {*map(str, equalized.plan.weights)} <= {*map(str, shared)}
    view, factors = DataflowView(simple.module["main"]), equalized.plan.equalization.factors
    whole = rounding_of(simple, equalized.plan, view, Gains(simple, factors))
    monkeypatch.setattr(rounding, "SHARED_BYTES", 1)
    narrow = rounding_of(simple, equalized.plan, view, Gains(simple, factors))
    sizes = {name: (narrow.gains[name].size, max(gain.shape)) for name, gain in whole.gains.items() if gain.ndim == 2}
    assert sizes
    assert all(size <= channels for size, channels in sizes.values())
    for output, values in whole.layers.items():
        assert all(np.array_equal(value, narrow.layers[output][name]) for name, value in values.items())


def test_factors_that_change_the_model_are_refused(norm: Any, tmp_path: Path) -> None:
    model, _, quantized = norm
    quantized.plan.save(tmp_path / "plan.json")
    name, factors = next(iter(quantized.plan.equalization.factors.items()))
    text = (tmp_path / "plan.json").read_text(encoding="utf-8")
    line = next(each for each in text.splitlines() if each.startswith(f'  "{name}": {{"shape"'))
    changed = line.replace(f'"shape": {list(factors.shape)}', f'"shape": {[*factors.shape, 1]}')
    (tmp_path / "plan.json").write_text(text.replace(line, changed), encoding="utf-8")
    with pytest.raises(QuantizationError, match=f"factors of {name} must have the shape"):
        octavo.quantize(model, plan=tmp_path / "plan.json")


def test_onnx_runtime_computes_the_same(encoder: Any, tmp_path: Path) -> None:
    quantized = encoder[2]
    octavo.export_onnx(quantized, tmp_path / "encoder.onnx")
    session = reference_session(tmp_path / "encoder.onnx", optimized=False)
    exported = np.concatenate([np.asarray(session.run(None, {"x": x})[0]) for x in samples(48, 2)])
    assert sqnr_db(logits(octavo.compile(quantized)), exported) > 50


def test_errors_by_layer_are_of_the_equalized_tensors(norm: Any) -> None:
    model, _, quantized = norm
    rows = {row.id: row for row in octavo.layer_errors(model, quantized, samples(4, 2))}
    equalized = [rows[tensor] for tensor in quantized.plan.equalization.factors if tensor in rows]
    assert equalized
    assert all(row.local_sqnr_db > 30 for row in equalized)


def test_lineage_tells_the_factors(norm: Any) -> None:
    model, profile, _ = norm
    lineage = octavo.Lineage(model)
    with tvm.transform.PassContext(opt_level=3, instruments=[lineage]):
        quantized = octavo.quantize(model, profile)
    assert quantized.plan.equalization.factors
    for tensor, factors in quantized.plan.equalization.factors.items():
        state = lineage[tensor]
        assert state.kind == "rescaled"
        np.testing.assert_allclose(state.relation.factors, 1 / factors.reshape(-1), rtol=1e-6)


def test_tensors_of_which_the_recipe_says_something_stay(encoder: Any) -> None:
    model, profile, quantized = encoder
    name = next(iter(quantized.plan.equalization.factors))
    fixed = {name: quantized.plan.activations[name]}
    again = octavo.quantize(model, profile, recipe=replace(UNCORRECTED, tensors=fixed))
    assert again.plan.equalization.factors
    assert name not in again.plan.equalization.factors


def test_observers_see_the_source_s_values(norm: Any) -> None:
    model, profile, quantized = norm
    names, record, x = list(quantized.plan.equalization.factors)[:4], Record(), samples(1, 2)[0]
    octavo.compile(octavo.observe(model, names, record))(x)
    of_model, of_module = Compare(record.tensors), Compare(record.tensors)
    octavo.compile(octavo.observe(quantized, names, of_model))(x)
    lineage = octavo.Lineage(model, target=host_target())
    with host_target(), tvm.transform.PassContext(opt_level=3, instruments=[lineage]):
        again = octavo.quantize(model, profile)
        module = octavo.relax_pipeline(ids=again.tensors)(again.bound())
    names = [name for name in names if lineage.variable(name) is not None]
    assert names
    observed = octavo.observe(module, names, of_module, lineage=lineage)
    with host_target(), tvm.transform.PassContext(opt_level=3):
        executable = tvm.relax.build(observed, target=host_target())
    tvm.relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x))
    for compare in (of_model, of_module):
        assert all(compare.tensors[name][0].sqnr_db > 30 for name in names)


def test_root_causes_are_those_of_the_equalized_model(norm: Any) -> None:
    model, profile, quantized = norm
    unequalized = with_steps(model, profile, recipe=octavo.Recipe(equalization="none", min_sqnr=None))
    before, now = (root_causes(model, each, samples(4, 2)) for each in (unequalized, quantized))
    assert before[0].cause == "unlike channels"
    assert now[0].sqnr_db > before[0].sqnr_db + 10
    assert not [row for row in now if row.cause in ("coarse scale", "clipping", "weight scale", "bias")]
