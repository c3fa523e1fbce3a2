"""A run of elementwise ops over one tensor is one layer: quantized where it ends, not in between, in the module and as ONNX."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from integer_results import INTEGER_RESULTS
from nets import model_of
from octavo.compiler.backends.cpu.kernels import isas_of
from octavo.compiler.partition.pipeline import lower
from octavo.ir.graph import Model
from octavo.ir.graph.dataflow import BodyWriter
from octavo.quantizer.plan.plan import QuantizedModel
from octavo.quantizer.quantize_graph import quantize_graph
from octavo.quantizer.recipe import Recipe
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU, ELEMENTWISE, OpSupport, TargetDescription

from handmade_profile import ranged  # isort: skip

NPU = TargetDescription(name="npu", ops=tuple(OpSupport(op=name, weights=("int8",)) for name in ("nn.conv2d",)))


def silu_net(rng: np.random.Generator, *, sigmoid_is_read: bool = False) -> Model:
    """conv -> x * sigmoid(x) -> conv -> hard swish written out."""

    def body(writer: BodyWriter, x: relax.Var, w1: relax.Var, w2: relax.Var) -> relax.Expr:
        def number(value: float) -> relax.Expr:
            return relax.const(np.float32(value))

        c1 = writer.emit("c1", relax.op.nn.conv2d(x, w1))
        s1 = writer.emit("s1", relax.op.sigmoid(c1), is_output=sigmoid_is_read)
        m1 = writer.emit("m1", relax.op.multiply(c1, s1))
        c2 = writer.emit("c2", relax.op.nn.conv2d(m1, w2))
        a2 = writer.emit("a2", relax.op.add(c2, number(3)))
        k2 = writer.emit("k2", relax.op.clip(a2, 0, 6))
        d2 = writer.emit("d2", relax.op.divide(k2, number(6)))
        y = writer.emit("y", relax.op.multiply(c2, d2), is_output=True)
        return relax.Tuple([y, s1]) if sigmoid_is_read else y

    outputs = ("y", "s1") if sigmoid_is_read else ("y",)
    weights = {"w1": rng.standard_normal((5, 3, 1, 1)), "w2": rng.standard_normal((4, 5, 1, 1))}
    weights = {name: value.astype(np.float32) for name, value in weights.items()}
    return model_of({"x": ((1, 3, 4, 4), "float32")}, weights, body, outputs)


def layers(model: QuantizedModel) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(layer.op, str(layer.output), tuple(map(str, layer.inputs))) for layer in model.plan.layers]


def test_one_layer_for_the_whole_function(rng: np.random.Generator) -> None:
    model = silu_net(rng)
    quantized = quantize_graph(model, ranged(model), target=INTEGER_RESULTS)
    assert layers(quantized) == [
        ("nn.conv2d", "c1", ("x",)),
        ("elementwise", "m1", ("c1",)),
        ("nn.conv2d", "c2", ("m1",)),
        ("elementwise", "y", ("c2",)),
    ]
    records = lower(quantized.bound(), CPU, isas_of(host_target()), 1).records
    assert [record.op for record in records] == ["quantize", "conv2d", "lookup", "conv2d", "lookup", "dequantize"]


def test_a_value_that_others_read_ends_the_function(rng: np.random.Generator) -> None:
    model = silu_net(rng, sigmoid_is_read=True)
    assert layers(quantize_graph(model, ranged(model), target=CPU))[1:3] == [
        ("elementwise", "s1", ("c1",)),
        ("multiply", "m1", ("c1", "s1")),
    ]


@pytest.mark.parametrize(("target", "recipe"), [(NPU, Recipe()), (CPU, Recipe(float_ops=("sigmoid", "divide")))])
def test_stays_float_where_target_or_recipe_say_so(rng: np.random.Generator, target: TargetDescription, recipe: Recipe) -> None:
    model = silu_net(rng)
    quantized = quantize_graph(model, ranged(model), target=target, recipe=recipe)
    assert "elementwise" not in [op for op, _, _ in layers(quantized)]


def test_parts_that_read_the_source_side_by_side_are_one_function(rng: np.random.Generator) -> None:
    """ELU as PyTorch's importer has it, behind a convolution that could take the relu."""

    def body(writer: BodyWriter, x: relax.Var, w: relax.Var) -> relax.Expr:
        c = writer.emit("c", relax.op.nn.conv2d(x, w))
        above = writer.emit("_above", relax.op.nn.relu(c))
        grown = writer.emit("_grown", relax.op.subtract(writer.emit("_exp", relax.op.exp(c)), relax.const(np.float32(1))))
        below = writer.emit("_below", relax.op.minimum(grown, relax.const(np.float32(0))))
        return writer.emit("y", relax.op.add(above, below), is_output=True)

    weight = rng.standard_normal((5, 3, 1, 1)).astype(np.float32)
    model = model_of({"x": ((1, 3, 4, 4), "float32")}, {"w": weight}, body, ("y",))
    quantized = quantize_graph(model, ranged(model), target=INTEGER_RESULTS)
    assert layers(quantized) == [("nn.conv2d", "c", ("x",)), (ELEMENTWISE, "y", ("c",))]
    lowered = lower(quantized.bound(), CPU, isas_of(host_target()), 1)
    assert [record.op for record in lowered.records if not record.integer] == []
