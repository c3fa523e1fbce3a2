"""The quantized addition against exact arithmetic, LiteRT (bit for bit) and ONNX Runtime (within a step)."""

from fractions import Fraction

import litert_op
import numpy as np
import onnx
import pytest
from ai_edge_litert import schema_py_generated as schema
from hypothesis import given
from hypothesis import strategies as st

from octavo.numerics import INTEGER_RANGE, add, add_parameters
from reference_sessions import reference_session

positive = st.floats(min_value=2**-149, max_value=float(np.finfo(np.float32).max), width=32)
byte = st.integers(0, 255)
A, B = (grid.astype(np.uint8) for grid in np.meshgrid(np.arange(256), np.arange(256)))
"""Every pair of uint8 values."""


@given(a_scale=positive, b_scale=positive, out_scale=positive, a_zero=byte, b_zero=byte)
def test_int32_never_overflows(a_scale: float, b_scale: float, out_scale: float, a_zero: int, b_zero: int) -> None:
    p = add_parameters(a_scale, a_zero, b_scale, b_zero, out_scale)
    assert 1 <= p.shift <= 30
    assert min(p.a_multiplier, p.b_multiplier) >= 0
    assert max(p.a_multiplier, p.b_multiplier) <= 2**21
    limit = 2**31
    # Any order of the additions: the positive terms alone, and the negative ones alone, stay within int32.
    assert 255 * (p.a_multiplier + p.b_multiplier) + (1 << (p.shift - 1)) < limit
    assert abs(p.bias) < limit
    assert abs(p.bias) + 255 * max(p.a_multiplier, p.b_multiplier) < limit


@given(
    a_ratio=st.floats(min_value=2**-12, max_value=2**10, width=32),
    b_ratio=st.floats(min_value=2**-12, max_value=2**10, width=32),
    zeros=st.tuples(byte, byte, byte),
    values=st.lists(st.tuples(byte, byte), min_size=1, max_size=50),
)
def test_close_to_the_exact_sum(
    a_ratio: float, b_ratio: float, zeros: tuple[int, int, int], values: list[tuple[int, int]]
) -> None:
    a_zero, b_zero, zero_point = zeros
    a, b = np.asarray(values, np.uint8).T
    got = add(
        a, b, a_scale=a_ratio, a_zero_point=a_zero, b_scale=b_ratio, b_zero_point=b_zero, out_scale=1.0, zero_point=zero_point
    )
    shift = add_parameters(a_ratio, a_zero, b_ratio, b_zero, 1.0).shift
    # Half a step of the result, and half a unit of each multiplier for each of the up to 255 steps of its input.
    bound = Fraction(1, 2) + 2 * 255 * Fraction(1, 2) / 2**shift
    for result, x, y in zip(got.tolist(), a.tolist(), b.tolist(), strict=True):
        exact = Fraction(a_ratio) * (x - a_zero) + Fraction(b_ratio) * (y - b_zero) + zero_point
        assert abs(result - min(max(exact, 0), 255)) <= bound


def test_ratios_too_small_to_matter_give_the_zero_point() -> None:
    got = add(A, B, a_scale=2**-10 * 0.999, a_zero_point=0, b_scale=1e-9, b_zero_point=255, out_scale=1.0, zero_point=42)
    assert np.unique(got).tolist() == [42]


@pytest.mark.parametrize("ratio", [2.0**20, 1e12, 3e38])
def test_ratios_so_large_that_all_saturates_but_what_cancels(ratio: float) -> None:
    got = add(A, B, a_scale=ratio, a_zero_point=128, b_scale=ratio, b_zero_point=128, out_scale=1.0, zero_point=42)
    total = A.astype(int) + B - 256
    assert np.array_equal(got, np.where(total == 0, 42, np.where(total > 0, 255, 0)))


def test_infinite_ratio_is_the_largest() -> None:
    got = add(A, B, a_scale=3e38, a_zero_point=0, b_scale=1.0, b_zero_point=0, out_scale=1e-38, zero_point=0)
    assert np.array_equal(got, np.where((A > 0) | (B > 0), 255, 0))


def test_shift_rounds_half_up() -> None:
    got = add(A, B, a_scale=0.5, a_zero_point=128, b_scale=0.5, b_zero_point=128, out_scale=1.0, zero_point=128)
    assert np.array_equal(got, np.floor((A.astype(int) + B - 256 + 1) / 2) + 128)


def test_wrong_range() -> None:
    with pytest.raises(ValueError, match=r"\[0; 255\] must lie in the range \[-128; 127\] of int8"):
        add(A, B, a_scale=1, a_zero_point=0, b_scale=1, b_zero_point=0, out_scale=1, zero_point=0, qmin=0, qmax=255, dtype="int8")


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("seed", range(12))
def test_equals_litert(dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    low, high = INTEGER_RANGE[dtype]
    # Ratios within [2**-10; 2**8), which XNNPACK takes.
    out_scale, *in_scales = (float(np.float32(scale)) for scale in np.exp(rng.uniform(-2.7, 2.7, 3)))
    zeros = [int(zero) for zero in rng.integers(low, high + 1, 3)]
    inputs = [
        litert_op.Quantized(
            shape=(1, 256, 256, 1),
            dtype=dtype,
            scale=scale,
            zero_point=zero,
            values=(grid.astype(int) + low).astype(dtype).reshape(1, 256, 256, 1),
        )
        for grid, scale, zero in zip((A, B), in_scales, zeros, strict=False)
    ]
    output = litert_op.Quantized(shape=(1, 256, 256, 1), dtype=dtype, scale=out_scale, zero_point=zeros[2])
    got = add(
        inputs[0].values,
        inputs[1].values,
        a_scale=in_scales[0],
        a_zero_point=zeros[0],
        b_scale=in_scales[1],
        b_zero_point=zeros[1],
        out_scale=out_scale,
        zero_point=zeros[2],
        qmin=low,
        qmax=high,
        dtype=dtype,
    )
    assert np.array_equal(got, litert_op.run("ADD", schema.AddOptionsT(), inputs, output))


def test_within_a_step_of_onnxruntime() -> None:
    common = {"a_scale": 0.021, "a_zero_point": 120, "b_scale": 0.034, "b_zero_point": 3, "out_scale": 0.05}
    names = ["a", "a_scale", "a_zero_point", "b", "b_scale", "b_zero_point", "out_scale", "zero_point"]
    values = {**common, "zero_point": 99}
    initializers = [
        onnx.numpy_helper.from_array(np.asarray(value, np.float32 if name.endswith("scale") else np.uint8), name)
        for name, value in values.items()
    ]
    element = onnx.TensorProto.UINT8
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("QLinearAdd", names, ["y"], domain="com.microsoft")],
        "add",
        [onnx.helper.make_tensor_value_info(name, element, A.shape) for name in ("a", "b")],
        [onnx.helper.make_tensor_value_info("y", element, A.shape)],
        initializers,
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = reference_session(model)
    (expected,) = session.run(None, {"a": A, "b": B})
    got = add(A, B, **common, zero_point=99)
    assert np.abs(got.astype(int) - expected).max() <= 1
    assert (got != expected).mean() < 0.01
