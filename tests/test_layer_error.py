"""The error of quantization by layer: a fault planted in one tensor is named, as arising there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import octavo
from nets import residual_net
from octavo.errors import QuantizationError
from octavo.graph import Model
from octavo.layer_error import LayerError


@pytest.fixture(scope="module")
def float_model() -> Model:
    return residual_net()


@pytest.fixture(scope="module")
def batches() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((1, 3, 8, 8)).astype(np.float32) for _ in range(20)]


@pytest.fixture(scope="module")
def quantized(float_model: Model, batches: list[np.ndarray]) -> Model:
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
    [entry] = [row for row in rows if row.id == "x"]
    assert entry.inherited == 0
    assert entry.source_name == "net/x:0"


@pytest.mark.parametrize("tensor", ["r1", "c3"])
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


def test_a_model_that_is_not_quantized(float_model: Model, batches: list[np.ndarray]) -> None:
    with pytest.raises(QuantizationError, match="no tensor of the model is quantized"):
        octavo.layer_errors(float_model, float_model, batches)
