"""Roofline: every call of a model is timed, its multiply-accumulates are the layers' own, and both forms tell the same."""

import json

import numpy as np
import pytest

import octavo
from nets import residual_net
from octavo.evaluation.bench.roofline import LayerTime, Roofline, roofline


@pytest.fixture(scope="module")
def quantized() -> octavo.Model:
    model = residual_net()
    samples = [np.random.default_rng(seed).normal(size=(1, 3, 8, 8)).astype(np.float32) for seed in range(2)]
    return octavo.quantize(model, octavo.profile(model, samples))


@pytest.fixture(scope="module")
def measured(quantized: octavo.Model) -> Roofline:
    return roofline(quantized, "net", rounds=3)


def test_layers_are_the_model_s(quantized: octavo.Model, measured: Roofline) -> None:
    explained = octavo.explain(quantized).ops
    assert sum(layer.macs for layer in measured.layers) == sum(op.macs for op in explained) > 0
    assert all(layer.integer for layer in measured.layers if layer.macs)
    assert all(layer.microseconds > 0 for layer in measured.layers if layer.macs)


def test_the_page_and_the_json_tell_the_same(measured: Roofline) -> None:
    told = json.loads(json.dumps(measured.to_json()))
    assert len(told["layers"]) == len(measured.layers)
    text = measured.to_markdown()
    assert all(layer.kernel in text for layer in measured.layers)
    assert f"{measured.float_peak:.1f} in float32" in text


def test_the_share_of_all_layers_is_weighted_by_their_time() -> None:
    def layer(microseconds: float, share: float | None) -> LayerTime:
        return LayerTime(kernel="k", tensor="t", integer=True, macs=1, microseconds=microseconds, share=share)

    layers = (layer(1, 0.9), layer(3, 0.5), layer(100, None))
    measured = Roofline(model="m", processor="p", integer_peak=200.0, float_peak=50.0, layers=layers)
    assert measured.weighted_share == pytest.approx(0.6)
    empty = Roofline(model="m", processor="p", integer_peak=None, float_peak=50.0, layers=())
    assert empty.weighted_share is None
