"""Sums, means and extremes over any axes against LiteRT."""

import itertools

import litert_op
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from octavo import numerics
from octavo.numerics import INTEGER_RANGE

SHAPE = (2, 5, 7, 6)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("operator", ["MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN"])
def test_equals_litert(operator: str, dtype: str) -> None:
    different = total = 0
    for seed, axes in enumerate(axes for count in (1, 2, 3, 4) for axes in itertools.combinations(range(4), count)):
        rng = np.random.default_rng(seed)
        low, high = INTEGER_RANGE[dtype]
        x = rng.integers(low, high, SHAPE, endpoint=True).astype(dtype)
        zeros = [int(zero) for zero in rng.integers(low, high, 2, endpoint=True)]
        scales = [float(np.float32(2.0 ** rng.uniform(-7, -5))) for _ in range(2)]
        count = int(np.prod([SHAPE[axis] for axis in axes]))
        if operator.startswith("REDUCE"):
            zeros[1], scales[1] = zeros[0], scales[0]
            got = numerics.reduce_extreme(x, axes, largest=operator == "REDUCE_MAX", qmin=low, qmax=high)
        else:
            scales[1] = float(np.float32(scales[1] * (np.sqrt(count) if operator == "SUM" else 1)))
            ratio = np.float32(scales[0]) / np.float32(scales[1])
            about = {"multiplier": float(ratio / np.float32(count) if operator == "MEAN" else ratio), "qmin": low, "qmax": high}
            about |= {"input_zero_point": zeros[0], "zero_point": zeros[1], "dtype": dtype}
            got = numerics.reduce_sum(x, axes, **about, stored_even=operator == "MEAN")
        kept = tuple(1 if axis in axes else size for axis, size in enumerate(SHAPE))
        constant = litert_op.Quantized(shape=(len(axes),), dtype="int32", values=np.int32(axes), constant=True)
        options = schema.ReducerOptionsT()
        options.keepDims = True
        inputs = [litert_op.Quantized(shape=SHAPE, dtype=dtype, scale=scales[0], zero_point=zeros[0], values=x), constant]
        output = litert_op.Quantized(shape=kept, dtype=dtype, scale=scales[1], zero_point=zeros[1])
        want = litert_op.run(operator, options, inputs, output)
        distance = np.abs(want.astype(int) - got.reshape(kept).astype(int))
        assert distance.max() <= 1
        different, total = different + int((distance > 0).sum()), total + distance.size
    assert different <= total / 1000, f"{different} of {total}"
