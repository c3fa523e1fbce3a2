"""The quantized product and difference against LiteRT, bit for bit over every pair of 8-bit values."""

import litert_op
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from octavo.numerics import INTEGER_RANGE, add, mul, requantize_multiplier

SHAPE = (1, 256, 256, 1)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("operator", ["MUL", "SUB"])
@pytest.mark.parametrize("seed", range(10))
def test_equals_litert(operator: str, dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    low, high = INTEGER_RANGE[dtype]
    a_scale, b_scale, out_scale = (float(np.float32(scale)) for scale in np.exp(rng.uniform(-2.7, 2.7, 3)))
    a_zero, b_zero, zero_point = (int(zero) for zero in rng.integers(low, high + 1, 3))
    if operator == "MUL":
        out_scale = float(np.float32(a_scale * b_scale * np.exp(rng.uniform(2, 5))))
    a, b = (grid.astype(dtype).reshape(SHAPE) for grid in np.meshgrid(np.arange(low, high + 1), np.arange(low, high + 1)))
    inputs = [
        litert_op.Quantized(shape=SHAPE, dtype=dtype, scale=a_scale, zero_point=a_zero, values=a),
        litert_op.Quantized(shape=SHAPE, dtype=dtype, scale=b_scale, zero_point=b_zero, values=b),
    ]
    output = litert_op.Quantized(shape=SHAPE, dtype=dtype, scale=out_scale, zero_point=zero_point)
    options = schema.MulOptionsT() if operator == "MUL" else schema.SubOptionsT()
    want = litert_op.run(operator, options, inputs, output)
    result = {"zero_point": zero_point, "qmin": low, "qmax": high, "dtype": dtype}
    if operator == "MUL":
        multiplier = float(requantize_multiplier(a_scale, b_scale, out_scale))
        got = mul(a, b, a_zero_point=a_zero, b_zero_point=b_zero, multiplier=multiplier, **result)
    else:
        common = {"a_scale": a_scale, "b_scale": b_scale, "out_scale": out_scale}
        got = add(a, b, subtract=True, a_zero_point=a_zero, b_zero_point=b_zero, **common, **result)
    assert np.array_equal(got, want)


def test_wrong_range() -> None:
    a = np.zeros(1, np.uint8)
    with pytest.raises(ValueError, match=r"\[0; 255\] must lie in the range \[-128; 127\] of int8"):
        mul(a, a, multiplier=1.0, qmin=0, qmax=255, dtype="int8")
