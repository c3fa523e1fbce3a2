"""Functions that products' kernels compute of their own sums: where rounding these costs most for the function's time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tvm import relax

import octavo
from apply_steps import with_steps
from nets import model_of
from octavo.ir.graph.dataflow import BodyWriter
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.quantizer.steps import Correct, FuseFunctions, Step, keep_float

STEPS = Correct(), FuseFunctions()

PLAIN = octavo.Recipe(bias_correction=False, weight_rounding="nearest", min_sqnr=None)


@pytest.fixture(scope="module")
def profiled() -> tuple[octavo.Model, octavo.Profile, list[np.ndarray]]:
    """Convolutions and SiLUs. The first one's sums go far below zero, where SiLU is 0: in their steps its result is coarse."""
    random = np.random.default_rng(7)

    def body(writer: BodyWriter, **v: Any) -> Any:
        value = v["x"]
        for number in range(2):
            product = writer.emit(f"_m{number}", relax.op.nn.conv2d(value, v[f"w{number}"]))
            sums = writer.emit(f"s{number}", relax.op.add(product, v[f"b{number}"]))
            value = writer.emit(f"f{number}", relax.op.nn.silu(sums))
        return writer.emit("y", relax.op.nn.conv2d(value, v["head"]), is_output=True)

    params = {
        "w0": random.normal(size=(32, 256, 3, 3)) / 48,
        "b0": np.where(np.arange(32) % 4, 0.0, -60.0).reshape(1, 32, 1, 1),
        "w1": random.normal(size=(32, 32, 3, 3)) / 16,
        "b1": random.normal(size=(1, 32, 1, 1)),
        "head": random.normal(size=(6, 32, 1, 1)),
    }
    weights = {name: value.astype(np.float32) for name, value in params.items()}
    model = model_of({"x": ((1, 256, 6, 6), "float32")}, weights, body, ("y",))
    samples = [random.normal(size=(1, 256, 6, 6)).astype(np.float32) for _ in range(6)]
    return model, octavo.profile(model, samples, keep_samples=6), samples


def test_sums_that_cost_most_are_not_rounded_before_their_function(profiled) -> None:
    model, profile, samples = profiled
    run = octavo.compile(model)
    expected = np.concatenate([next(iter(run(sample).values())) for sample in samples]).astype(np.float64)

    def quantized(steps: Sequence[Step]) -> tuple[octavo.QuantizationPlan, float]:
        found = with_steps(model, profile, steps, recipe=octavo.Recipe(min_sqnr=None, weight_rounding="nearest"))
        integers = octavo.compile(found)
        got = np.concatenate([next(iter(integers(sample).values())) for sample in samples]).astype(np.float64)
        return found.plan, float(sqnr_db(expected, got))

    (plain, before), (plan, after) = quantized(STEPS[:1]), quantized(STEPS)
    assert "s0" in plain.activations
    assert "s0" not in plan.activations
    assert {layer.output for layer in plain.layers} == {layer.output for layer in plan.layers}, "nothing became float"
    assert after > before + 3


@pytest.mark.parametrize(
    ("limit", "value", "stays"),
    [("_SHARE", 0.001, True), ("_MIN_SHARE", 1.1, True), ("_MIN_EFFECT", 1.1, True), ("_SHARE", 1.0, False)],
)
def test_sums_that_take_too_much_time_or_bring_too_little_are_rounded(
    profiled, monkeypatch: pytest.MonkeyPatch, limit: str, value: float, stays: bool
) -> None:
    model, profile, _ = profiled
    monkeypatch.setattr(keep_float, limit, value)
    plan = octavo.quantize(model, profile, recipe=octavo.Recipe(min_sqnr=None, weight_rounding="nearest")).plan
    assert ("s0" in plan.activations) == stays


def test_a_recipe_that_names_the_sums_keeps_them(profiled) -> None:
    model, profile, _ = profiled
    params = octavo.quantize(model, profile, recipe=PLAIN).plan.activations["s0"]
    recipe = octavo.Recipe(min_sqnr=0.0, weight_rounding="nearest", tensors={"s0": params})
    for quantized in (
        octavo.quantize(model, profile, recipe=recipe),
        with_steps(model, profile, STEPS, recipe=recipe),
    ):
        assert quantized.plan.activations["s0"] == params
