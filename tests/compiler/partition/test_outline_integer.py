"""Partition: which region becomes which composite, and what its quantize_info says."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from octavo.compiler.partition.context import PartitionContext
from octavo.compiler.partition.outline_integer import outline_integer
from octavo.compiler.partition.pipeline import integer_regions
from octavo.target import CPU, OpSupport, TargetDescription
from qdq_graph import Qdq, graph


@I.ir_module
class Before:
    @R.function
    def main(a_q: R.Tensor((2, 8), "int8"), b_q: R.Tensor((2, 8), "int8")) -> R.Tensor((2, 8), "int8"):
        with R.dataflow():
            a = R.dequantize(a_q, R.const(0.5, "float32"), R.const(3, "int32"), out_dtype="float32", axis=0)
            b = R.dequantize(b_q, R.const(0.25, "float32"), R.const(-4, "int32"), out_dtype="float32", axis=0)
            total = R.add(a, b)
            act = R.nn.relu(total)
            y = R.quantize(act, R.const(1.0, "float32"), R.const(-100, "int32"), out_dtype="int8", axis=0)
            z = R.clip(y, T.float64(-128.0), T.float64(50.0))
            R.output(z)
        return z


@I.ir_module
class Expected:
    @R.function(private=True)
    def octavo_add_z(a_q: R.Tensor((2, 8), "int8"), b_q: R.Tensor((2, 8), "int8")) -> R.Tensor((2, 8), "int8"):
        R.func_attr(
            {
                "Composite": "octavo.add",
                "Primitive": True,
                "octavo.core": "total",
                "quantize_info": {
                    "input0": {
                        "id": "a_q",
                        "dtype": "int8",
                        "scale": 0.5,
                        "zero_point": 3,
                        "axis": None,
                        "qmin": -128,
                        "qmax": 127,
                    },
                    "input1": {
                        "id": "b_q",
                        "dtype": "int8",
                        "scale": 0.25,
                        "zero_point": -4,
                        "axis": None,
                        "qmin": -128,
                        "qmax": 127,
                    },
                    # relu bounds the result below at its zero point, the integer clip above at 50.
                    "output": {
                        "id": "z",
                        "dtype": "int8",
                        "scale": 1.0,
                        "zero_point": -100,
                        "axis": None,
                        "qmin": -100,
                        "qmax": 50,
                    },
                    "requantize": "float_multiplier",
                    "rounding": "half_even",
                    "accumulator_bits": None,
                    "overflow": "proven",
                    "clamp": [-100, 50],
                },
            }
        )
        with R.dataflow():
            a = R.dequantize(a_q, R.const(0.5, "float32"), R.const(3, "int32"), out_dtype="float32", axis=0)
            b = R.dequantize(b_q, R.const(0.25, "float32"), R.const(-4, "int32"), out_dtype="float32", axis=0)
            total = R.add(a, b)
            act = R.nn.relu(total)
            y = R.quantize(act, R.const(1.0, "float32"), R.const(-100, "int32"), out_dtype="int8", axis=0)
            z = R.clip(y, T.float64(-128.0), T.float64(50.0))
            R.output(z)
        return z

    @R.function
    def main(a_q: R.Tensor((2, 8), "int8"), b_q: R.Tensor((2, 8), "int8")) -> R.Tensor((2, 8), "int8"):
        cls = Expected
        with R.dataflow():
            z: R.Tensor((2, 8), "int8") = cls.octavo_add_z(a_q, b_q)
            R.output(z)
        return z


def test_add_with_its_clamps_becomes_one_composite():
    partition = integer_regions(Before, CPU)
    module, name = partition.module, "octavo_add_z"
    function = module[name]
    op = function.attrs["octavo.op"]
    assert (op["type"], op["a"]["name"], op["y"]["qmin"], op["y"]["qmax"]) == ("AddOp", "a_q", -100, 50)
    module.update_func(module.get_global_var(name), function.without_attr("octavo.op"))
    tvm.ir.assert_structural_equal(module, Expected)
    assert partition.rejections == {}


def test_with_nothing_to_do_the_module_is_the_same():
    def body(writer, params):
        return writer.emit("y", relax.op.nn.relu(params["x"]), is_output=True)

    module = graph({"x": ((3, 4), "float32")}, body)
    assert outline_integer(module, PartitionContext(target=CPU)).same_as(module)


def matmul_module(*, weight: np.ndarray, scale: np.ndarray, zero_point: int = 0) -> tvm.IRModule:
    def body(writer, params):
        qdq = Qdq(writer, "uint8")
        x = qdq.dequantize("x", params["x_q"], (0.1, 7))
        w = qdq.weight("w", weight, scale, zero_point, axis=1)
        return qdq.quantize("y", writer.emit("mm", relax.op.matmul(x, w)), (0.2, 9), is_output=True)

    return graph({"x_q": ((3, weight.shape[0]), "uint8")}, body)


def test_quantize_info_says_all_a_code_generator_needs():
    scale = np.array([0.5, 0.25, 0.125], np.float32)
    partition = integer_regions(matmul_module(weight=np.ones((4, 3), np.int8), scale=scale), CPU)
    info = partition.module["octavo_matmul_y_q"].attrs["quantize_info"]
    assert info["input"]["id"] == "x_q"
    assert (info["input"]["scale"], info["input"]["zero_point"]) == (float(np.float32(0.1)), 7)
    assert list(info["weight"]["scale"]) == scale.tolist()
    assert info["weight"]["axis"] == 1
    assert info["weight"]["id"] == "w"
    assert (info["output"]["id"], info["output"]["qmin"], info["output"]["qmax"]) == ("y_q", 0, 255)
    assert info["bias"]["dtype"] == "int32"


@pytest.mark.parametrize(
    ("support", "reason"),
    [
        (None, "target tiny has no integer matmul"),
        (OpSupport(op="matmul", activations=("int8",), weights=("int8",)), "x_q is uint8; the target allows int8"),
        (OpSupport(op="matmul", weights=("int4",)), "weight w is int8; the target allows int4"),
        (OpSupport(op="matmul", weights=("int8",), weight_granularity=("per_tensor",)), "per axis"),
        (OpSupport(op="matmul", weights=("int8",), weight_schemes=("symmetric",)), "asymmetric"),
    ],
)
def test_the_target_description_decides(support, reason):
    ops = (OpSupport(op="quantize"), OpSupport(op="dequantize"), *(() if support is None else (support,)))
    target = TargetDescription(name="tiny", ops=ops)
    module = matmul_module(
        weight=np.ones((4, 3), np.int8),
        scale=np.array([0.5, 0.25, 0.125], np.float32),
        zero_point=1 if reason == "asymmetric" else 0,
    )
    assert reason in integer_regions(module, target).rejections["mm"].reason


def test_a_value_read_inside_and_outside_keeps_the_op_float():
    def body(writer, params):
        qdq = Qdq(writer, "uint8")
        x = qdq.dequantize("x", params["x_q"], (0.1, 7))
        total = writer.emit("total", relax.op.add(x, x))
        y = qdq.quantize("y", total, (0.2, 9), is_output=True)
        return relax.Tuple([y, writer.emit("s", relax.op.sigmoid(total), is_output=True)])

    partition = integer_regions(graph({"x_q": ((3, 4), "uint8")}, body), CPU)
    assert "read by 2 ops" in partition.rejections["total"].reason
    assert "octavo_add_y_q" not in partition.regions


def test_a_weight_shared_by_two_layers_serves_both():
    def body(writer, params):
        qdq = Qdq(writer, "uint8")
        w = qdq.weight("w", np.arange(16, dtype=np.int8).reshape(4, 4), np.full(4, 0.5), axis=0)
        moved = writer.emit("wt", relax.op.permute_dims(w, [1, 0]))
        x = qdq.dequantize("x", params["x_q"], (0.1, 7))
        one = qdq.quantize("one", writer.emit("mm1", relax.op.matmul(x, moved)), (0.2, 9))
        again = qdq.dequantize("one", one, (0.2, 9))
        return qdq.quantize("two", writer.emit("mm2", relax.op.matmul(again, moved)), (0.3, 1), is_output=True)

    partition = integer_regions(graph({"x_q": ((3, 4), "uint8")}, body), CPU)
    assert set(partition.regions) == {"octavo_matmul_one_q", "octavo_matmul_two_q"}


def test_quantize_info_names_tensors_by_their_ids():
    """t, t_q and t_dq are one tensor of the source, and so are a quantized input and the variable that holds it."""
    module = matmul_module(weight=np.ones((4, 3), np.int8), scale=np.ones(3, np.float32))
    info = integer_regions(module, CPU, ids={"x_q", "mm", "w"}).module["octavo_matmul_y_q"].attrs["quantize_info"]
    assert (info["input"]["id"], info["weight"]["id"], info["output"]["id"]) == ("x_q", "w", "mm")


def test_a_weight_bound_to_a_variable_comes_along():
    def body(writer, params):
        qdq = Qdq(writer, "uint8")
        values = writer.emit("values", relax.const(np.ones((4, 3), np.int8)))
        scale = relax.const(np.float32(0.5))
        w = writer.emit("w", relax.op.dequantize(values, scale, relax.const(np.int32(0))))
        x = qdq.dequantize("x", params["x_q"], (0.1, 7))
        return qdq.quantize("y", writer.emit("mm", relax.op.matmul(x, w)), (0.2, 9), is_output=True)

    partition = integer_regions(graph({"x_q": ((3, 4), "uint8")}, body), CPU)
    assert set(partition.regions) == {"octavo_matmul_y_q"}
    assert relax.analysis.well_formed(partition.module) is None
