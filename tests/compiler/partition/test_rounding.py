"""The rounding that a quantize says: in JSON, in TVMScript, behind TVM's passes and ours, without any attribute of a function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import relax as R

from octavo.compiler.partition.hoist_quantize import hoist_quantize
from octavo.compiler.partition.share_zero_points import share_zero_points
from octavo.compiler.partition.sink_dequantize import sink_dequantize
from octavo.errors import CompileError
from octavo.ir.graph.dataflow import DataflowView, call_to, op_name
from octavo.ir.qdq.rounding import rounding_of, with_rounding
from octavo.target.vocabulary import ROUNDINGS
from qdq_graph import Qdq, graph, round_as, run_float, run_lowered
from tvm_alone import tvm_alone

op: Any = relax.op
A, B, Y = (0.25, 3), (0.5, -7), (1.0, 11)
"""Powers of two: every fourth sum is a tie, and float32 holds all of them exactly."""


def sums(rounding: str = "half_even", y: tuple[float, int] = Y) -> tvm.IRModule:
    def body(writer, params):
        qdq = Qdq(writer, "int8")
        total = writer.emit("sum", op.add(qdq.dequantize("a", params["a"], A), qdq.dequantize("b", params["b"], B)))
        return qdq.quantize("y", total, y, is_output=True)

    return round_as(graph({"a": ((256, 256), "int8"), "b": ((256, 256), "int8")}, body), rounding)


EVERY = np.broadcast_to(np.arange(-128, 128).astype(np.int8), (256, 256))
PAIRS = [np.ascontiguousarray(EVERY), np.ascontiguousarray(EVERY.T)]


def roundings(module: tvm.IRModule) -> list[str]:
    values = [binding.value for binding in DataflowView(module["main"]).bindings]
    return [rounding_of(value) for value in values if call_to(value, "quantize", "dequantize") is not None]


@pytest.mark.parametrize("y", [Y, (0.5, -4), (2.0, 0)])
@pytest.mark.parametrize("subtract", [False, True])
def test_a_plain_sum_is_that_of_tvm(y: tuple[float, int], subtract: bool) -> None:
    """All pairs of integers, ties among them; `R.quantize` rounds half to even, and so does TVM's own build."""

    def body(writer, params):
        qdq = Qdq(writer, "int8")
        a, b = qdq.dequantize("a", params["a"], A), qdq.dequantize("b", params["b"], B)
        return qdq.quantize("y", writer.emit("core", (op.subtract if subtract else op.add)(a, b)), y, is_output=True)

    module = graph({"a": ((256, 256), "int8"), "b": ((256, 256), "int8")}, body)
    want = run_float(module, *PAIRS)
    np.testing.assert_array_equal(run_lowered(module, *PAIRS), want)
    assert (run_lowered(round_as(module, "half_up"), *PAIRS) != want).any(), "the values hold no tie"


def test_shorter_operands_are_added_as_tvm_adds_them() -> None:
    def body(writer, params):
        qdq = Qdq(writer, "int8")
        b = qdq.weight("b", np.arange(-8, 8).astype(np.int8), *B)
        return qdq.quantize("y", writer.emit("sum", op.add(qdq.dequantize("a", params["a"], A), b)), Y, is_output=True)

    module = graph({"a": ((16, 16), "int8")}, body)
    x = np.arange(-128, 128).astype(np.int8).reshape(16, 16)
    np.testing.assert_array_equal(run_lowered(module, x), run_float(module, x))


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_json_and_script_keep_it(rounding: str) -> None:
    module = round_as(round_as(sums(), rounding), rounding, "dequantize")
    assert roundings(module) == [rounding] * 3
    for again in (tvm.ir.load_json(tvm.ir.save_json(module)), tvm.script.from_source(module.script(show_meta=True))):
        tvm.ir.assert_structural_equal(again, module)
    if rounding != "half_even":
        assert f'R.octavo.quantize(sum, R.const(1.0, "float32"), R.const(11, "int32"), R.str("{rounding}")' in module.script()


def test_it_can_be_written_in_tvmscript() -> None:
    @tvm.script.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "int8"):
            with R.dataflow():
                y = R.octavo.quantize(x, R.const(0.5), R.const(3), "half_up", axis=0, out_dtype="int8")
                R.output(y)
            return y

    assert roundings(Module) == ["half_up"]


