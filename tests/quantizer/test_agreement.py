"""Placement and partition agree: what a plan calls integer is taken by an integer op, and what it calls float is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from allpairspy import AllPairs
from tvm import relax

import octavo
from handmade_profile import ranged
from integer_results import INTEGER_RESULTS
from nets import model_of
from octavo.compiler.partition.pipeline import integer_regions
from octavo.ir.graph.dataflow import BodyWriter
from octavo.quantizer.plan.plan import QuantizedModel
from octavo.quantizer.recipe import Recipe
from octavo.target import CPU, TargetDescription
from random_nets import random_net

# No layer of convolutions alone: ops that a vendor has, and ops that it lacks, in between.
NPU = replace(
    CPU, name="npu", ops=tuple(op for op in CPU.ops if op.op in ("nn.conv2d", "add", "concat", "image.resize2d", "reshape"))
)
RECIPES = {
    "default": Recipe(),
    "int8": Recipe(activation_dtype="int8", float_ops=()),
    "excluded": Recipe(exclude=("t4", "t7"), weight_granularity="per_tensor"),
}


def taken(model: QuantizedModel, target: TargetDescription) -> set[str]:
    """Return the variables inside integer ops, apart from those that only quantize or dequantize."""
    found = integer_regions(model.bound(), target)
    edges = ("octavo.quantize", "octavo.dequantize")
    regions = [region for name, region in found.regions.items() if str(found.module[name].attrs["Composite"]) not in edges]
    return {var.name for region in regions for var in region.members}


@pytest.mark.parametrize(("seed", "recipe", "target"), list(AllPairs([range(12), RECIPES, ["cpu", "npu"]])))
def test_plan_and_partition_agree_on_random_networks(seed: int, recipe: str, target: str) -> None:
    model, description = random_net(seed), {"cpu": CPU, "npu": NPU}[target]
    quantized = octavo.quantize(model, ranged(model), target=description, recipe=RECIPES[recipe])
    plan, inside = quantized.plan, taken(quantized, description)
    assert {str(layer.output) for layer in plan.layers} <= inside
    assert inside.isdisjoint(str(op.tensor) for op in plan.float_ops)
    assert set(map(str, plan.enclosed)) <= inside
    assert all(op.reason for op in plan.float_ops)


def test_an_op_that_its_matcher_rejects_stays_float_with_the_matcher_s_reason() -> None:
    def body(writer: BodyWriter, x: relax.Var, w: relax.Var) -> relax.Expr:
        first = writer.emit("a", relax.op.nn.conv2d(x, w))
        resized = writer.emit("r", relax.op.image.resize2d(first, (8, 8), method="cubic"))
        return writer.emit("y", relax.op.nn.conv2d(resized, w), is_output=True)

    weight = np.random.default_rng(0).standard_normal((3, 3, 1, 1)).astype(np.float32)
    model = model_of({"x": ((1, 3, 4, 4), "float32")}, {"w": weight}, body, ("y",))
    plan = octavo.quantize(model, ranged(model)).plan
    assert [(str(op.tensor), op.reason) for op in plan.float_ops] == [("r", "it resizes by cubic in layout NCHW")]
    assert [str(layer.output) for layer in plan.layers] == ["a", "y"]


def test_an_op_that_only_quantized_tensors_surround_is_told_from_the_float_ones() -> None:
    def body(writer: BodyWriter, x: relax.Var, w: relax.Var) -> relax.Expr:
        scores = writer.emit("a", relax.op.nn.conv2d(x, w))
        shares = writer.emit("s", relax.op.nn.softmax(scores, axis=1))
        return writer.emit("y", relax.op.nn.conv2d(shares, w), is_output=True)

    weight = np.random.default_rng(0).standard_normal((3, 3, 1, 1)).astype(np.float32)
    model = model_of({"x": ((1, 3, 4, 4), "float32")}, {"w": weight}, body, ("y",))
    quantized = octavo.quantize(model, ranged(model), target=INTEGER_RESULTS)
    assert (quantized.plan.float_ops, quantized.plan.enclosed) == ((), ("s",))
    assert next(op.integer for op in octavo.explain(quantized).ops if "softmax" in op.op)
