"""Scale and zero point: the formulas, and what they do at the ends of float32."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.numerics import PerAxis, PerTensor, dequantize, quantize
from octavo.numerics.statistics.ranges import asymmetric_params, symmetric_params

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
LARGEST = float(np.finfo(np.float32).max)


@given(FLOATS, FLOATS, st.sampled_from(["uint8", "int8"]))
def test_zero_is_exact_and_both_ends_are_within_half_a_step(one: float, other: float, dtype: str) -> None:
    low, high = sorted((one, other))
    params = asymmetric_params(low, high, dtype)
    scale = float(params.scale)
    ends = np.array([min(low, 0.0), 0.0, max(high, 0.0)], np.float32)
    with np.errstate(over="ignore"):
        back = dequantize(quantize(ends, params), params).astype(np.float64)
    assert back[1] == 0.0
    # The zero point's rounding shifts both ends by up to half a step; the second half is the ends' own rounding.
    assert np.abs(back - ends.astype(np.float64)).max() <= scale * 1.001


@pytest.mark.parametrize(
    ("low", "high", "dtype", "scale", "zero_point"),
    [
        (0.0, 2.55, "uint8", 0.01, 0),
        (-1.0, 1.55, "uint8", 0.01, 100),
        (-2.55, 0.0, "uint8", 0.01, 255),
        (0.0, 2.55, "int8", 0.01, -128),
        (1.0, 2.55, "uint8", 0.01, 0),
        (-2.55, -1.0, "int8", 0.01, 127),
        (0.0, 0.0, "uint8", 1 / 255, 0),
        (0.0, 1e-40, "int8", 1 / 255, -128),
        (-LARGEST, LARGEST, "uint8", 2 * LARGEST / 255, 128),
    ],
)
def test_known_ranges(low: float, high: float, dtype: str, scale: float, zero_point: int) -> None:
    params = asymmetric_params(low, high, dtype)
    assert (params.scale, params.zero_point) == (np.float32(scale), zero_point)


def test_weights_reach_127_on_every_channel() -> None:
    weight = np.random.default_rng(0).standard_normal((5, 3, 2, 2)).astype(np.float32)
    params = symmetric_params(weight, "int8", axis=0)
    assert params.granularity == PerAxis(0)
    np.testing.assert_array_equal(params.scale, (np.abs(weight).max(axis=(1, 2, 3)).astype(np.float64) / 127).astype(np.float32))
    assert np.abs(quantize(weight, params).astype(int)).max(axis=(1, 2, 3)).tolist() == [127] * 5
    whole = symmetric_params(weight, "int8", axis=None)
    assert (whole.granularity, whole.scale) == (PerTensor(), np.float32(float(np.abs(weight).max()) / 127))


def test_dead_channels_take_the_scale_of_the_largest() -> None:
    weight = np.array([[1.0, 0.0, 1e-30, 0.5]], np.float32)
    scale = symmetric_params(weight, "int8", axis=1).scale
    assert scale.tolist() == [np.float32(1 / 127)] * 3 + [np.float32(0.5 / 127)]
    assert symmetric_params(np.zeros((2, 3), np.float32), "int8", axis=1).scale.tolist() == [np.float32(1 / 127)] * 3
    assert symmetric_params(np.zeros((2, 3), np.float32), "int8", axis=None).scale == np.float32(1 / 127)


def test_a_floor_widens_only_the_scales_below_it() -> None:
    weight = np.array([[1.27, 2.54]], np.float32)
    params = symmetric_params(weight, "int8", axis=1, floor=np.array([0.0, 0.5]))
    np.testing.assert_array_equal(params.scale, np.array([0.01, 0.5], np.float32))