@pytest.mark.parametrize(
    "tvm_pass",
    [
        relax.transform.CanonicalizeBindings(),
        relax.transform.FoldConstant(),
        relax.transform.EliminateCommonSubexpr(),
        relax.transform.DeadCodeElimination(),
        relax.transform.ConvertLayout({"nn.conv2d": ["NHWC", "OHWI"]}),
        relax.transform.ConvertToDataflow(),
        relax.transform.Normalize(),
    ],
    ids=lambda tvm_pass: tvm_pass.info.name,
)
def test_tvm_s_passes_keep_it(tvm_pass: Any) -> None:
    def body(writer, params):
        qdq = Qdq(writer, "int8")
        x = qdq.dequantize("x", params["x"], A)
        w = qdq.weight("w", np.ones((4, 4, 1, 1), np.int8), 0.5)
        return qdq.quantize("y", writer.emit("conv", op.nn.conv2d(x, w)), Y, is_output=True)

    module = round_as(graph({"x": ((1, 4, 3, 3), "int8")}, body), "half_up")
    quantizes = [b.value for b in DataflowView(tvm_pass(module)["main"]).bindings if call_to(b.value, "quantize") is not None]
    assert [rounding_of(call) for call in quantizes] == ["half_up"]


def test_common_subexpressions_are_of_one_rounding() -> None:
    def body(writer, params):
        calls = [op.quantize(params["x"], relax.const(0.5), relax.const(3)) for _ in range(3)]
        words = ["half_up", "half_up", "half_away"]
        values = [
            writer.emit(f"q{i}", with_rounding(call, word)) for i, (call, word) in enumerate(zip(calls, words, strict=True))
        ]
        return writer.emit("y", op.concat(values, axis=0), is_output=True)

    merged = relax.transform.EliminateCommonSubexpr()(graph({"x": ((4,), "float32")}, body))
    assert sorted(roundings(relax.transform.DeadCodeElimination()(merged))) == ["half_away", "half_up"]


def test_tvm_s_own_build_computes_them_as_the_plain_ops() -> None:
    (found,) = tvm_alone(round_as(sums("half_up"), "fixed_point", "dequantize"))(*PAIRS)
    np.testing.assert_array_equal(found, run_float(sums(), *PAIRS))


def test_function_attributes_decide_nothing() -> None:
    module = sums("half_up")
    want = run_lowered(module, *PAIRS)
    bare = tvm.IRModule({"main": module["main"].without_attr("num_input")})
    np.testing.assert_array_equal(run_lowered(bare, *PAIRS), want)


def net_of_hoisted_quantize(writer, params):
    qdq = Qdq(writer, "int8")
    w = qdq.weight("w", np.ones((4, 4, 1, 1), np.int8), 0.5)
    conv = writer.emit("conv", op.nn.conv2d(qdq.dequantize("x", params["x"], A), w))
    pooled = writer.emit("pool", op.nn.max_pool2d(conv))
    return qdq.quantize("y", writer.emit("flat", op.reshape(pooled, (1, 36))), Y, is_output=True)


def net_of_sunk_dequantize(writer, params):
    qdq = Qdq(writer, "int8")
    flat = writer.emit("flat", op.reshape(qdq.dequantize("x", params["x"], A), (1, 36)))
    return writer.emit("y", op.greater(flat, relax.const(0.5)), is_output=True)


def test_our_passes_keep_it() -> None:
    inputs = {"x": ((1, 4, 3, 3), "int8")}
    hoisted = hoist_quantize(round_as(graph(inputs, net_of_hoisted_quantize), "half_up"))
    names = [op_name(binding.value) for binding in DataflowView(hoisted["main"]).bindings]
    assert names.index("quantize") < names.index("nn.max_pool2d")
    assert roundings(hoisted) == ["half_even", "half_even", "half_up"]
    sunk = sink_dequantize(round_as(graph(inputs, net_of_sunk_dequantize), "fixed_point", "dequantize"))
    names = [op_name(binding.value) for binding in DataflowView(sunk["main"]).bindings]
    assert names.index("reshape") < names.index("dequantize", 1)
    assert set(roundings(relax.transform.DeadCodeElimination()(sunk))) == {"fixed_point"}


def test_a_shared_zero_point_keeps_it() -> None:
    def body(writer, params):
        scale, zeros = relax.const(np.array([0.5, 1.0], np.float32)), relax.const(np.array([-128, 0], np.int32))
        q = writer.emit("q", op.quantize(writer.emit("a", op.nn.relu(params["x"])), scale, zeros, axis=1))
        return writer.emit("d", op.dequantize(q, scale, zeros, axis=1), is_output=True)

    module = round_as(graph({"x": ((1, 2, 3), "float32")}, body), "half_up")
    shared = share_zero_points(module)
    assert shared is not module
    assert roundings(shared) == ["half_up", "half_even"]


def test_an_unknown_rounding_is_an_error() -> None:
    call = op.quantize(relax.Var("x", relax.TensorType((4,), "float32")), relax.const(0.5), relax.const(3))
    with pytest.raises(CompileError, match=r"octavo.quantize: expected a rounding of half_even, .* got 'nearest'"):
        with_rounding(call, "nearest")
    missing = relax.Call(with_rounding(call, "half_up").op, list(call.args), call.attrs)
    with pytest.raises(RuntimeError, match=r"octavo.quantize: expected a rounding of .* got None"):
        relax.BlockBuilder().normalize(missing)
