"""Running with checks on: what leaves its range is named with how much of it, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import octavo
from nets import residual_net
from octavo.errors import ProfileError
from octavo.ir.identity import TensorId
from octavo.profiling.range_checks import check_ranges

X = TensorId("x")


@pytest.fixture(scope="module")
def calibrated() -> tuple[octavo.Model, octavo.Profile, np.ndarray]:
    model = residual_net()
    samples = np.random.default_rng(1).uniform(-1, 1, (12, 3, 8, 8)).astype(np.float32)
    samples[0, 0, 0, :2] = -1, 1
    return model, octavo.profile(model, samples), samples


def test_the_calibration_samples_stay_within_their_ranges(calibrated: tuple[octavo.Model, octavo.Profile, np.ndarray]) -> None:
    model, profile, samples = calibrated
    found = check_ranges(model, samples, calibration=profile)
    assert len(found.tensors) == sum(value.kind != "constant" for value in profile.values())
    assert found.left == ()


def test_a_share_of_values_is_outside(calibrated: tuple[octavo.Model, octavo.Profile, np.ndarray]) -> None:
    model, profile, samples = calibrated
    qmodel = octavo.quantize(model, profile)
    wider = samples.copy()
    wider.reshape(12, -1)[:, :48] *= 40  # a quarter of the values: uniform up to 40, of which [-1; 1] are 2.5%
    for subject, calibration in ((model, profile), (qmodel, None)):
        found = check_ranges(subject, wider, calibration=calibration)
        x = next(check for check in found.tensors if check.id == X)
        expected = np.mean(np.abs(wider) > 1 + (0 if calibration else 1 / 255))
        assert x.outside == pytest.approx(expected, rel=0.01)
        assert (x.minimum, x.maximum, x.values) == (wider.min(), wider.max(), wider.size)
        assert (x.low, x.high) == (pytest.approx(-1, abs=0.01), pytest.approx(1, abs=0.01))
        shares = [check.outside for check in found.tensors]
        assert shares == sorted(shares, reverse=True)
    assert {check.id for check in found.tensors} <= set(profile)


def test_a_clipped_range_saturates_on_its_own_samples(calibrated: tuple[octavo.Model, octavo.Profile, np.ndarray]) -> None:
    model, profile, samples = calibrated
    qmodel = octavo.quantize(model, profile, recipe=octavo.Recipe(range_estimator="percentile", percentile=90.0))
    x = next(check for check in check_ranges(qmodel, samples).tensors if check.id == X)
    # 10% are cut, less what lies within half a step of 1/255 of the range.
    assert 0.09 < x.outside < 0.1


def test_an_exported_model_is_checked_like_the_one_it_came_from(
    calibrated: tuple[octavo.Model, octavo.Profile, np.ndarray], tmp_path: Path
) -> None:
    from onnx import TensorProto, helper, numpy_helper, save

    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32), "w")
    shapes = {"x": (1, 3, 8, 8), "y": None}
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items())
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], [weight])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    model, samples = octavo.load(tmp_path / "m.onnx"), calibrated[2]
    qmodel = octavo.quantize(model, octavo.profile(model, samples))
    octavo.export_onnx(qmodel, tmp_path / "q.onnx")
    one, other = check_ranges(qmodel, samples * 2), check_ranges(octavo.load(tmp_path / "q.onnx"), samples * 2)
    shares = {check.source_name: check.outside for check in one.tensors}
    assert shares["x"] > 0.4
    # The export names a graph's outputs by the integers' dequantization.
    renamed = {check.source_name.removesuffix("_float"): check.outside for check in other.tensors}
    assert renamed == pytest.approx(shares, abs=1e-3)


def test_a_float_model_needs_its_calibration(calibrated: tuple[octavo.Model, octavo.Profile, np.ndarray]) -> None:
    model, profile, samples = calibrated
    with pytest.raises(ProfileError, match="no tensor of the model is quantized: give"):
        check_ranges(model, samples)
    with pytest.raises(ProfileError, match="belongs to another model"):
        check_ranges(model, samples, calibration=replace(profile, fingerprint="sha256:other"))


def test_a_tflite_model_is_checked_by_what_its_integers_stand_for(shared: Path) -> None:
    model = octavo.load(shared / "models" / "tflite" / "autoencoder_ad01_int8.tflite")
    (name,) = model.input_ids
    shape = model.tensors[name].shape
    samples = np.random.default_rng(0).integers(-128, 128, (3, *shape[1:]), np.int8)
    samples[0] = 127
    found = {check.id: check for check in check_ranges(model, samples).tensors}
    assert set(found) == {key for key, entry in model.tensors.items() if entry.kind == "activation" and entry.in_module}
    (output,) = model.output_ids
    executable = octavo.compile(model)
    results = np.concatenate([next(iter(executable(sample[np.newaxis]).values())) for sample in samples])
    saturated = np.mean((results == -128) | (results == 127))
    assert found[output].outside == saturated == 0
    hidden = [check for key, check in found.items() if key != output]
    assert all(check.low == 0 for check in hidden), "each has a RELU, which clamps at 0"
    assert all((check.outside > 0) == (check.maximum > check.high) for check in hidden if abs(check.maximum - check.high) > 0.1)
    assert all(check.minimum < -1 for check in hidden), "or this test shows nothing"
    assert any(check.outside > 0 for check in hidden), "or this test shows nothing"
