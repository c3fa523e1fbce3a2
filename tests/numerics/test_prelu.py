"""Slopes in fixed point against LiteRT's PRELU, every integer with every slope."""

import litert_op
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from octavo.numerics import INTEGER_RANGE, PerTensor, QuantParams, pair_lookup, prelu_table


def params(rng: np.random.Generator, dtype: str, center: float) -> QuantParams:
    scale = np.float32(center * 2.0 ** rng.uniform(-1, 1))
    zero_point = np.int32(rng.integers(*INTEGER_RANGE[dtype]))
    return QuantParams(dtype=dtype, scale=scale, zero_point=zero_point, granularity=PerTensor())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_equals_litert(dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, slope, y = params(rng, dtype, 0.02), params(rng, dtype, 0.01), params(rng, dtype, 0.02)
    low, high = INTEGER_RANGE[dtype]
    every = np.arange(low, high + 1).astype(dtype)
    q, slopes = (
        np.ascontiguousarray(np.broadcast_to(every[:, None], (256, 256))).reshape(1, 256, 1, 256),
        every.reshape(1, 1, 256),
    )

    def tensor(of: QuantParams, values: np.ndarray, *, constant: bool = False) -> litert_op.Quantized:
        fields = {"scale": float(of.scale), "zero_point": int(of.zero_point), "constant": constant}
        return litert_op.Quantized(shape=values.shape, dtype=dtype, values=values, **fields)

    inputs = [tensor(x, q), tensor(slope, slopes, constant=True)]
    want = litert_op.run("PRELU", schema.AddOptionsT(), inputs, tensor(y, q), version=1)
    table = prelu_table(every, x, slope, y, qmin=low, qmax=high)
    np.testing.assert_array_equal(pair_lookup(q, np.arange(256).reshape(1, 1, 256), table), want)
