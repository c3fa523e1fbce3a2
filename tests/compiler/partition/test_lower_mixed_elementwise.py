"""Float functions between integers: one kernel reads integers and floats, and writes either; its bits are those of its steps."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import relax

import octavo
from nets import model_of, residual_net
from octavo.ir.composites.attributes import read_composites
from octavo.ir.composites.elementwise import MixedElementwiseOp
from octavo.ir.graph.dataflow import BodyWriter
from octavo.numerics import QuantParams, dequantize, quantize
from octavo.target import CPU

PARAMS = {"uint8": (0.031, 113), "int8": (0.047, -9), "int16": (0.00021, 0), "uint16": (0.00017, 30000)}


def params_of(dtype: str) -> QuantParams:
    scale, zero_point = PARAMS[dtype]
    return QuantParams.per_tensor(dtype, scale, zero_point)


def rounded(writer: BodyWriter, name: str, value: Any, dtype: str) -> Any:
    """Return a value, quantized and dequantized."""
    scale, zero_point = (relax.const(each, kind) for each, kind in zip(PARAMS[dtype], ("float32", "int32"), strict=True))
    integers = writer.emit(f"{name}_q", relax.op.quantize(value, scale, zero_point, out_dtype=dtype))
    return writer.emit(f"{name}_dq", relax.op.dequantize(integers, scale, zero_point))


def mixed_net(first: str, second: str | None, result: str | None) -> octavo.Model:
    """relu(a + b): `a` quantized to `first`, `b` to `second` or float, the sum to `result` or float."""

    def body(writer: BodyWriter, a: Any, b: Any) -> Any:
        left, right = rounded(writer, "a", a, first), b if second is None else rounded(writer, "b", b, second)
        total = writer.emit("y", relax.op.nn.relu(writer.emit("_y", relax.op.add(left, right))), is_output=result is None)
        return total if result is None else writer.emit("z", rounded(writer, "y", total, result), is_output=True)

    return model_of({"a": ((2, 5, 7), "float32"), "b": ((2, 5, 7), "float32")}, {}, body, ("y" if result is None else "z",))


@pytest.mark.parametrize(
    ("first", "second", "result"),
    [
        ("uint8", None, "uint8"),
        ("int8", None, "int8"),
        ("uint8", None, None),
        ("int16", None, "uint8"),
        ("uint8", "int16", "int8"),
        ("uint16", None, "int16"),
    ],
)
def test_one_kernel_gives_the_bits_of_its_steps(first, second, result, rng):
    model = mixed_net(first, second, result)
    a, b = (rng.normal(size=(2, 5, 7)).astype(np.float32) for _ in range(2))
    real = dequantize(quantize(a, params_of(first)), params_of(first))
    other = b if second is None else dequantize(quantize(b, params_of(second)), params_of(second))
    expected = np.maximum(real + other, np.float32(0))
    if result is not None:
        expected = dequantize(quantize(expected, params_of(result)), params_of(result))
    kinds = [type(each.op) for each in read_composites(octavo.partition(model)).values()]
    assert kinds.count(MixedElementwiseOp) == 1
    [found] = octavo.compile(model)({"a": a, "b": b}).values()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("shape", "axis"), [((1, 5, 3, 7), 1), ((2, 3, 5, 40), 3), ((3, 300), 1)])
@pytest.mark.parametrize("second", [None, "int8"])  # the operand that is there first comes second
def test_a_parametric_relu_is_computed_of_the_sum_itself(shape, axis, second, rng):
    slopes = rng.uniform(-0.2, 0.9, shape[axis]).astype(np.float32)

    def body(writer: BodyWriter, a: Any, b: Any) -> Any:
        right = writer.emit("_b", relax.op.maximum(b, b)) if second is None else rounded(writer, "b", b, second)
        total = writer.emit("_y", relax.op.add(rounded(writer, "a", a, "uint8"), right))
        value = writer.emit("y", relax.op.nn.prelu(total, relax.const(slopes), axis))
        return writer.emit("z", rounded(writer, "y", value, "uint8"), is_output=True)

    model = model_of({"a": (shape, "float32"), "b": (shape, "float32")}, {}, body, ("z",))
    a, b = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
    real = dequantize(quantize(a, params_of("uint8")), params_of("uint8"))
    total = real + (b if second is None else dequantize(quantize(b, params_of(second)), params_of(second)))
    steep = slopes.reshape([-1 if place == axis else 1 for place in range(len(shape))])
    expected = quantize(np.where(total > 0, total, total * steep), params_of("uint8"))
    kinds = [type(each.op) for each in read_composites(octavo.partition(model)).values()]
    assert kinds.count(MixedElementwiseOp) == 1
    [found] = octavo.compile(model)({"a": a, "b": b}).values()
    np.testing.assert_array_equal(found, dequantize(expected, params_of("uint8")))


def test_a_residual_is_added_before_anything_is_rounded(rng, tmp_path):
    model = residual_net()
    samples = [rng.normal(size=(1, 3, 8, 8)).astype(np.float32) for _ in range(4)]
    quantized = octavo.quantize(model, octavo.profile(model, samples))
    assert "c3" not in quantized.plan.activations
    [layer] = [layer for layer in quantized.plan.layers if layer.op == "add"]
    assert layer.inputs == ("r1", "c3")
    module = octavo.partition(quantized)
    [info] = [each.quantize_info for each in read_composites(module).values() if isinstance(each.op, MixedElementwiseOp)]
    assert {info[role]["id"]: info[role]["dtype"] for role in ("input0", "input1", "output")} == {
        "c3": "float32",
        "r1": "uint8",
        "r3": "uint8",
    }
    quantized.plan.save(tmp_path / "plan.json")
    again = octavo.quantize(model, plan=tmp_path / "plan.json")
    assert again.fingerprint == quantized.fingerprint


def test_a_target_that_adds_integers_alone_rounds_both(rng):
    model = residual_net()
    target = replace(CPU, ops=tuple(replace(op, float_input=False) for op in CPU.ops))
    profile = octavo.profile(model, [rng.normal(size=(1, 3, 8, 8)).astype(np.float32)])
    assert "c3" in octavo.quantize(model, profile, target=target).plan.activations
