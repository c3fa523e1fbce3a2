"""Inputs that were integers before: their scale is found, whichever samples were seen, and rounding them loses nothing."""

from __future__ import annotations

import numpy as np
import pytest

import octavo
from apply_steps import with_steps
from nets import residual_net
from octavo.numerics import QuantParams, dequantize, quantize
from octavo.quantizer.ranges import QuantScheme
from octavo.quantizer.steps.ranges import ExactInputs, range_on_grid

SHAPE = (1, 3, 8, 8)


@pytest.mark.parametrize(("least", "most"), [(0, 199), (-128, 90), (-90, 0), (-100, 100)])
@pytest.mark.parametrize("unit", [1 / 255, 0.5847, 1.0, 3e-4])
def test_numbers_of_integers_stay_as_they_are(rng: np.random.Generator, least: int, most: int, unit: float) -> None:
    values = [(rng.integers(least, most + 1, 300) * np.float32(unit)).astype(np.float32) for _ in range(8)]
    params = QuantParams.per_tensor("uint8", 0.9 * unit, 100)
    ends = range_on_grid(values, params)
    assert ends is not None
    found = QuantScheme.of(params).params(*ends)
    for each in values:
        np.testing.assert_allclose(dequantize(quantize(each, found), found), each, atol=unit / 100)
    assert range_on_grid(values, found) is None, "they are exact"


@pytest.mark.parametrize("kind", ["no multiples", "too many", "too few"])
def test_other_numbers_have_no_such_range(rng: np.random.Generator, kind: str) -> None:
    made = {"no multiples": rng.normal(size=200), "too many": rng.integers(0, 400, 900), "too few": rng.integers(0, 2, 900)}
    assert range_on_grid([made[kind].astype(np.float32)], QuantParams.per_tensor("uint8", 0.9, 0)) is None


def test_inputs_have_one_scale_whichever_samples_were_seen(rng: np.random.Generator) -> None:
    model, unit = residual_net(), np.float32(0.03)
    pool = [(np.clip(rng.normal(0, 40, SHAPE), -128, 127).round() * unit).astype(np.float32) for _ in range(24)]
    scales = []
    for first in (0, 6, 12):
        quantized = with_steps(model, octavo.profile(model, pool[first : first + 12]), [ExactInputs()])
        scales.append(float(quantized.plan.activations[model.input_ids[0]].scale))
    assert scales == pytest.approx([float(unit)] * 3)
