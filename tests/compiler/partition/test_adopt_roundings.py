"""Pre-quantized models for hardware with roundings of its own: quantizes of what it takes say those, the others stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op
from tvm.relax.backend.pattern_registry import get_patterns_with_prefix

import octavo
import octavo.compiler.byoc
from octavo.compiler.backends import Code, CodeGenerator
from octavo.ir.composites.attributes import read_composite, read_composites
from octavo.ir.graph.dataflow import DataflowView, call_to
from octavo.ir.qdq.rounding import rounding_of
from qdq_graph import Qdq, graph, round_as

SCALES = (0.25, 0.5, 0.125)
CONV = {"op": "nn.conv2d", "weights": ["int8"], "weight_schemes": ["symmetric"], "fusions": ["bias", "nn.relu"]}


def described(*ops: dict[str, Any], **defaults: Any) -> octavo.TargetDescription:
    common = {"activations": ["int8"], "requantize": "fixed_point", "rounding": "twice_away", **defaults}
    return octavo.TargetDescription.from_json({"schema_version": 2, "name": "dsp", "defaults": common, "ops": list(ops)})


def network(word: str = "half_even", scales: tuple[float, ...] = SCALES) -> Any:
    """A convolution with a bias, and a sum of its result with itself, both in the words of another hardware."""

    def body(writer: Any, params: Any) -> Any:
        qdq = Qdq(writer, "int8")
        x = qdq.dequantize("x", params["x"], (scales[0], 3))
        weight = qdq.dequantize("w", relax.const(np.arange(-8, 8, dtype=np.int8).reshape(4, 1, 1, 4)), (0.3, 0))
        core = writer.emit("core", op.nn.conv2d(x, weight, data_layout="NHWC", kernel_layout="OHWI"))
        bias = qdq.dequantize("b", relax.const(np.arange(4, dtype=np.int32)), (np.float32(scales[0]) * np.float32(0.3), 0))
        c = qdq.quantize("c", writer.emit("biased", op.add(core, bias)), (scales[1], -2))
        d = qdq.dequantize("c_dq", c, (scales[1], -2))
        return qdq.quantize("y", writer.emit("sum", op.add(d, d)), (scales[2], 5), is_output=True)

    return octavo.load(round_as(graph({"x": ((1, 4, 4, 4), "int8")}, body), word))


def said(module: Any) -> dict[str, str]:
    """The roundings of quantizes in "main" and in composites, by variable."""
    found: dict[str, str] = {}
    for _, function in module.functions_items():
        if isinstance(function, relax.Function):
            for binding in DataflowView(function).bindings:
                call = call_to(binding.value, "quantize")
                if call is not None:
                    found[binding.var.name.removesuffix("_q")] = rounding_of(call)
    return found


def test_each_op_says_the_rounding_of_its_own_entry() -> None:
    """The bias is no addition of its own: it belongs to the convolution."""
    target = described(CONV, {"op": "add", "rounding": "once"})
    assert said(octavo.partition(network(), target=target)) == {"c": "fixed_point_twice_away", "y": "fixed_point_once"}


def test_what_the_target_leaves_keeps_its_word() -> None:
    assert said(octavo.partition(network("half_up"), target=described({"op": "add"}))) == {
        "c": "half_up",
        "y": "fixed_point_twice_away",
    }


def test_a_rounding_that_it_lists_stays() -> None:
    target = described(CONV, {"op": "add"}, rounding=["twice_away", "once"])
    assert set(said(octavo.partition(network("fixed_point_once"), target=target)).values()) == {"fixed_point_once"}


def test_hardware_with_float_multipliers_changes_nothing() -> None:
    target = described(CONV, {"op": "add"}, requantize="float_multiplier", rounding="half_even")
    assert set(said(octavo.partition(network(), target=target)).values()) == {"half_even"}


def test_what_no_kernel_rounds_so_keeps_its_word() -> None:
    """Octavo's kernels know no softmax in fixed point: here it stays float, and the word stays the source's."""

    def body(writer: Any, params: Any) -> Any:
        qdq = Qdq(writer, "int8")
        x = qdq.dequantize("x", params["x"], (0.25, 3))
        return qdq.quantize("y", writer.emit("core", op.nn.softmax(x, axis=-1)), (1 / 256, -128), is_output=True)

    module = octavo.load(round_as(graph({"x": ((1, 8), "int8")}, body), "integer_inverse_scale"))
    target = described({"op": "nn.softmax"})
    assert said(octavo.partition(module, target=target)) == {"y": "integer_inverse_scale"}
    (op_of,) = [each for each in octavo.explain(module, target=target).ops if each.op == "nn.softmax"]
    assert "no kernel rounds" in op_of.reason or "is rounded" in op_of.reason


class Dsp(CodeGenerator):
    description = described(CONV, {"op": "add"})

    def generate(self, composite: Any) -> Code:
        raise NotImplementedError


@pytest.mark.parametrize("word", ["half_even", "half_up", "half_even_stored"])
def test_a_vendor_gets_the_same_composites_whatever_the_source_says(word: str) -> None:
    found = read_composites(octavo.partition(network(word), target=Dsp()))
    assert {each.kind: type(each.op).__name__ for each in found.values()} == {"dsp.conv2d": "Conv2dOp", "dsp.add": "PairwiseOp"}
    assert {each.quantize_info["rounding"] for each in found.values()} == {"twice_away"}


def test_the_simulation_is_what_the_words_mean() -> None:
    target = described(CONV, {"op": "add"})
    x = np.random.default_rng(0).integers(-128, 128, (1, 4, 4, 4)).astype(np.int8)
    simulated = octavo.compile(network(), target=target)(x)
    written = octavo.compile(network("fixed_point_twice_away"))(x)
    np.testing.assert_array_equal(*(next(iter(each.values())) for each in (simulated, written)))


def test_tvm_s_own_fusion_finds_the_same() -> None:
    octavo.compiler.byoc.register(Dsp())
    module = octavo.compiler.byoc.duplicate_dequantize()(network("half_up").bound())
    fused = relax.transform.FuseOpsByPattern(get_patterns_with_prefix("dsp"))(module)
    found = [each for _, each in fused.functions_items() if "Composite" in (each.attrs or {})]
    read = [read_composite("", each) for each in found]
    assert sorted((each.kind, type(each.op).__name__, each.quantize_info["rounding"]) for each in read) == [
        ("dsp.add", "PairwiseOp", "twice_away"),
        ("dsp.conv2d", "Conv2dOp", "twice_away"),
    ]
