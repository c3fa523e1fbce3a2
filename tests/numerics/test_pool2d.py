"""The pooling oracles against exact arithmetic, LiteRT and plain NumPy."""

from fractions import Fraction

import litert_op
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from octavo.numerics import INTEGER_RANGE, Window, avg_pool2d, global_avg_pool2d, max_pool2d

RING = Window(padding=(1, 1, 1, 1))


def bytes_of(rng: np.random.Generator, *shape: int, dtype: str = "uint8") -> np.ndarray:
    low, high = INTEGER_RANGE[dtype]
    return rng.integers(low, high + 1, shape).astype(dtype)


def test_average_of_an_exact_multiplier_is_exact(rng: np.random.Generator) -> None:
    # Counts 4, 6 and 9: with 36 / 16 every quotient is a float32, and every product too.
    x = bytes_of(rng, 2, 5, 6, 3)
    got = avg_pool2d(x, kernel=(3, 3), window=RING, out_shape=(5, 6), multiplier=2.25, input_zero_point=100, zero_point=90)
    for n, i, j, c in np.ndindex(got.shape):
        window = x[n, max(i - 1, 0) : i + 2, max(j - 1, 0) : j + 2, c].astype(int) - 100
        exact = Fraction(int(window.sum()), window.size) * Fraction(9, 4)
        assert got[n, i, j, c] == min(max(round(exact) + 90, 0), 255)


def test_padding_that_counts_is_real_zero(rng: np.random.Generator) -> None:
    x = bytes_of(rng, 1, 4, 4, 5)
    padded = np.pad(x, ((0, 0), (2, 1), (1, 2), (0, 0)), constant_values=17)
    common = {"kernel": (3, 2), "out_shape": (5, 6), "multiplier": 0.7, "input_zero_point": 17, "zero_point": 3}
    got = avg_pool2d(x, window=Window(padding=(2, 1, 1, 2)), count_include_pad=True, **common)
    assert np.array_equal(got, avg_pool2d(padded, **common))


def test_dilation_and_stride_skip_pixels(rng: np.random.Generator) -> None:
    x = bytes_of(rng, 1, 9, 9, 2)
    common = {"multiplier": 1.0, "input_zero_point": 0, "zero_point": 0}
    thirds = Window(dilation=(3, 3), strides=(3, 3))
    got = avg_pool2d(x, kernel=(2, 2), window=thirds, out_shape=(2, 2), **common)
    assert np.array_equal(got, avg_pool2d(x[:, ::3, ::3], kernel=(2, 2), out_shape=(2, 2), **common))
    got = max_pool2d(x, kernel=(2, 2), window=thirds, out_shape=(2, 2))
    assert np.array_equal(got, max_pool2d(x[:, ::3, ::3], kernel=(2, 2), out_shape=(2, 2)))


def test_maximum(rng: np.random.Generator) -> None:
    x = bytes_of(rng, 2, 6, 8, 3)
    got = max_pool2d(x, kernel=(2, 2), window=Window(strides=(2, 2)), out_shape=(3, 4), qmin=20, qmax=230)
    assert np.array_equal(got, np.clip(x.reshape(2, 3, 2, 4, 2, 3).max(axis=(2, 4)), 20, 230))


def test_padding_never_is_the_maximum() -> None:
    x = np.full((1, 2, 2, 1), -100, np.int8)
    got = max_pool2d(x, kernel=(3, 3), window=RING, out_shape=(2, 2))
    assert got.tolist() == x.tolist()


def test_window_without_a_pixel(rng: np.random.Generator) -> None:
    x = bytes_of(rng, 1, 1, 1, 4)
    window = {"kernel": (1, 1), "window": Window(padding=(1, 1, 0, 0)), "out_shape": (2, 2)}
    average = avg_pool2d(x, **window, multiplier=1.0, input_zero_point=9, zero_point=77)
    assert np.unique(average[:, 0]).tolist() == [77]
    assert np.unique(max_pool2d(x, **window, qmin=5)[:, 0]).tolist() == [5]


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("size", [(7, 7), (3, 5), (8, 8)])
def test_mean_equals_litert(rng: np.random.Generator, dtype: str, size: tuple[int, int]) -> None:
    low, high = INTEGER_RANGE[dtype]
    options = schema.ReducerOptionsT()
    options.keepDims = True
    for in_scale, out_scale in ((0.023, 0.011), (0.05, 0.05), (0.0123, 0.031)):
        # LiteRT rounds half to even after it has added the zero point: the same where that is even.
        zeros = [int(rng.integers(low + 60, high - 60)), 2 * int(rng.integers(low + 60, high - 60) // 2)]
        x = bytes_of(rng, 1, *size, 640, dtype=dtype)
        tensor = litert_op.Quantized(shape=x.shape, dtype=dtype, scale=in_scale, zero_point=zeros[0], values=x)
        axes = litert_op.Quantized(shape=(2,), dtype="int32", values=np.int32([1, 2]), constant=True)
        output = litert_op.Quantized(shape=(1, 1, 1, 640), dtype=dtype, scale=out_scale, zero_point=zeros[1])
        got = global_avg_pool2d(
            x,
            multiplier=float(np.float32(in_scale) / np.float32(out_scale)),
            input_zero_point=zeros[0],
            zero_point=zeros[1],
            qmin=low,
            qmax=high,
            dtype=dtype,
        )
        assert np.array_equal(got, litert_op.run("MEAN", options, [tensor, axes], output))
