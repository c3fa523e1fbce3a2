"""The error of quantization by layer: a fault planted in a tensor, or in a layer inside a fused block, is named as the origin."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import octavo
from integer_results import INTEGER_RESULTS
from nets import model_of, residual_net
from octavo.errors import QuantizationError
from octavo.evaluation.layer_errors import LayerError
from octavo.ir.graph import Model
from octavo.ir.graph.dataflow import BodyWriter
from octavo.ir.identity import TensorId
from octavo.numerics import dequantize, quantize
from octavo.quantizer.plan.plan import QuantizedModel


@pytest.fixture(scope="module")
def float_model() -> Model:
    return residual_net()


@pytest.fixture(scope="module")
def batches() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((1, 3, 8, 8)).astype(np.float32) for _ in range(8)]


@pytest.fixture(scope="module")
def quantized(float_model: Model, batches: list[np.ndarray]) -> QuantizedModel:
    return octavo.quantize(float_model, octavo.profile(float_model, batches))


@pytest.fixture(scope="module")
def good(float_model: Model, quantized: Model, batches: list[np.ndarray]) -> tuple[LayerError, ...]:
    return octavo.layer_errors(float_model, quantized, batches)


def scaled(model: Model, tensor: str, factor: float) -> Model:
    """Multiply the scale of one tensor where it is quantized and dequantized."""

    @relax.expr_functor.mutator
    class Scale(relax.PyExprMutator):
        def visit_call_(self, call: Any) -> Any:
            call = super().visit_call_(call)
            is_conversion = getattr(call.op, "name", "") in ("relax.quantize", "relax.dequantize")
            if not is_conversion or getattr(call.args[0], "name", "") not in (tensor, f"{tensor}_q"):
                return call
            scale = relax.const(np.float32(call.args[1].value.numpy() * factor))
            return relax.Call(call.op, [call.args[0], scale, *call.args[2:]], call.attrs)

    main = Scale().visit_expr(model.module["main"])
    return replace(model, module=tvm.IRModule({model.module.get_global_var("main"): main}))


def test_errors_of_a_good_quantization(good: tuple[LayerError, ...]) -> None:
    rows = good
    assert {row.id for row in rows} >= {"x", "r1", "r2", "c3", "r3"}
    assert not any(row.has_unfit_scale for row in rows)
    assert all(row.local_sqnr_db > 35 for row in rows)
    assert all(row.local_sqnr_db >= row.sqnr_db - 0.5 for row in rows)
    # conv + bias | relu and conv + bias | clip are kernels of two layers each; conv + bias stays float until add | relu.
    assert {row.id: row.block for row in rows if row.is_inner} == {"c1": "r1", "c2": "r2", "c3": "r3", "s": "r3"}
    assert shares(rows) == pytest.approx({row.block: 1.0 for row in rows})
    [entry] = [row for row in rows if row.id == "x"]
    assert entry.inherited == 0
    assert entry.source_name == "net/x:0"


@pytest.mark.parametrize("tensor", ["r1", "r2"])
def test_a_scale_four_times_too_large_is_the_origin(
    float_model: Model,
    quantized: Model,
    batches: list[np.ndarray],
    good: tuple[LayerError, ...],
    tensor: str,
) -> None:
    before = {row.id: row for row in good}
    rows = octavo.layer_errors(float_model, scaled(quantized, tensor, 4.0), batches)
    assert (rows[0].id, rows[0].is_origin, rows[0].has_unfit_scale) == (tensor, True, True)
    assert not any(row.has_unfit_scale for row in rows[1:])
    after = {row.id: row for row in rows}
    # What reads it inherits the error: all of it is worse, its own ops are not.
    assert after["r3"].sqnr_db < before["r3"].sqnr_db - 0.5
    assert after["r3"].inherited > before["r3"].inherited


def shares(rows: tuple[LayerError, ...]) -> dict[str, float]:
    """Sum up what the rows say of each block."""
    total: dict[str, float] = {}
    for row in rows:
        total[row.block] = total.get(row.block, 0.0) + row.block_share
    return total


def coarse(model: QuantizedModel, weight: str) -> QuantizedModel:
    """Keep 4 of the 8 bits of a weight."""
    return replace(model, params={**model.params, TensorId(weight): model.params[TensorId(weight)] // 16 * 16})


def test_a_bad_layer_within_a_fused_block_is_named(
    float_model: Model, quantized: QuantizedModel, batches: list[np.ndarray]
) -> None:
    rows = octavo.layer_errors(float_model, coarse(quantized, "w2_q"), batches)
    first = rows[0]
    assert (first.id, first.block, first.is_inner, first.is_origin) == ("c2", "r2", True, True)
    assert first.block_share > 0.99
    after = {row.id: row for row in rows}
    assert after["r2"].block_share < 0.01  # the clip behind it and the rounding do nothing
    assert after["c3"].inherited > 0.9


def normed_net() -> Model:
    """conv + bias, batch_norm (one channel of factor 0, one negative), relu: one kernel of three layers of the source; NCHW."""
    rng = np.random.default_rng(1)
    params = {
        "w": (rng.standard_normal((6, 3, 3, 3)) / 5).astype(np.float32),
        "b": rng.standard_normal(6).astype(np.float32),
        "gamma": np.array([0.5, 1, 1.5, 0, 2, -1], np.float32),
        "beta": rng.standard_normal(6).astype(np.float32),
        "mean": rng.standard_normal(6).astype(np.float32),
        "variance": rng.uniform(0.5, 1.5, 6).astype(np.float32),
    }

    def body(writer: BodyWriter, **v: Any) -> Any:
        raw = writer.emit("_raw", relax.op.nn.conv2d(v["x"], v["w"], padding=1))
        bias = writer.emit("_bias", relax.op.reshape(v["b"], (1, -1, 1, 1)))
        conv = writer.emit("conv", relax.op.add(raw, bias))
        norm = relax.op.nn.batch_norm(conv, v["gamma"], v["beta"], v["mean"], v["variance"], axis=1, training=False)
        normed = writer.emit("normed", relax.TupleGetItem(writer.emit("_norm", norm), 0))
        return writer.emit("y", relax.op.nn.relu(normed), is_output=True)

    return model_of({"x": ((1, 3, 8, 8), "float32")}, params, body, ("y",))


def test_the_layers_of_a_convolution_with_folded_batch_norm(batches: list[np.ndarray]) -> None:
    model = normed_net()
    good = octavo.quantize(model, octavo.profile(model, batches), target=INTEGER_RESULTS)
    rows_coarse = octavo.layer_errors(model, coarse(good, "w_q"), batches)
    # The convolution's own output exists nowhere in the quantized model; it is what the folded one is, unscaled.
    assert {row.id: row.block for row in rows_coarse if row.is_inner} == {"conv": "y", "normed": "y"}
    assert (rows_coarse[0].id, rows_coarse[0].is_origin) == ("conv", True)
    assert rows_coarse[0].block_share > 0.99

    [bias] = [name for name, value in good.params.items() if value.dtype == np.int32]
    moved = replace(good, params={**good.params, bias: good.params[bias] + 3000})
    rows_moved = octavo.layer_errors(model, moved, batches)
    assert (rows_moved[0].id, rows_moved[0].is_origin) == ("normed", True)  # the bias is the folded normalization's
    assert rows_moved[0].block_share > 0.99
    assert min(row.sqnr_db for row in rows_moved if row.id == "conv") > 39.5  # without its bias, which counts as signal


def test_the_shares_are_what_their_formula_says() -> None:
    """One 1x1 convolution and a relu, computed here by NumPy from the plan alone."""
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((4, 3, 1, 1)).astype(np.float32)

    def body(writer: BodyWriter, **v: Any) -> Any:
        conv = writer.emit("c", relax.op.nn.conv2d(v["x"], v["w"]))
        return writer.emit("y", relax.op.nn.relu(conv), is_output=True)

    model = model_of({"x": ((1, 3, 5, 5), "float32")}, {"w": weight}, body, ("y",))
    x = rng.standard_normal((1, 3, 5, 5)).astype(np.float32)
    quantized = octavo.quantize(model, octavo.profile(model, [x]), target=INTEGER_RESULTS)
    plan = quantized.plan
    exact = np.einsum("oi,nihw->nohw", weight[:, :, 0, 0], x)
    seen = dequantize(plan.weight_values[TensorId("w")], plan.weights[TensorId("w")])
    by_weight = np.einsum("oi,nihw->nohw", seen[:, :, 0, 0], x)
    result = np.maximum(exact, 0)
    params = plan.activations[TensorId("y")]
    errors = {
        "c": np.sum((np.maximum(by_weight, 0) - result) ** 2),
        "y": np.sum((dequantize(quantize(result, params), params) - result) ** 2),
    }
    rows = {row.id: row for row in octavo.layer_errors(model, quantized, x)}
    for tensor, error in errors.items():
        assert rows[tensor].block_share == pytest.approx(error / sum(errors.values()), rel=1e-3), tensor


def test_a_model_that_is_not_quantized(float_model: Model, batches: list[np.ndarray]) -> None:
    with pytest.raises(QuantizationError, match="no tensor of the model is quantized"):
        octavo.layer_errors(float_model, float_model, batches)
