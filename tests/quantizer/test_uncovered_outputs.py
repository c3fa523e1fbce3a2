"""Heads of outputs that calibration hardly covers: float where that takes next to no time, and what saturated before does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import relax

import octavo
from nets import model_of
from octavo.ir.graph.dataflow import BodyWriter
from octavo.quantizer.recipe import Override
from octavo.quantizer.uncovered_outputs import uncovered_outputs
from octavo.target import CPU

SHAPE = (1, 8, 32, 32)
Profiled = tuple[octavo.Model, octavo.Profile]
HEAD = {"_p", "h", "hr", "_s"}
AS_WIDE = octavo.Recipe(equalization="none")
"""Channels as wide as they are: whether they are evened out has no say in what is float, and takes half of the time."""


def network() -> octavo.Model:
    """A trunk of two convolutions, a map of 16 pixels, and a score: the sum of channel 0, which passes through all layers."""
    random = np.random.default_rng(3)

    def body(writer: BodyWriter, **v: Any) -> Any:
        value = v["x"]
        for number in range(2):
            attributes = {"padding": (1, 1), "strides": (4 if number else 2,) * 2}
            product = writer.emit(f"_c{number}", relax.op.nn.conv2d(value, v[f"w{number}"], **attributes))
            value = writer.emit(f"r{number}", relax.op.nn.relu(product))
        boxes = writer.emit("boxes", relax.op.nn.conv2d(value, v["wb"]), is_output=True)
        product = writer.emit("_p", relax.op.nn.conv2d(value, v["wh"]))
        head = writer.emit("hr", relax.op.nn.relu(writer.emit("h", relax.op.add(product, v["bh"]))))
        product = writer.emit("_s", relax.op.nn.conv2d(head, v["ws"]))
        score = writer.emit("score", relax.op.add(product, v["bs"]), is_output=True)
        return relax.Tuple([boxes, score])

    params = {
        "w0": random.normal(size=(64, 8, 3, 3)) / 8,
        "w1": random.normal(size=(64, 64, 3, 3)) / 24,
        "wb": random.normal(size=(4, 64, 1, 1)) / 8,
        "wh": np.zeros((4, 64, 4, 4)),
        "bh": np.full((1, 4, 1, 1), 0.1),
        "ws": np.full((1, 4, 1, 1), 0.5),
        "bs": np.full((1, 1, 1, 1), -0.5),
    }
    for name in ("w0", "w1"):  # channel 0 alone, of its middle pixel
        params[name][:, 0], params[name][0] = 0.0, 0.0
        params[name][0, 0, 1, 1] = 1.0
    params["wh"][:, 0] = 1 / 16
    weights = {name: value.astype(np.float32) for name, value in params.items()}
    return model_of({"x": (SHAPE, "float32")}, weights, body, ("boxes", "score"))


def samples(presences: np.ndarray, seed: int) -> list[np.ndarray]:
    """Noise in all channels but the first, which is what is looked for."""
    random = np.random.default_rng(seed)
    found = [random.normal(size=SHAPE).astype(np.float32) for _ in presences]
    for sample, presence in zip(found, presences, strict=True):
        sample[:, 0] = presence
    return found


RARE = 0.2 * np.random.default_rng(8).random(64) ** 6
COVERED = np.linspace(0, 1, 64)


@pytest.fixture(scope="module")
def profiled() -> Profiled:
    model = network()
    return model, octavo.profile(model, samples(RARE, 1), keep_samples=16)


def score_of(model: octavo.Model, presence: float) -> float:
    (sample,) = samples(np.array([presence]), 2)
    return float(octavo.compile(model)(sample)["net/score:0"].item())


def test_what_samples_did_not_show_does_not_saturate(profiled: Profiled) -> None:
    model, profile = profiled
    expected = score_of(model, 1.0)
    assert expected == pytest.approx(1.7, abs=0.01)
    # Evened out, channel 0 would have a range of its own in the trunk, too.
    quantized = octavo.quantize(model, profile, recipe=AS_WIDE)
    assert score_of(quantized, 1.0) == pytest.approx(expected, rel=0.03)
    saturating = octavo.quantize(model, profile, recipe=replace(AS_WIDE, min_sqnr=None))
    assert score_of(saturating, 1.0) < 0.5 * expected


def test_all_but_the_head_is_integer_and_the_head_says_why(profiled: Profiled) -> None:
    quantized = octavo.quantize(*profiled)
    assert {"r0", "r1"} <= set(quantized.plan.activations)
    assert not HEAD & set(quantized.plan.activations)
    ops = octavo.explain(quantized).ops
    assert all(op.integer for op in ops if op.macs and op.tensor != "score")
    (reason,) = [op.reason for op in ops if op.macs and not op.integer]
    assert "the output net/score:0 may go " in reason
    again = octavo.quantize(profiled[0], plan=quantized.plan)
    assert again.fingerprint == quantized.fingerprint


def test_last_layers_reach_back_as_far_as_their_work_is_next_to_nothing(profiled: Profiled) -> None:
    model, profile = profiled
    # Not r1: the product that reads it has a thousand weights for each value.
    assert set(uncovered_outputs(model, profile)) == HEAD


def test_covered_outputs_have_none() -> None:
    model = network()
    profile = octavo.profile(model, samples(COVERED, 1), keep_samples=0)
    assert uncovered_outputs(model, profile) == {}


def test_too_few_samples_tell_nothing() -> None:
    model = network()
    profile = octavo.profile(model, samples(RARE[:4], 1), keep_samples=0)
    assert uncovered_outputs(model, profile) == {}


@pytest.mark.parametrize(
    "given",
    [
        {"recipe": replace(AS_WIDE, min_sqnr=None)},
        {"recipe": replace(AS_WIDE, bias_correction=False, weight_rounding="nearest")},
        {"preset": "fast"},
        {"recipe": replace(AS_WIDE, overrides={"h": Override(range_estimator="mse")})},
        {"params": lambda choice: None},
        {"target": replace(CPU, name="dsp", ops=tuple(replace(op, fusions=()) for op in CPU.ops))},
    ],
)
def test_it_is_for_targets_of_floats_and_where_nothing_else_is_wished(profiled: Profiled, given: dict[str, Any]) -> None:
    quantized = octavo.quantize(*profiled, **{"recipe": AS_WIDE, **given})
    assert not [op.reason for op in quantized.plan.float_ops if "would saturate in 8 bits" in op.reason]
    if given.get("preset") == "fast" or "recipe" in given:  # others may leave it float for its error
        assert "hr" in quantized.plan.activations
