"""Error metrics: known values and the cases where a ratio has no finite value."""

from __future__ import annotations

import math

import numpy as np
import pytest

from octavo.numerics.statistics.metrics import max_abs_error, sqnr_db

ONES = np.ones((2, 3), np.float32)


@pytest.mark.parametrize("error", [2.0**-10, 0.5, 1.0, 8.0])
def test_sqnr_of_a_constant_error(error: float) -> None:
    assert sqnr_db(ONES, ONES - np.float32(error)) == pytest.approx(-20 * math.log10(error), abs=1e-12)


def test_sqnr_without_noise_or_without_signal() -> None:
    assert sqnr_db(ONES, ONES) == math.inf
    assert sqnr_db(0 * ONES, 0 * ONES) == math.inf
    assert sqnr_db(0 * ONES, ONES) == -math.inf


def test_sqnr_does_not_overflow_float32() -> None:
    large = np.full(4, 3e38, np.float32)
    assert sqnr_db(large, large / 2) == pytest.approx(20 * math.log10(2))


def test_max_abs_error() -> None:
    assert max_abs_error(ONES, ONES - np.arange(6, dtype=np.float32).reshape(2, 3)) == 5.0
    assert max_abs_error(np.zeros(0, np.float32), np.zeros(0, np.float32)) == 0.0


@pytest.mark.parametrize("metric", [sqnr_db, max_abs_error])
def test_shapes_must_agree(metric: object) -> None:
    assert callable(metric)
    with pytest.raises(ValueError, match=r"\(2, 3\).*\(3, 2\)"):
        metric(ONES, ONES.T)
