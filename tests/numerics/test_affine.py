"""quantize, dequantize, requantize and relabel against exact arithmetic and against ONNX Runtime."""

from fractions import Fraction

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.numerics import INTEGER_RANGE, PerAxis, QuantParams, dequantize, quantize, relabel, requantize_tensor
from reference_sessions import reference_session

EIGHT_BITS = ("uint8", "int8")
float32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
scales = st.floats(min_value=2**-100, max_value=2**100, width=32)


def half_even(value: Fraction) -> int:
    return round(value)  # Python rounds fractions half to even, exactly


@given(x=float32, scale=scales, dtype=st.sampled_from(sorted(INTEGER_RANGE)), data=st.data())
def test_quantize_is_the_rounded_quotient(x: float, scale: float, dtype: str, data: st.DataObject) -> None:
    low, high = INTEGER_RANGE[dtype]
    zero_point = data.draw(st.integers(low, high))
    with np.errstate(over="ignore", under="ignore"):
        quotient = np.float32(x) / np.float32(scale)
    expected = (low if x < 0 else high) if np.isinf(quotient) else half_even(Fraction(float(quotient))) + zero_point
    assert int(quantize(x, QuantParams.per_tensor(dtype, scale, zero_point))) == min(max(expected, low), high)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_ties_go_to_even(dtype: str) -> None:
    params = QuantParams.per_tensor(dtype, 2.0, 0)
    assert quantize([1.0, 3.0, 5.0, 7.0, 9.0], params).tolist() == [0, 2, 2, 4, 4]
    assert quantize([-1.0, -3.0, -5.0], QuantParams.per_tensor("int8", 2.0, 1)).tolist() == [1, -1, -1]


@given(dtype=st.sampled_from(sorted(INTEGER_RANGE)), scale=scales, data=st.data())
def test_round_trip(dtype: str, scale: float, data: st.DataObject) -> None:
    low, high = INTEGER_RANGE[dtype]
    params = QuantParams.per_tensor(dtype, scale, data.draw(st.integers(low, high)))
    # Differences up to 2**22 survive a float32; beyond (int32), dequantize itself rounds.
    near = (max(low, int(params.zero_point) - 2**22), min(high, int(params.zero_point) + 2**22))
    container = np.int8 if dtype == "int4" else np.uint8 if dtype == "uint4" else dtype
    q = np.asarray(data.draw(st.lists(st.integers(*near), min_size=1, max_size=20)), container)
    again = quantize(dequantize(q, params), params)
    assert again.dtype == q.dtype
    assert np.array_equal(again, q)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_values_without_a_number(dtype: str) -> None:
    low, high = INTEGER_RANGE[dtype]
    x = np.float32([np.inf, -np.inf, np.nan, 3e38, -3e38])
    assert quantize(x, QuantParams.per_tensor(dtype, 1e-40, low + 9)).tolist() == [high, low, low, high, low]


def test_clamp_to_qmin_and_qmax() -> None:
    params = QuantParams.per_tensor("int8", 1.0, 0, qmin=-127, qmax=100)
    assert quantize([-128.0, -127.0, 100.0, 101.0], params).tolist() == [-127, -127, 100, 100]


def test_int32_saturates_exactly() -> None:
    params = QuantParams.per_tensor("int32", 1.0, 0)
    assert quantize([2.0**31, 2.0**31 - 128, -(2.0**31), -3e9], params).tolist() == [2**31 - 1, 2**31 - 128, -(2**31), -(2**31)]


def test_axis_that_does_not_fit() -> None:
    params = QuantParams(dtype="int8", scale=np.ones(3), zero_point=np.zeros(3), granularity=PerAxis(1))
    with pytest.raises(ValueError, match=r"3 scales along axis 1 do not fit a tensor of shape \(3, 2\)"):
        quantize(np.zeros((3, 2)), params)
    with pytest.raises(ValueError, match="axis 1"):
        dequantize(np.zeros(3, np.int8), params)


def onnxruntime_qdq(x: np.ndarray, params: QuantParams) -> list[np.ndarray]:
    """Return what ONNX Runtime's QuantizeLinear and the DequantizeLinear after it give."""
    axis = {"axis": params.granularity.axis} if isinstance(params.granularity, PerAxis) else {}
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(params.dtype))
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], **axis),
            onnx.helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], **axis),
        ],
        "qdq",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)],
        [
            onnx.helper.make_tensor_value_info("q", element, x.shape),
            onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, x.shape),
        ],
        [
            onnx.numpy_helper.from_array(params.scale, "scale"),
            onnx.numpy_helper.from_array(params.zero_point.astype(params.dtype), "zero"),
        ],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    session = reference_session(model)
    return session.run(None, {"x": x})


@pytest.mark.parametrize("dtype", EIGHT_BITS)
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_equals_onnxruntime(dtype: str, axis: int | None) -> None:
    rng = np.random.default_rng(0)
    low, high = INTEGER_RANGE[dtype]
    channels = (5, 7, 64)[axis] if axis is not None else 1
    scale = rng.uniform(0.001, 0.1, channels).astype(np.float32)
    zero_point = rng.integers(low, high + 1, channels).astype(np.int32)
    if axis is None:
        params = QuantParams(dtype=dtype, scale=scale[0], zero_point=zero_point[0])
    else:
        params = QuantParams(dtype=dtype, scale=scale, zero_point=zero_point, granularity=PerAxis(axis))
    steps = rng.integers(-300, 300, (5, 7, 64)) / 2  # half of them ties, to the rounding of the product
    per_channel = scale if axis is None else np.moveaxis(scale[(...,) + (None,) * 2], 0, axis)
    x = (steps * per_channel).astype(np.float32)
    x[0, 0, :2] = np.inf, -np.inf
    q, y = onnxruntime_qdq(x, params)
    assert np.array_equal(quantize(x, params), q)
    assert np.array_equal(dequantize(q, params), y)


@given(
    q=st.integers(0, 255),
    in_zero=st.integers(0, 255),
    out_zero=st.integers(0, 255),
    multiplier=st.floats(min_value=2**-30, max_value=2**30, width=32),
)
def test_requantize_tensor_is_the_rounded_product(q: int, in_zero: int, out_zero: int, multiplier: float) -> None:
    got = requantize_tensor(
        np.asarray([q], np.uint8), input_zero_point=in_zero, multiplier=multiplier, zero_point=out_zero, qmin=1, qmax=250
    )
    product = Fraction(float(np.float32(q - in_zero) * np.float32(multiplier)))
    assert got.tolist() == [min(max(half_even(product) + out_zero, 1), 250)]


def test_relabel() -> None:
    q = np.arange(-128, 128).astype(np.int8)
    assert relabel(q).tolist() == list(range(256))
    assert np.array_equal(relabel(relabel(q)), q)
    wide = np.arange(65536).astype(np.uint16)
    assert relabel(wide).tolist() == list(range(-32768, 32768))
    assert np.array_equal(relabel(relabel(wide)), wide)
    with pytest.raises(ValueError, match="int32"):
        relabel(np.zeros(1, np.int32))
