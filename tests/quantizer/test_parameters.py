"""Parameters of weights, biases and activations, up to the cases where an int32 accumulator would not hold them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from handmade_profile import ranged
from nets import model_of
from octavo.ir.graph import Model
from octavo.ir.graph.dataflow import BodyWriter
from octavo.ir.identity import TensorId
from octavo.numerics import PerAxis, dequantize, max_accumulator
from octavo.quantizer.plan.plan import QuantizationPlan
from octavo.quantizer.quantize_graph import quantize_graph
from octavo.quantizer.recipe import Recipe
from tvm_alone import tvm_alone

W, B = TensorId("w"), TensorId("b")


def dense(weight: np.ndarray, bias: np.ndarray | None) -> Model:
    """y = x @ w + b."""

    def body(writer: BodyWriter, x: relax.Var, w: relax.Var, b: relax.Var | None = None) -> relax.Expr:
        product = relax.op.matmul(x, w)
        if b is None:
            return writer.emit("y", product, is_output=True)
        return writer.emit("y", relax.op.add(writer.emit("_y", product), b), is_output=True)

    params = {"w": weight} if bias is None else {"w": weight, "b": bias}
    return model_of({"x": ((1, weight.shape[0]), "float32")}, params, body, ("y",))


def plan_of(model: Model, ranges: dict[str, tuple[float, float]] | None = None, **recipe: Any) -> QuantizationPlan:
    return quantize_graph(model, ranged(model, ranges), recipe=Recipe(**recipe)).plan


@pytest.mark.parametrize("granularity", ["per_axis", "per_tensor"])
def test_scales_of_weights_and_biases(rng: np.random.Generator, granularity: str) -> None:
    weight, bias = rng.standard_normal((6, 4)).astype(np.float32), rng.standard_normal(4).astype(np.float32)
    plan = plan_of(dense(weight, bias), {"x": (0.0, 2.55)}, weight_granularity=granularity)
    largest = np.abs(weight).max(axis=0 if granularity == "per_axis" else None)
    np.testing.assert_array_equal(plan.weights[W].scale, (largest.astype(np.float64) / 127).astype(np.float32))
    np.testing.assert_array_equal(plan.biases[B].scale, np.float32(0.01) * plan.weights[W].scale)
    assert plan.biases[B].granularity == (PerAxis(0) if granularity == "per_axis" else plan.weights[W].granularity)
    half_step = np.abs(dequantize(plan.weight_values[B], plan.biases[B]) - bias)
    assert (half_step <= plan.biases[B].scale * 0.501 + np.abs(bias) * 2.0**-23).all()
    assert plan.adjustments == ()


def test_activations_take_the_recipe_s_dtype_and_estimator() -> None:
    model = dense(np.eye(3, dtype=np.float32), None)
    assert plan_of(model, {"x": (0.0, 2.55)}).activations[TensorId("x")].zero_point == 0
    signed = plan_of(model, {"x": (0.0, 2.55)}, activation_dtype="int8").activations[TensorId("x")]
    assert (signed.dtype, signed.zero_point) == ("int8", -128)
    # Two values, the range's ends: cutting a quarter on each side moves the ends within their bins, 1/64 wide.
    percentile = plan_of(model, {"x": (0.0, 2.55)}, range_estimator="percentile", percentile=50.0)
    assert 0.01 * (1 - 1 / 64) < percentile.activations[TensorId("x")].scale < 0.01


@pytest.mark.parametrize("granularity", ["per_axis", "per_tensor"])
def test_a_bias_too_large_for_the_accumulator_widens_the_scale_and_says_so(granularity: str) -> None:
    weight = np.full((6, 3), 1e-3, np.float32)
    weight[:, 1] = 1e-7
    bias = np.array([1.0, 1e5, -2.0], np.float32)
    plan = plan_of(dense(weight, bias), weight_granularity=granularity)
    real = dequantize(plan.weight_values[B], plan.biases[B])
    assert (np.abs(real - bias) <= plan.biases[B].scale * 0.501 + np.abs(bias) * 2.0**-23).all()
    bound = max_accumulator(plan.weight_values[W], 0, plan.weight_values[B].astype(np.int32), 128, 0, 255)
    assert bound.max() <= 2**31 - 1
    if granularity == "per_axis":
        assert [(item.tensor, item.message.split(" so ")[0]) for item in plan.adjustments] == [("w", "1 scales widened")]
        np.testing.assert_allclose(real, bias, rtol=1e-6)


def test_a_dead_channel_keeps_its_bias() -> None:
    weight = np.array([[1.0, 0.0], [0.5, 0.0]], np.float32)
    bias = np.array([0.25, 0.75], np.float32)
    plan = plan_of(dense(weight, bias))
    np.testing.assert_allclose(dequantize(plan.weight_values[B], plan.biases[B]), bias, atol=float(plan.biases[B].scale[1]))
    assert plan.biases[B].scale[1] == plan.biases[B].scale[0]


@pytest.mark.parametrize(
    ("weight", "bias", "reason"),
    [
        (
            np.full((70_000, 2), 1.0, np.float32),
            None,
            f"the int32 accumulator of output channel 0 can reach {70_000 * 127 * 255}, above {2**31 - 1}",
        ),
        (np.array([[np.nan, 1.0]], np.float32), None, "its weight w holds NaN or infinity"),
        (np.ones((2, 2), np.float32), np.array([np.inf, 0], np.float32), "its bias b holds NaN or infinity"),
    ],
)
def test_numbers_that_cannot_be_integers_stay_float(weight: np.ndarray, bias: np.ndarray | None, reason: str) -> None:
    assert plan_of(dense(weight, bias)).float_ops[0].reason == reason


def test_shared_constants_are_quantized_for_each_reader(rng: np.random.Generator) -> None:
    weight, bias = rng.standard_normal((4, 4)).astype(np.float32), rng.standard_normal(4).astype(np.float32)

    def body(writer: BodyWriter, x: relax.Var, w: relax.Var, b: relax.Var) -> relax.Expr:
        first = writer.emit("h", relax.op.add(writer.emit("_h", relax.op.matmul(x, w)), b))
        return writer.emit("y", relax.op.add(writer.emit("_y", relax.op.matmul(first, w)), b), is_output=True)

    model = model_of({"x": ((1, 4), "float32")}, {"w": weight, "b": bias}, body, ("y",))
    quantized = quantize_graph(model, ranged(model, {"x": (-2.0, 2.0), "h": (-20.0, 20.0), "y": (-200.0, 200.0)}))
    plan = quantized.plan
    assert list(plan.weights) == ["w"]
    scales = [float(plan.activations[TensorId(name)].scale) for name in ("x", "h")]
    assert [layer.bias for layer in plan.layers] == ["b_2", "b_3"]
    for layer, scale in zip(plan.layers, scales, strict=True):
        assert layer.bias is not None
        np.testing.assert_array_equal(plan.biases[layer.bias].scale, np.float32(scale) * plan.weights[W].scale)
    assert sorted(map(str, quantized.params)) == ["b_2_q", "b_3_q", "w_q"]
    x = rng.standard_normal((1, 4)).astype(np.float32)
    expected = (x @ weight + bias) @ weight + bias
    np.testing.assert_allclose(tvm_alone(quantized.bound())(x)[0], expected, atol=400 / 255 + 1)


def test_a_weight_with_channels_along_two_axes_belongs_to_its_first_reader(rng: np.random.Generator) -> None:
    def body(writer: BodyWriter, x: relax.Var, w: relax.Var) -> relax.Expr:
        h = writer.emit("h", relax.op.matmul(x, w))
        return writer.emit("y", relax.op.matmul(h, writer.emit("_t", relax.op.permute_dims(w, (1, 0)))), is_output=True)

    weight = rng.standard_normal((4, 5)).astype(np.float32)
    plan = plan_of(model_of({"x": ((1, 4), "float32")}, {"w": weight}, body, ("y",)))
    assert [str(layer.output) for layer in plan.layers] == ["h"]
    assert (
        plan.float_ops[0].reason
        == "its weight w is shared with a layer that has its channels along another axis, or other blocks"
    )
    assert [
        str(layer.output)
        for layer in plan_of(
            model_of({"x": ((1, 4), "float32")}, {"w": weight}, body, ("y",)), weight_granularity="per_tensor"
        ).layers
    ] == ["h", "y"]


@pytest.mark.parametrize(
    ("layout", "kernel_layout", "groups", "axis"),
    [("NCHW", "OIHW", 1, 0), ("NHWC", "HWIO", 1, 3), ("NHWC", "OHWI", 1, 0), ("NHWC", "HWOI", 6, 2), ("NCHW", "OIHW", 6, 0)],
)
def test_the_channel_axis_follows_the_layout(
    rng: np.random.Generator, layout: str, kernel_layout: str, groups: int, axis: int
) -> None:
    sizes = {"O": 6, "I": 6 // groups, "H": 3, "W": 2}
    weight = rng.standard_normal([sizes[name] for name in kernel_layout]).astype(np.float32)
    shape = tuple({"N": 1, "C": 6, "H": 5, "W": 5}[name] for name in layout)
    options: dict[str, Any] = {"data_layout": layout, "kernel_layout": kernel_layout, "groups": groups}

    def body(writer: BodyWriter, x: relax.Var, w: relax.Var) -> relax.Expr:
        return writer.emit("y", relax.op.nn.conv2d(x, w, **options), is_output=True)

    plan = plan_of(model_of({"x": (shape, "float32")}, {"w": weight}, body, ("y",)))
    assert plan.weights[W].granularity == PerAxis(axis)
    assert plan.weights[W].scale.shape == (6,)


def test_constants_are_read_through_every_op_that_moves_each_of_their_elements_once(rng: np.random.Generator) -> None:
    weight, bias = rng.standard_normal((6, 4)).astype(np.float32), rng.standard_normal((1, 4)).astype(np.float32)

    def body(writer: BodyWriter, x: relax.Var, w: relax.Var, b: relax.Var) -> relax.Expr:
        reversed_rows = writer.emit("w_flipped", relax.op.flip(w, 0))
        flat = writer.emit("b_flat", relax.op.flatten(b))
        return writer.emit("y", relax.op.add(writer.emit("_y", relax.op.matmul(x, reversed_rows)), flat), is_output=True)

    model = model_of({"x": ((1, 6), "float32")}, {"w": weight, "b": bias}, body, ("y",))
    quantized = quantize_graph(model, ranged(model, {"x": (-1.0, 1.0), "y": (-8.0, 8.0)}))
    [layer] = [layer for layer in quantized.plan.layers if layer.op == "matmul"]
    assert (layer.weight, layer.bias, layer.fused) == (W, B, ("bias",))
    assert quantized.plan.weights[W].scale.shape == (4,), "flipped along its rows, a weight keeps its channels"
    x = rng.uniform(-1, 1, (1, 6)).astype(np.float32)
    [result] = tvm_alone(quantized.module)(x, *quantized.params.values())
    np.testing.assert_allclose(result, x @ weight[::-1] + bias, atol=0.15)
