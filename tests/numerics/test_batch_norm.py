"""Folding batch normalization: the folded convolution computes what convolution and normalization computed."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.numerics.floats.batch_norm import fold_batch_norm


@pytest.mark.parametrize("has_bias", [True, False])
def test_folded_product_equals_product_then_normalization(has_bias: bool) -> None:
    rng = np.random.default_rng(0)
    weight, x = rng.standard_normal((7, 4)).astype(np.float32), rng.standard_normal((50, 7)).astype(np.float32)
    bias = rng.standard_normal(4).astype(np.float32) if has_bias else None
    gamma, beta, mean = (rng.standard_normal(4).astype(np.float32) for _ in range(3))
    variance = rng.random(4).astype(np.float32)
    folded, folded_bias = fold_batch_norm(weight, bias, gamma, beta, mean, variance, epsilon=1e-3, axis=1)
    raw = x.astype(np.float64) @ weight + (0 if bias is None else bias)
    expected = gamma * (raw - mean) / np.sqrt(variance + 1e-3) + beta
    assert (folded.dtype, folded_bias.dtype) == (np.float32, np.float32)
    np.testing.assert_allclose(x.astype(np.float64) @ folded + folded_bias, expected, rtol=0, atol=1e-5)
