"""Several targets share a model: each op goes to the first that takes it, and is quantized as that one asks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import octavo
from handmade_profile import ranged
from nets import residual_net
from octavo.compiler.backends import CodeGenerator
from octavo.ir.graph.dataflow import DataflowView, call_to
from octavo.ir.identity import TensorId
from octavo.ir.qdq.rounding import rounding_of
from octavo.quantizer.plan.plan import QuantizedModel
from octavo.quantizer.recipe import Recipe
from octavo.target import OpSupport, TargetDescription
from octavo.target.limits import Limit
from octavo.target.tensor_support import TensorSupport


class Vendor(CodeGenerator):
    """Has a description, and is never asked for code."""

    def __init__(self, name: str, *ops: OpSupport, never: tuple[str, ...] = ()) -> None:
        self.description = TargetDescription(name=name, ops=ops, never=never)

    def generate(self, composite: Any) -> Any:
        raise AssertionError(composite)


def pointwise(**fields: Any) -> OpSupport:
    """A convolution by windows of one pixel."""
    given = {"activations": ("int8",), "weights": ("int8",), "fusions": ("bias",), "limits": {"kernel": Limit(maximum=1)}}
    return OpSupport(op="nn.conv2d", **(given | fields))


def quantized_for(*targets: Any, recipe: Recipe | None = None) -> QuantizedModel:
    model = residual_net()
    return octavo.quantize(model, ranged(model), target=list(targets), recipe=recipe)


def roundings(model: QuantizedModel) -> dict[str, str]:
    bindings = DataflowView(model.module["main"]).bindings
    calls = {binding.var.name: call_to(binding.value, "quantize") for binding in bindings}
    return {name.removesuffix("_q"): rounding_of(call) for name, call in calls.items() if call is not None}


def is_power_of_two(scale: Any) -> bool:
    return bool((np.frexp(scale)[0] == 0.5).all())


def test_each_op_obeys_the_target_that_takes_it() -> None:
    npu = Vendor("npu", pointwise(scales="power_of_two", weight_granularity=("per_tensor",), rounding="half_away"))
    model = quantized_for(npu, "cpu")
    assert [str(layer.output) for layer in model.plan.layers] == ["r1", "r2", "c3", "r3", "m", "f", "y"]
    assert {str(op.tensor) for op in model.plan.float_ops} == {"p"}
    activations, weights = model.plan.activations, model.plan.weights
    assert {str(name) for name, params in activations.items() if is_power_of_two(params.scale)} == {"r2", "c3"}
    assert {str(name): params.scale.ndim for name, params in weights.items()} == {"w1": 1, "w2": 1, "w3": 0, "w4": 1}
    assert is_power_of_two(weights[TensorId("w3")].scale)
    assert {name for name, rounding in roundings(model).items() if rounding == "half_away"} == {"c3"}
    assert {params.dtype for params in activations.values()} == {"int8"}, "what the first lists is preferred"


def test_an_op_of_the_second_reads_what_the_first_makes_as_both_ask() -> None:
    npu = Vendor("npu", pointwise(tensors={"output": TensorSupport(scale=1 / 64)}))
    dsp = Vendor("dsp", OpSupport(op="add", activations=("int8",), activation_schemes=("symmetric",)))
    plan = quantized_for(npu, dsp, "cpu").plan
    c3 = plan.activations[TensorId("c3")]
    assert (float(c3.scale), int(c3.zero_point)) == (1 / 64, 0)
    assert int(plan.activations[TensorId("s")].zero_point) == 0


def test_what_the_first_cannot_take_beside_others_goes_to_the_next() -> None:
    fixed = {"input": TensorSupport(scale=1 / 64), "output": TensorSupport(scale=1 / 32)}
    npu = Vendor("npu", pointwise(limits={}, fusions=("bias", "nn.relu", "clip"), tensors=fixed))
    plan = quantized_for(npu, "cpu").plan
    assert [str(layer.output) for layer in plan.layers][:3] == ["r1", "r2", "c3"]
    scales = {str(name): float(params.scale) for name, params in plan.activations.items()}
    assert [scales[name] for name in ("x", "r1", "r2", "c3")] == [1 / 64, 1 / 32, 1 / 64, 1 / 32]
    reasons = {str(op.tensor): op.reason for op in quantized_for(npu).plan.float_ops}
    assert reasons["_c2_conv"] == ("r1 cannot be all that its ops need: nn.conv2d r1 scale 0.03125, nn.conv2d r2 scale 0.015625")


@pytest.mark.parametrize("never", [(), ("add",)])
def test_what_the_first_never_takes_goes_to_the_next(never: tuple[str, ...]) -> None:
    npu = Vendor("npu", OpSupport(op="add", activations=("int8",), scales="power_of_two"), never=never)
    plan = quantized_for(npu, "cpu").plan
    assert is_power_of_two(plan.activations[TensorId("r1")].scale) == (not never)
    assert "r3" in {str(layer.output) for layer in plan.layers}


def test_reasons_name_each_target() -> None:
    npu, dsp = (Vendor(name, pointwise(limits={"kernel": Limit(maximum=size)})) for name, size in (("npu", 1), ("dsp", 2)))
    reasons = {str(op.tensor): op.reason for op in quantized_for(npu, dsp).plan.float_ops}
    assert reasons["_c1_conv"] == (
        "npu: its kernel is 3, expected at most 1, says target npu of nn.conv2d; "
        "dsp: its kernel is 3, expected at most 2, says target dsp of nn.conv2d"
    )
