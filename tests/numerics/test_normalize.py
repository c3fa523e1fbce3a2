"""Rows over their norm, and logarithms of softmax, against LiteRT; and what both do with rows at the edges."""

import litert_op
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from octavo import numerics
from octavo.numerics import INTEGER_RANGE


def rows(rng: np.random.Generator, dtype: str, zero_point: int) -> np.ndarray:
    """Rows of any spread, one of the zero point alone, one a step away from it, one as far as can be."""
    low, high = INTEGER_RANGE[dtype]
    columns = int(rng.integers(2, 150))
    spread = rng.choice([1, 4, 30, 255], (40, 1))
    x = np.clip(zero_point + rng.integers(-spread, spread + 1, (40, columns)), low, high)
    x[0], x[1], x[2] = zero_point, zero_point, low
    x[1, 0] = zero_point - 1 if zero_point > low else low + 1
    return x.astype(dtype)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_l2_normalization_equals_litert(dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    zero_point = int(rng.integers(*INTEGER_RANGE[dtype]))
    x = rows(rng, dtype, zero_point)
    q = x.reshape(40, 1, 1, -1)
    result = 0 if dtype == "int8" else 128
    inputs = [litert_op.Quantized(shape=q.shape, dtype=dtype, scale=0.02, zero_point=zero_point, values=q)]
    output = litert_op.Quantized(shape=q.shape, dtype=dtype, scale=1 / 128, zero_point=result)
    want = litert_op.run("L2_NORMALIZATION", schema.L2NormOptionsT(), inputs, output).reshape(x.shape)
    np.testing.assert_array_equal(numerics.l2_normalize_fixed(x, input_zero_point=zero_point), want)
    low, high = INTEGER_RANGE[dtype]
    plain = {"out_scale": 1 / 128, "zero_point": result, "qmin": low, "qmax": high, "dtype": dtype}
    near = numerics.l2_normalize(x, input_zero_point=zero_point, **plain)
    assert np.abs(near.astype(int) - want.astype(int)).max() <= 1


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_log_softmax_equals_litert(dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    low, high = INTEGER_RANGE[dtype]
    scale = float(np.float32(2.0 ** rng.uniform(-7, -2)))
    x = rows(rng, dtype, int(rng.integers(low, high)))
    inputs = [litert_op.Quantized(shape=x.shape, dtype=dtype, scale=scale, values=x)]
    output = litert_op.Quantized(shape=x.shape, dtype=dtype, scale=1 / 16, zero_point=high)
    want = litert_op.run("LOG_SOFTMAX", schema.LogSoftmaxOptionsT(), inputs, output, version=2 if dtype == "int8" else 1)
    got = numerics.log_softmax(x, scale=scale, out_scale=1 / 16, zero_point=high, qmin=low, qmax=high, dtype=dtype)
    distance = np.abs(got.astype(int) - want.astype(int))
    assert distance.max() <= 1
    assert (distance > 0).mean() <= 0.001


@pytest.mark.parametrize(("scale", "out_scale"), [(1e-6, 1 / 16), (100.0, 1 / 16), (0.1, 0.001), (0.5, 2.0)])
def test_log_softmax_of_unusual_scales(scale: float, out_scale: float) -> None:
    x = np.random.default_rng(0).integers(0, 256, (20, 37)).astype(np.uint8)
    steps = (x.astype(np.float64) - x.max(axis=1, keepdims=True)) * scale
    exact = (steps - np.log(np.exp(steps).sum(axis=1, keepdims=True))) / out_scale
    got = numerics.log_softmax(x, scale=scale, out_scale=out_scale, zero_point=255).astype(int)
    assert np.abs(got - np.clip(exact + 255, 0, 255)).max() <= 0.51


def test_log_softmax_of_steps_too_small() -> None:
    with pytest.raises(ValueError, match="out_scale"):
        numerics.log_softmax_parameters(0.1, 1e-5, 10)
