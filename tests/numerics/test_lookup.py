"""Tables against LiteRT, which has tables too (logistic, tanh, exp, log), and the edges of their domain."""

from collections.abc import Callable

import litert_op
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from octavo.numerics import ELEMENTWISE, PerTensor, QuantParams, lookup, lookup_table


def params(dtype: str, scale: float, zero_point: int) -> QuantParams:
    return QuantParams(dtype=dtype, scale=np.float32(scale), zero_point=np.int32(zero_point), granularity=PerTensor())


def every(dtype: str) -> np.ndarray:
    low = -128 if dtype == "int8" else 0
    return np.arange(low, low + 256).astype(dtype).reshape(1, 1, 1, 256)


LITERT = [
    ("LOGISTIC", "sigmoid", schema.AddOptionsT, "int8", (1 / 256, -128)),
    ("LOGISTIC", "sigmoid", schema.AddOptionsT, "uint8", (1 / 256, 0)),
    ("TANH", "tanh", schema.AddOptionsT, "int8", (1 / 128, 0)),
    ("TANH", "tanh", schema.AddOptionsT, "uint8", (1 / 128, 128)),
    ("EXP", "exp", schema.ExpOptionsT, "int8", None),
]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("operator", "name", "options", "dtype", "fixed"), LITERT)
def test_equals_litert(
    operator: str, name: str, options: Callable[[], object], dtype: str, fixed: tuple[float, int] | None, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    low = -128 if dtype == "int8" else 0
    x_params, y_params = ((float(np.exp(rng.uniform(-5, -1.5))), int(rng.integers(low, low + 256))) for _ in range(2))
    x_params, y_params = ((float(np.float32(scale)), zero_point) for scale, zero_point in (x_params, fixed or y_params))
    x = every(dtype)
    want = litert_op.run(
        operator,
        options(),
        [litert_op.Quantized(shape=x.shape, dtype=dtype, scale=x_params[0], zero_point=x_params[1], values=x)],
        litert_op.Quantized(shape=x.shape, dtype=dtype, scale=y_params[0], zero_point=y_params[1]),
    )
    table = lookup_table(ELEMENTWISE[name], params(dtype, *x_params), params(dtype, *y_params))
    assert np.array_equal(lookup(x, table), want)


def test_no_result_is_the_least_integer() -> None:
    table = lookup_table(ELEMENTWISE["log"], params("int8", 0.1, 0), params("int8", 0.1, 3))
    assert (table[:128] == -128).all()  # the logarithm of a negative number is NaN
    assert table[128] == -128  # and of 0, minus infinity


def test_clamp() -> None:
    table = lookup_table(ELEMENTWISE["abs"], params("uint8", 1.0, 128), params("uint8", 1.0, 0), qmin=5, qmax=100)
    assert np.array_equal(table, np.clip(np.abs(np.arange(256) - 128), 5, 100))
