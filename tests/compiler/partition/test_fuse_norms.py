"""Normalizations in steps become the one op that they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

from octavo.compiler.backends.cpu.kernels import isas_of
from octavo.compiler.partition.fuse_norms import fuse_norms
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU
from qdq_graph import Qdq, graph, lower, run_float, run_lowered

op: Any = relax.op
ISAS = isas_of(host_target())
rng = np.random.default_rng(3)
GAMMA, BETA = (rng.normal(0, 1, 24).astype(np.float32) for _ in range(2))


@I.ir_module
class Before:
    @R.function
    def main(x: R.Tensor((2, 3), "float32"), z: R.Tensor((1, 4, 2, 2), "float32")):
        with R.dataflow():
            m = R.mean(x, axis=[-1], keepdims=True)
            d = R.subtract(x, m)
            v = R.mean(R.multiply(d, d), axis=[-1], keepdims=True)
            q = R.divide(d, R.sqrt(R.add(v, R.const(0.5, "float32"))))
            y = R.add(R.multiply(q, R.const([1.0, 2.0, 3.0], "float32")), R.const([4.0, 5.0, 6.0], "float32"))
            r = R.reshape(z, (1, 2, 8))
            g = R.nn.group_norm(
                r, R.const([2.0, 1.0], "float32"), R.const([0.0, 1.0], "float32"), 2, channel_axis=1, axes=[2], epsilon=0.5
            )
            b = R.reshape(g, (1, 4, 2, 2))
            w = R.multiply(b, R.const([[[1.0]], [[2.0]], [[3.0]], [[4.0]]], "float32"))
            R.output(y, w)
        return (y, w)


@I.ir_module
class Expected:
    @R.function
    def main(x: R.Tensor((2, 3), "float32"), z: R.Tensor((1, 4, 2, 2), "float32")):
        with R.dataflow():
            y = R.nn.layer_norm(
                x, R.const([1.0, 2.0, 3.0], "float32"), R.const([4.0, 5.0, 6.0], "float32"), axes=[-1], epsilon=0.5
            )
            w = R.nn.group_norm(
                z,
                R.const([2.0, 4.0, 3.0, 4.0], "float32"),
                R.const([0.0, 0.0, 3.0, 4.0], "float32"),
                2,
                channel_axis=1,
                axes=[2, 3],
                epsilon=0.5,
            )
            R.output(y, w)
        return (y, w)


def test_steps_become_one_op() -> None:
    module = relax.transform.Normalize()(Before)
    assert_structural_equal(fuse_norms(module), relax.transform.Normalize()(Expected))


def layer_norm_in_steps(*, square: str = "power", read: str = "", axis: int = -1, quantized: bool = True):
    """A layer normalization of (2, 24, 24); `read` is the step that is a result of the module, too."""

    def body(writer, params):
        qdq, made = Qdq(writer, "int8"), {}

        def step(name: str, value: Any) -> Any:
            made[name] = writer.emit(name, value, is_output=name == read)
            return made[name]

        x = qdq.dequantize("x", params["x"], (0.05, -20)) if quantized else params["x"]
        d = step("d", op.subtract(x, step("m", op.mean(x, [axis], keepdims=True))))
        squares = {"power": op.power(d, relax.const(np.float32(2))), "multiply": op.multiply(d, d), "square": op.square(d)}
        v = step("v", op.mean(step("s", squares[square]), [axis], keepdims=True))
        q = step("q", op.divide(d, step("root", op.sqrt(step("e", op.add(v, relax.const(np.float32(1e-5))))))))
        y = step("y", op.add(step("g", op.multiply(q, relax.const(GAMMA))), relax.const(BETA)))
        result = qdq.quantize("y", y, (0.04, 3), is_output=True) if quantized else writer.emit("z", op.exp(y), is_output=True)
        return relax.Tuple([result, made[read]]) if read else result

    return graph({"x": ((2, 24, 24), "int8" if quantized else "float32")}, body)


def check_is_one_integer_op(module: tvm.IRModule) -> None:
    (record,) = lower(module, CPU, ISAS, 1, {"y"}).records
    assert (record.op, record.tensor, record.integer) == ("layer_norm", "y", True)
    x = np.random.default_rng(0).integers(-128, 128, (2, 24, 24)).astype(np.int8)
    difference = np.abs(run_lowered(module, x).astype(int) - run_float(module, x).astype(int))
    assert difference.max() <= 1
    assert np.mean(difference > 0) < 0.01


@pytest.mark.parametrize("square", ["power", "multiply", "square"])
def test_between_quantized_tensors_it_is_one_integer_op(square: str) -> None:
    check_is_one_integer_op(layer_norm_in_steps(square=square))


def test_of_floats_it_has_a_kernel_too() -> None:
    module = layer_norm_in_steps(quantized=False)
    assert "float.layer_norm" in [record.kernel for record in lower(module, CPU, ISAS, 1).records]
    x = np.random.default_rng(0).normal(0, 1, (2, 24, 24)).astype(np.float32)
    np.testing.assert_allclose(run_lowered(module, x), run_float(module, x), rtol=1e-5)


def norm_of_form(form: str, *, quantized: bool = True):
    """The steps of Flax's norms, which take the variance as a difference of means, or of Keras's, a line in x."""

    def body(writer, params):
        qdq, emit = Qdq(writer, "int8"), writer.emit
        x = qdq.dequantize("x", params["x"], (0.05, -20)) if quantized else params["x"]
        ends = [relax.const(each.reshape(1, 1, 24) if form == "flax" else each) for each in (GAMMA, BETA)]
        if form == "flax":
            share = relax.const(np.float32(1 / 24))
            m = emit("m", op.multiply(emit("total", op.sum(x, [2])), share))
            squares = emit("squares", op.multiply(emit("total2", op.sum(emit("s", op.multiply(x, x)), [2])), share))
            v = emit("v", op.subtract(squares, emit("square", op.multiply(m, m))))
            v = emit("least", op.maximum(relax.const(np.float32(0)), v))
            v, m = (emit(f"{name}_row", op.reshape(each, (2, 24, 1))) for name, each in (("v", v), ("m", m)))
        else:
            m = emit("m", op.mean(x, [2], keepdims=True))
            v = emit("v", op.mean(emit("s", op.square(emit("d", op.subtract(x, m)))), [2], keepdims=True))
        e = emit("e", op.add(v, relax.const(np.float32(1e-5))))
        r = op.rsqrt(e) if form == "keras" else op.divide(relax.const(np.float32(1)), emit("root", op.sqrt(e)))
        g = emit("g", op.multiply(emit("r", r), ends[0]))
        if form == "flax":
            y = op.add(emit("scaled", op.multiply(emit("d", op.subtract(x, m)), g)), ends[1])
        else:
            shift = emit("shift", op.subtract(ends[1], emit("moved", op.multiply(m, g))))
            y = op.add(emit("scaled", op.multiply(x, g)), shift)
        return qdq.quantize("y", emit("y", y), (0.04, 3), is_output=True)

    return graph({"x": ((2, 24, 24), "int8" if quantized else "float32")}, body)


@pytest.mark.parametrize("form", ["flax", "keras"])
def test_other_forms_of_it(form: str) -> None:
    check_is_one_integer_op(norm_of_form(form))


@pytest.mark.parametrize("case", [{"read": "d"}, {"read": "root"}, {"read": "g"}, {"axis": 1}])
def test_what_stays_in_steps(case: dict[str, Any]) -> None:
    module = layer_norm_in_steps(**case)
    assert fuse_norms(module).same_as(module)
