"""The QDQ form itself: what TVM's own pipeline computes from it follows the float model, and it prints as documented."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import octavo
from handmade_profile import ranged
from integer_results import INTEGER_RESULTS
from nets import model_of, residual_net
from octavo.ir.graph.dataflow import BodyWriter
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.quantizer.quantize_graph import quantize_graph
from octavo.quantizer.recipe import Recipe
from tvm_alone import tvm_alone


def test_before_and_after() -> None:
    def body(writer: BodyWriter, x: relax.Var, w: relax.Var, b: relax.Var) -> relax.Expr:
        product = writer.emit("product", relax.op.matmul(x, w))
        return writer.emit("y", relax.op.nn.relu(writer.emit("sum", relax.op.add(product, b))), is_output=True)

    params = {"w": np.array([[1.27, 0.5], [-0.02, -2.54]], np.float32), "b": np.array([0.0001, -0.0004], np.float32)}
    model = model_of({"x": ((1, 2), "float32")}, params, body, ("y",))
    quantized = quantize_graph(model, ranged(model, {"x": (-1.28, 1.27), "y": (0.0, 5.1)}), target=INTEGER_RESULTS)

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((1, 2), "float32"), w_q: R.Tensor((2, 2), "int8"), b_q: R.Tensor((2,), "int32")) -> R.Tensor(
            (1, 2), "float32"
        ):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                w = R.dequantize(w_q, R.const([0.01, 0.02], "float32"), R.const([0, 0], "int32"), axis=1)
                x_q = R.quantize(x, R.const(0.01, "float32"), R.const(128, "int32"), axis=-1, out_dtype="uint8")
                x_dq = R.dequantize(x_q, R.const(0.01, "float32"), R.const(128, "int32"), axis=-1)
                product = R.matmul(x_dq, w)
                b = R.dequantize(b_q, R.const([0.0001, 0.0002], "float32"), R.const([0, 0], "int32"), axis=0)
                total = R.add(product, b)
                y = R.nn.relu(total)
                y_q = R.quantize(y, R.const(0.02, "float32"), R.const(0, "int32"), axis=-1, out_dtype="uint8")
                y_dq = R.dequantize(y_q, R.const(0.02, "float32"), R.const(0, "int32"), axis=-1)
                R.output(y_dq)
            return y_dq

    tvm.ir.assert_structural_equal(quantized.module["main"], Expected["main"].with_attr("global_symbol", "main"))
    assert {str(name): value.tolist() for name, value in quantized.params.items()} == {
        "w_q": [[127, 25], [-2, -127]],
        "b_q": [1, -2],
    }


@pytest.fixture(scope="module")
def profiled() -> tuple[octavo.Model, octavo.Profile, np.ndarray, np.ndarray]:
    """A network, its profile, the samples of that, and what it computes of them."""
    model = residual_net()
    samples = np.random.default_rng(3).standard_normal((40, 1, 3, 8, 8)).astype(np.float32)
    real = tvm_alone(model.bound())
    return model, octavo.profile(model, samples[:, 0]), samples, np.concatenate([real(x)[0] for x in samples])


@pytest.mark.parametrize(
    ("recipe", "decibels"),
    [
        (Recipe(), 35),
        (Recipe(activation_dtype="int8"), 35),
        (Recipe(weight_granularity="per_tensor"), 33),
        (Recipe(range_estimator="percentile", percentile=99.9), 30),
    ],
)
def test_the_simulation_follows_the_float_model(
    recipe: Recipe, decibels: float, profiled: tuple[octavo.Model, octavo.Profile, np.ndarray, np.ndarray]
) -> None:
    model, profile, samples, expected = profiled
    simulated = tvm_alone(quantize_graph(model, profile, recipe=recipe).bound())
    assert sqnr_db(expected, np.concatenate([simulated(x)[0] for x in samples])) > decibels


def test_uint8_and_int8_activations_are_one_simulation() -> None:
    model = residual_net()
    profile = ranged(model, {"x": (-3.0, 3.5), "r1": (0.0, 5.0), "y": (-3.0, 4.0)})
    x = np.random.default_rng(5).standard_normal((1, 3, 8, 8)).astype(np.float32)
    unsigned, signed = (
        tvm_alone(quantize_graph(model, profile, recipe=Recipe(activation_dtype=dtype)).bound())(x)[0]
        for dtype in ("uint8", "int8")  # type: ignore[arg-type]
    )
    np.testing.assert_array_equal(unsigned, signed)
