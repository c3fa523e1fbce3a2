"""The float32 sum: against exact fractions, and against ONNX Runtime over all pairs of integers."""

from fractions import Fraction

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info, np_dtype_to_tensor_dtype

from octavo.numerics import float_sum, float_sum_parameters, fused_multiply_add
from reference_sessions import reference_session

FLOATS = st.floats(width=32, min_value=-(2.0**40), max_value=2.0**40, allow_subnormal=False)


def nearest_float32(value: Fraction) -> np.float32:
    """Round an exact number to float32, half to even."""
    guess = np.float32(float(value))
    around = [guess, np.nextafter(guess, np.float32(np.inf)), np.nextafter(guess, np.float32(-np.inf))]
    return min(around, key=lambda f: (abs(Fraction(float(f)) - value), int(f.view(np.int32)) & 1))


@given(FLOATS, FLOATS, FLOATS)
def test_fused_multiply_add_rounds_once(x, y, z):
    got = fused_multiply_add(x, y, z)
    assert got == nearest_float32(Fraction(x) * Fraction(y) + Fraction(z))


def test_fused_multiply_add_at_a_tie_that_only_a_tiny_addend_breaks():
    x = np.float32(1 + 2.0**-12)
    y = np.float32(1 + 2.0**-12)  # the product is 1 + 2**-11 + 2**-24: a tie between two float32 numbers
    assert fused_multiply_add(x, y, 0.0) == np.float32(1 + 2.0**-11)
    assert fused_multiply_add(x, y, 2.0**-60) == np.nextafter(np.float32(1 + 2.0**-11), np.float32(2))


def runtime_sum(a: np.ndarray, b: np.ndarray, scales: list[np.float32], zeros: list[int]) -> np.ndarray:
    dtype, elem = a.dtype.type, np_dtype_to_tensor_dtype(a.dtype)
    constants = {}
    for name, scale, zero in zip("aby", scales, zeros, strict=True):
        constants[f"s{name}"], constants[f"z{name}"] = np.asarray(scale), np.asarray(dtype(zero))
    node = make_node("QLinearAdd", ["a", "sa", "za", "b", "sb", "zb", "sy", "zy"], ["y"], domain="com.microsoft")
    inputs = [make_tensor_value_info(name, elem, a.shape) for name in "ab"]
    initializers = [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = make_graph([node], "add", inputs, [make_tensor_value_info("y", elem, a.shape)], initializers)
    model = make_model(graph, opset_imports=[make_opsetid("", 17), make_opsetid("com.microsoft", 1)], ir_version=8)
    session = reference_session(model)
    return np.asarray(session.run(None, {"a": a, "b": b})[0])


@pytest.mark.parametrize("ties", [True, False], ids=["ties", "random"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_equals_onnx_runtime_for_all_pairs_of_integers(dtype, ties):
    rng = np.random.default_rng(5)
    limits = np.iinfo(dtype)
    values = np.arange(limits.min, limits.max + 1).astype(dtype)
    a, b = (grid.copy() for grid in np.meshgrid(values, values))
    for _ in range(5):
        scales = [np.float32(0.02 * 2.0**k) if ties else np.float32(rng.uniform(0.01, 0.1)) for k in rng.integers(-2, 2, 3)]
        zeros = [int(zero) for zero in rng.integers(limits.min, limits.max + 1, 3)]
        parameters = float_sum_parameters(float(scales[0]), zeros[0], float(scales[1]), zeros[1], float(scales[2]), zeros[2])
        got = float_sum(a, b, parameters, qmin=limits.min, qmax=limits.max, dtype=a.dtype.name)
        np.testing.assert_array_equal(got, runtime_sum(a, b, scales, zeros))


def test_a_tie_is_even_about_the_zero_point_or_as_stored():
    a, b = np.array([1, 3, 5], np.uint8), np.zeros(3, np.uint8)
    common = (1.0, 0, 1.0, 0, 2.0, 1)  # halves: 0.5, 1.5, 2.5, with zero point 1
    assert float_sum(a, b, float_sum_parameters(*common, stored=False)).tolist() == [1, 3, 3]
    assert float_sum(a, b, float_sum_parameters(*common, stored=True)).tolist() == [2, 2, 4]
    assert float_sum(b, a, float_sum_parameters(1.0, 0, 1.0, 0, 2.0, 10, subtract=True, stored=False)).tolist() == [10, 8, 8]
