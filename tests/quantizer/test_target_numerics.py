"""Rounding and accumulators that a target describes: what is quantized and partitioned for it computes so, or stays float."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

import octavo
from handmade_profile import ranged
from nets import model_of
from octavo.compiler.partition.pipeline import integer_regions
from octavo.ir.composites.attributes import read_composites
from octavo.ir.graph import Model
from octavo.ir.graph.dataflow import BodyWriter, DataflowView, call_to
from octavo.ir.qdq.rounding import rounding_of
from octavo.numerics import QuantParams, add, conv2d, dequantize, lookup_table, quantize
from octavo.quantizer.plan.plan import QuantizedModel
from octavo.quantizer.recipe import Recipe
from octavo.target import ELEMENTWISE, OpSupport, TargetDescription

RECIPE = Recipe(activation_dtype="uint8")
FINE, COARSE = QuantParams.per_tensor("uint8", 0.25, 128), QuantParams.per_tensor("uint8", 0.5, 128)


def npu(*entries: OpSupport) -> TargetDescription:
    return TargetDescription(name="npu", ops=(*entries, OpSupport(op="quantize"), OpSupport(op="dequantize")))


def conv(**fields: Any) -> OpSupport:
    return OpSupport(op="nn.conv2d", weights=("int8",), **fields)


def reals(params: QuantParams) -> tuple[float, float]:
    """The range that is quantized with these parameters."""
    low, high = dequantize(np.array([0, 255], np.uint8), params)
    return float(low), float(high)


def sum_net(rng: np.random.Generator) -> Model:
    """conv(x), conv(x), their sum and a sigmoid of it: the sum of steps of 0.25 is in steps of 0.5, so that half of them tie."""

    def body(writer: BodyWriter, x: relax.Var, v: relax.Var, w: relax.Var) -> relax.Expr:
        a = writer.emit("a", relax.op.nn.conv2d(x, v), is_output=True)
        b = writer.emit("b", relax.op.nn.conv2d(x, w), is_output=True)
        total = writer.emit("total", relax.op.add(a, b), is_output=True)
        share = writer.emit("share", relax.op.sigmoid(total), is_output=True)
        return relax.Tuple([a, b, total, share])

    weights = {name: rng.standard_normal((4, 3, 1, 1)).astype(np.float32) for name in "vw"}
    return model_of({"x": ((1, 3, 16, 16), "float32")}, weights, body, ("a", "b", "total", "share"))


RANGES = {"x": (-4.0, 4.0), "a": reals(FINE), "b": reals(FINE), "total": reals(COARSE), "share": (0.0, 1.0)}


def quantized_for(model: Model, target: TargetDescription, ranges: dict[str, tuple[float, float]] = RANGES) -> QuantizedModel:
    return octavo.quantize(model, ranged(model, ranges), target=target, recipe=RECIPE)


def outputs_of(model: QuantizedModel, target: TargetDescription, x: np.ndarray) -> dict[str, np.ndarray]:
    names = map(str, model.output_ids)
    return dict(zip(names, octavo.compile(model, target=target)(x).values(), strict=True))


def said(model: QuantizedModel) -> dict[str, str]:
    """The rounding of each quantize, by the tensor that it rounds."""
    bindings = DataflowView(model.module["main"]).bindings
    calls = {binding.var.name: call_to(binding.value, "quantize") for binding in bindings}
    return {name.removesuffix("_q"): rounding_of(call) for name, call in calls.items() if call is not None}


def test_what_is_quantized_for_a_target_rounds_as_the_target_does(rng: np.random.Generator) -> None:
    target = npu(conv(), OpSupport(op="add", rounding="half_up"), OpSupport(op=ELEMENTWISE, rounding=("half_up", "half_even")))
    model = quantized_for(sum_net(rng), target)
    assert said(model) == {"x": "half_even", "a": "half_even", "b": "half_even", "total": "half_up", "share": "half_up"}
    info = {each.kind: each.quantize_info for each in read_composites(octavo.partition(model, target=target)).values()}
    assert (info["octavo.add"]["rounding"], info["octavo.add"]["requantize"]) == ("half_up", "fixed_point")

    x = rng.uniform(-4, 4, (1, 3, 16, 16)).astype(np.float32)
    got = outputs_of(model, target, x)
    a, b, total = (quantize(got[name], params) for name, params in zip(("a", "b", "total"), (FINE, FINE, COARSE), strict=True))
    scales = {"a_scale": 0.25, "a_zero_point": 128, "b_scale": 0.25, "b_zero_point": 128, "out_scale": 0.5, "zero_point": 128}
    np.testing.assert_array_equal(total, add(a, b, **scales))
    assert (total != quantize(got["a"] + got["b"], COARSE)).any(), "the values hold no tie"
    share = model.plan.activations["share"]
    table = lookup_table(lambda real: 1 / (1 + np.exp(-real)), COARSE, share, rounding="half_up")
    assert np.abs(quantize(got["share"], share).astype(int) - table[total].astype(int)).max() <= 1


@pytest.mark.parametrize(("rounding", "want"), [("half_up", [0, 0, 1, 2, 3]), ("half_away", [-1, 0, 1, 2, 3])])
def test_a_table_rounds_as_its_quantize_says(rounding: Any, want: list[int]) -> None:
    params = QuantParams.per_tensor("int8", 1.0, 0)
    ties = np.array([-0.5, 0.25, 0.5, 1.5, 2.5], np.float32)
    np.testing.assert_array_equal(quantize(ties, params, rounding), want)
    np.testing.assert_array_equal(quantize(ties, params), [0, 0, 0, 2, 2])


def test_what_no_kernel_rounds_so_stays_float(rng: np.random.Generator) -> None:
    target = npu(conv(rounding="half_up"), OpSupport(op="add", rounding="half_up"))
    model = quantized_for(sum_net(rng), target)
    reasons = {str(op.tensor): op.reason for op in model.plan.float_ops}
    assert reasons["a"] == "no kernel rounds nn.conv2d half_up, only half_even; target npu rounds it half_up"
    assert model.plan.layers == ()


def test_an_op_that_a_target_rounds_otherwise_is_rejected(rng: np.random.Generator) -> None:
    half_up = quantized_for(sum_net(rng), npu(conv(), OpSupport(op="add", rounding="half_up")))
    found = integer_regions(half_up.bound(), npu(conv(), OpSupport(op="add", rounding=("half_even", "half_away"))))
    assert found.rejections["total"].reason == "total_q is rounded half_up; target npu rounds add half_even, half_away"
    assert {"octavo_conv2d_a_q", "octavo_conv2d_b_q"} <= set(found.regions)


WEIGHTS = {
    "v": np.array([1.0, -1.0], np.float32).reshape(2, 1, 1, 1),
    "w": np.full((3, 2, 3, 3), 0.25, np.float32),
}


def deep_net() -> Model:
    """A product of one term for each channel, then one of 18: 127 * 128 fits 16 bits, and 18 times that does not."""

    def body(writer: BodyWriter, x: relax.Var, v: relax.Var, w: relax.Var) -> relax.Expr:
        a = writer.emit("a", relax.op.nn.conv2d(x, v, groups=2), is_output=True)
        return relax.Tuple([a, writer.emit("y", relax.op.nn.conv2d(a, w), is_output=True)])

    return model_of({"x": ((1, 2, 8, 8), "float32")}, WEIGHTS, body, ("a", "y"))


def test_sums_that_may_leave_the_accumulator_stay_float(rng: np.random.Generator) -> None:
    target = npu(conv(accumulator_bits=16))
    ranges = {"x": reals(FINE), "a": reals(FINE), "y": (-64.0, 64.0)}
    model = quantized_for(deep_net(), target, ranges)
    assert [str(layer.output) for layer in model.plan.layers] == ["a"]
    (rejected,) = model.plan.float_ops
    reach = 18 * 127 * 128
    assert rejected.reason == f"the int16 accumulator of output channel 0 can reach {reach}, above 32767"

    (composite,) = [
        each for each in read_composites(octavo.partition(model, target=target)).values() if each.kind == "octavo.conv2d"
    ]
    assert composite.quantize_info["accumulator_bits"] == 16
    x = rng.uniform(-32, 32, (1, 2, 8, 8)).astype(np.float32)
    got = outputs_of(model, target, x)
    op: Any = composite.op
    want = conv2d(
        quantize(x, FINE).transpose(0, 2, 3, 1),
        op.weight.values,
        x_zero_point=128,
        groups=2,
        multiplier=op.multiplier,
        zero_point=128,
    )
    np.testing.assert_array_equal(quantize(got["a"], FINE).transpose(0, 2, 3, 1), want)

    wide = quantized_for(deep_net(), npu(conv(accumulator_bits=20)), ranges)
    assert [str(layer.output) for layer in wide.plan.layers] == ["a", "y"]


def test_products_of_two_activations_fit_the_accumulator() -> None:
    def body(writer: BodyWriter, a: relax.Var, b: relax.Var) -> relax.Expr:
        return writer.emit("y", relax.op.matmul(a, b), is_output=True)

    model = model_of({"a": ((2, 4, 5), "float32"), "b": ((2, 5, 4), "float32")}, {}, body, ("y",))
    ranges = {"a": reals(FINE), "b": reals(FINE), "y": (-64.0, 64.0)}
    narrow = quantized_for(model, npu(OpSupport(op="batch_matmul", accumulator_bits=17)), ranges)
    assert [op.reason for op in narrow.plan.float_ops] == [f"its int17 accumulator can reach {5 * 128 * 128}, above 65535"]
    wide = quantized_for(model, npu(OpSupport(op="batch_matmul", accumulator_bits=18)), ranges)
    assert [str(layer.output) for layer in wide.plan.layers] == ["y"]


@pytest.mark.parametrize(
    ("requantize", "rounding", "scales"), [("shift", "half_up", "power_of_two"), ("fixed_point", "twice_away", "any")]
)
def test_a_description_in_integers_is_computed_so(rng: np.random.Generator, requantize: Any, rounding: Any, scales: Any) -> None:
    """The quantizes say the word, the composites its two parts, and the results stay near those of float multipliers."""
    how = {"requantize": requantize, "rounding": rounding, "scales": scales}
    target = npu(conv(**how), OpSupport(op="add", **how), OpSupport(op=ELEMENTWISE, **how))
    model = quantized_for(sum_net(rng), target)
    word = f"{requantize}_{rounding}"
    assert said(model) == {"x": "half_even", **dict.fromkeys(("a", "b", "total", "share"), word)}
    info = {each.kind: each.quantize_info for each in read_composites(octavo.partition(model, target=target)).values()}
    for kind in ("octavo.conv2d", "octavo.add"):
        assert (info[kind]["requantize"], info[kind]["rounding"]) == (requantize, rounding)
    x = rng.uniform(-4, 4, (1, 3, 16, 16)).astype(np.float32)
    got = outputs_of(model, target, x)
    scale = float(model.plan.activations["total"].scale)
    assert np.abs(got["total"] - (got["a"] + got["b"])).max() <= 0.5 * scale + 1e-5
