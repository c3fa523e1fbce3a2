"""Evaluation of models of open sizes, on samples of different sizes."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
import tvm

import octavo
from octavo.report import quantization_figures, quantization_page

STEPS = """<ir_version: 8, opset_import: ["" : 13]> steps (float[batch,sequence,24] x) => (float[batch,sequence,6] y) {
    d = MatMul(x, w)
    r = Relu(d)
    e = MatMul(r, v)
    y = Softmax(e)
}"""
SIZES = ((2, 9), (1, 30), (1, 4), (2, 20))


@pytest.fixture(scope="module")
def model() -> octavo.Model:
    rng = np.random.default_rng(5)
    proto = onnx.parser.parse_model(STEPS)
    for name, shape in (("w", (24, 16)), ("v", (16, 6))):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(0, 0.3, shape).astype(np.float32), name))
    return octavo.load(proto)


@pytest.fixture(scope="module")
def samples() -> list[np.ndarray]:
    rng = np.random.default_rng(6)
    return [rng.normal(size=(*size, 24)).astype(np.float32) for size in SIZES]


@pytest.fixture(scope="module")
def profile(model: octavo.Model, samples: list[np.ndarray]) -> octavo.Profile:
    return octavo.profile(model, samples, keep_samples=4)


@pytest.fixture(scope="module")
def quantized(model: octavo.Model, profile: octavo.Profile) -> octavo.Model:
    return octavo.quantize(model, profile)


def test_steps_of_sequences_of_any_length_are_compared(model, quantized, samples) -> None:
    longest = max(length for _, length in SIZES)
    labels = np.full((sum(batch for batch, _ in SIZES), longest), -1)
    start = 0
    for x in samples:
        labels[start : start + len(x), : x.shape[1]] = octavo.compile(model)(x)["y"].argmax(-1)
        start += len(x)
    found = octavo.evaluate(model, quantized, samples, labels=labels, layers=4)
    assert found.samples == len(SIZES)
    assert found.metric is not None
    assert found.metric.reference == 1.0
    assert found.metric.candidate == pytest.approx(found.agreement, abs=0.05)
    assert found.layers
    assert found.to_json()["outputs"][0]["shape"] == ["batch", "sequence", 6]
    rows = octavo.layer_errors(model, quantized, samples)
    assert all(math.isfinite(row.sqnr_db) for row in rows)


def test_the_page_shows_names_of_dimensions(model, quantized, profile) -> None:
    page = quantization_page(quantization_figures(model, quantized, profile), title="steps")
    assert '["batch","sequence",6]' in page


def test_lineage_is_verified_at_the_size_of_a_batch(model, samples) -> None:
    final = tvm.relax.transform.DecomposeOpsForInference()(model.bound())
    assert all(check.is_right for check in octavo.verify_lineage(model, final, samples[0]))
