"""The quantized softmax against LiteRT and against float64."""

import litert_op
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from octavo.numerics import SOFTMAX_MAX_COLUMNS, softmax, softmax_table


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("columns", [2, 10, 12, 100, 1001])
def test_agrees_with_litert(columns: int, dtype: str) -> None:
    rng = np.random.default_rng(columns)
    low = -128 if dtype == "int8" else 0
    different = total = 0
    for scale, beta in [(0.05, 1.0), (0.1, 1.0), (0.02, 1.0), (0.17, 0.5)]:
        options = schema.SoftmaxOptionsT()
        options.beta = beta
        scale = float(np.float32(scale))
        x = np.clip(np.rint(rng.normal(0, 1.5 / scale, (200, columns))), -128, 127).astype(np.int32) + low + 128
        x = x.astype(dtype)
        want = litert_op.run(
            "SOFTMAX",
            options,
            [litert_op.Quantized(shape=x.shape, dtype=dtype, scale=scale, zero_point=low + 100, values=x)],
            litert_op.Quantized(shape=x.shape, dtype=dtype, scale=1 / 256, zero_point=low),
        )
        got = softmax(x, scale=scale * beta, out_scale=1 / 256, zero_point=low, qmin=low, qmax=low + 255, dtype=dtype)
        assert np.abs(got.astype(int) - want).max() <= 1
        different, total = different + int((got != want).sum()), total + got.size
    assert different <= 0.001 * total


def test_close_to_real_numbers() -> None:
    rng = np.random.default_rng(0)
    q = rng.integers(0, 256, (50, SOFTMAX_MAX_COLUMNS)).astype(np.uint8)
    exponentials = np.exp(0.03 * q.astype(np.float64))
    exact = exponentials / exponentials.sum(axis=1, keepdims=True)
    # Probabilities as small as these need a finer step than 1 / 256 to be seen at all.
    got = softmax(q, scale=0.03, out_scale=2e-5, zero_point=0)
    assert np.abs(got - np.clip(exact / 2e-5, 0, 255)).max() < 0.6


def test_the_sum_stays_in_int32() -> None:
    for columns in (1, 2, 255, 256, 257, 1001, SOFTMAX_MAX_COLUMNS):
        assert int(softmax_table(0.1, columns)[0]) * columns < 2**31


def test_too_long_a_row() -> None:
    with pytest.raises(ValueError, match=f"1 to {SOFTMAX_MAX_COLUMNS} values, got {SOFTMAX_MAX_COLUMNS + 1}"):
        softmax_table(0.1, SOFTMAX_MAX_COLUMNS + 1)
