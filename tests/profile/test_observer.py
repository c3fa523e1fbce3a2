"""The observer inside the compiled graph against NumPy, exactly: every statistic is an integer or a value of the data."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tvm import relax

from nets import compiled
from octavo.numerics.histogram import Histogram
from octavo.profile.observer import decode, keys_to_floats, observer, statistics_size

SHAPES = [
    ((), None),
    ((1,), None),
    ((17,), None),
    ((3, 33), 1),
    ((1, 1, 1, 1), 1),
    ((2, 3, 5, 7), 1),
    ((1, 31, 4, 4), 1),
    ((2, 4, 5, 17), 3),
    ((1, 65, 1, 1), 3),
    ((2, 3, 4), 0),
]


def run_observer(data: np.ndarray, axis: int | None) -> np.ndarray:
    channels = 1 if axis is None else data.shape[axis]
    x = relax.Var("x", relax.TensorType(data.shape, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            function = builder.add_func(observer(data.shape, axis), "observe")
            vector = relax.TensorType((statistics_size(channels),), "int32")
            result = builder.emit_output(relax.call_tir(function, [x], out_ty=vector))
        builder.emit_func_output(result)
    return compiled(builder.get())([data])[0]


def awkward_values(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Values over the whole range of float32, zeros of both signs and denormals among them."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape) * np.exp2(rng.integers(-148, 126, shape))
    flat = np.asarray(values, np.float32).reshape(-1)
    special = np.array([0.0, -0.0, 1e-45, -1e-45, 1.0, -1.0], np.float32)
    for index in range(0, flat.size, 4):
        flat[index] = special[(index // 4 + seed) % special.size]
    return flat.reshape(shape)


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_equals_numpy(shape: tuple[int, ...], axis: int | None) -> None:
    for data in (awkward_values(shape, 1), np.asarray(np.random.default_rng(2).standard_normal(shape), np.float32)):
        got = decode(run_observer(data, axis), 1 if axis is None else shape[axis])
        others = tuple(index for index in range(data.ndim) if index != axis)
        assert got.zeros == int((data == 0).sum())
        assert got.non_finite == 0
        assert got.histogram == Histogram.of(data)
        np.testing.assert_array_equal(got.minimum, np.atleast_1d(data.min(axis=others)))
        np.testing.assert_array_equal(got.maximum, np.atleast_1d(data.max(axis=others)))
        assert not np.signbit(got.minimum[got.minimum == 0]).any()


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_counts_non_finite_values_and_keeps_the_rest(value: float, count: int) -> None:
    data = np.full((3, 40), 0.75, np.float32)
    data.reshape(-1)[np.arange(count) * 7] = value
    got = decode(run_observer(data, 1), 40)
    assert (got.non_finite, got.zeros, got.histogram.total) == (count, 0, data.size - count)


def test_keys_order_as_floats_do() -> None:
    values = awkward_values((4096,), 3)
    values = np.sort(values[values != 0])
    bits = values.view(np.int32)
    keys = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits).astype(np.int32)
    assert (keys[1:] >= keys[:-1]).all()
    np.testing.assert_array_equal(keys_to_floats(keys), values)
    assert not np.signbit(keys_to_floats(np.array([-1, 0], np.int32))).any(), "both zeros become 0.0"
