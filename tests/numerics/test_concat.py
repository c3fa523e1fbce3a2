"""The concatenation oracle against LiteRT and plain NumPy."""

import litert_op
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from octavo.numerics import concat


def test_same_parameters_only_copy(rng: np.random.Generator) -> None:
    a, b = (rng.integers(0, 256, (2, n, 3)).astype(np.uint8) for n in (4, 5))
    got = concat([a, b], axis=1, multipliers=[1.0, 1.0], input_zero_points=[7, 7], zero_point=7)
    assert np.array_equal(got, np.concatenate([a, b], axis=1))


def test_one_input_short() -> None:
    with pytest.raises(ValueError, match="zip"):
        concat([np.zeros(1, np.uint8)], multipliers=[1.0, 1.0], input_zero_points=[0], zero_point=0)


@pytest.mark.parametrize("scales", [(0.02, 0.03), (0.5, 0.25), (0.1, 0.3)])
def test_equals_litert(scales: tuple[float, float]) -> None:
    # Legacy uint8 models requantize inside CONCATENATION; int8 ones do so before.
    zeros, x = (130, 100), np.arange(256).astype(np.uint8).reshape(1, 1, 1, 256)
    inputs = [
        litert_op.Quantized(shape=x.shape, dtype="uint8", scale=scale, zero_point=zero, values=x)
        for scale, zero in zip(scales, zeros, strict=True)
    ]
    output = litert_op.Quantized(shape=(1, 1, 1, 512), dtype="uint8", scale=scales[1], zero_point=zeros[1])
    options = schema.ConcatenationOptionsT()
    options.axis = 3
    got = concat(
        [x, x],
        multipliers=[float(np.float32(scales[0]) / np.float32(scales[1])), 1.0],
        input_zero_points=zeros,
        zero_point=zeros[1],
    )
    assert np.array_equal(got, litert_op.run("CONCATENATION", options, inputs, output))
