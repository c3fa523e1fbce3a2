"""Folding: the simplified model computes what the model computed, with fewer ops and the ids that still mean something."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from nets import model_of
from octavo.ir.graph import Model
from octavo.ir.graph.dataflow import BodyWriter, DataflowView, op_name
from octavo.ir.identity import TensorId
from octavo.ir.simplify import Fold, simplify
from open_decoder import decoder
from tvm_alone import tvm_alone


def positive(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.random(shape) + 0.5).astype(np.float32)


def ops(model: Model) -> list[str]:
    return [op_name(binding.value) for binding in DataflowView(model.module["main"]).bindings]


def assert_same_function(rng: np.random.Generator, model: Model, simple: Model, *shape: int) -> None:
    x = rng.standard_normal(shape).astype(np.float32)
    for old, new in zip(tvm_alone(model.bound())(x), tvm_alone(simple.bound())(x), strict=True):
        np.testing.assert_allclose(new, old, rtol=0, atol=2e-5)


def normalized(rng: np.random.Generator, layout: str, *, bias: bool, shared: bool = False) -> Model:
    """y = batch_norm(conv(x) + bias); a second reader of the conv where `shared`."""
    axis = layout.index("C")
    shape = (1, 6, 6, 3) if layout == "NHWC" else (1, 3, 6, 6)
    params = {"w": rng.standard_normal((3, 3, 3, 4) if layout == "NHWC" else (4, 3, 3, 3)).astype(np.float32)}
    params |= {name: positive(rng, 4) for name in ("gamma", "beta", "mean", "variance")}
    if bias:
        params["b"] = positive(rng, 4)

    def body(writer: BodyWriter, x: relax.Var, **p: relax.Var) -> relax.Expr:
        kernel = "HWIO" if layout == "NHWC" else "OIHW"
        c = writer.emit("c", relax.op.nn.conv2d(x, p["w"], data_layout=layout, kernel_layout=kernel))
        if bias:
            shaped = relax.op.reshape(p["b"], tuple(4 if name == "C" else 1 for name in layout))
            c = writer.emit("a", relax.op.add(c, writer.emit("_b", shaped)))
        norm = relax.op.nn.batch_norm(c, p["gamma"], p["beta"], p["mean"], p["variance"], axis, 1e-3, training=False)
        pair = writer.emit("_n", norm)
        y = writer.emit("y", relax.TupleGetItem(pair, 0))
        last = relax.op.add(y, c) if shared else relax.op.nn.relu(y)
        return writer.emit("z", last, is_output=True)

    return model_of({"x": (shape, "float32")}, params, body, ("z",))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("bias", [True, False])
def test_batch_norm_folds_into_the_convolution(rng: np.random.Generator, layout: str, bias: bool) -> None:
    model = normalized(rng, layout, bias=bias)
    simple, folds = simplify(model)
    assert ops(simple) == ["nn.conv2d", "reshape", "add", "nn.relu"]
    name, gone = ("b", "a") if bias else ("beta", "c")
    assert folds == (Fold(op="nn.batch_norm", tensor="y", gone=gone, weight="w", bias=name),)  # type: ignore[arg-type]
    assert set(simple.params) == {"w", name}
    names = [binding.var.name for binding in DataflowView(simple.module["main"]).bindings]
    assert names == ["y_conv", "y_bias", "y", "z"], "the ids of what is gone are not reused"
    shape = (1, 6, 6, 3) if layout == "NHWC" else (1, 3, 6, 6)
    assert_same_function(rng, model, simple, *shape)


def test_a_convolution_that_others_read_keeps_its_batch_norm(rng: np.random.Generator) -> None:
    model = normalized(rng, "NCHW", bias=False, shared=True)
    simple, folds = simplify(model)
    assert folds == ()
    assert simple is model


def test_weights_that_two_convolutions_share_are_not_folded(rng: np.random.Generator) -> None:
    params = {"w": positive(rng, 3, 3, 1, 1)} | {name: positive(rng, 3) for name in ("g", "b", "m", "v")}

    def body(writer: BodyWriter, x: relax.Var, **p: relax.Var) -> relax.Expr:
        c = writer.emit("c", relax.op.nn.conv2d(x, p["w"]))
        pair = writer.emit("_n", relax.op.nn.batch_norm(c, p["g"], p["b"], p["m"], p["v"], 1, training=False))
        y = writer.emit("y", relax.TupleGetItem(pair, 0))
        return writer.emit("z", relax.op.nn.conv2d(y, p["w"]), is_output=True)

    assert simplify(model_of({"x": ((1, 3, 4, 4), "float32")}, params, body, ("z",)))[1] == ()


def test_norms_that_share_their_parameters_get_biases_of_their_own(rng: np.random.Generator) -> None:
    params = {"w": positive(rng, 3, 3, 1, 1), "u": positive(rng, 3, 3, 1, 1)} | {
        name: positive(rng, 3) for name in ("g", "b", "m", "v")
    }

    def body(writer: BodyWriter, x: relax.Var, **p: relax.Var) -> relax.Expr:
        for weight, name in (("w", "y"), ("u", "z")):
            c = writer.emit(f"c{name}", relax.op.nn.conv2d(x, p[weight]))
            pair = writer.emit(f"_{name}", relax.op.nn.batch_norm(c, p["g"], p["b"], p["m"], p["v"], 1, training=False))
            x = writer.emit(name, relax.TupleGetItem(pair, 0), is_output=name == "z")
        return x

    model = model_of({"x": ((1, 3, 4, 4), "float32")}, params, body, ("z",))
    simple, folds = simplify(model)
    assert [fold.bias for fold in folds] == ["y_bias", "z_bias"]
    assert_same_function(rng, model, simple, 1, 3, 4, 4)


def padded(
    rng: np.random.Generator, pad_value: float = 0.0, mode: str = "constant", widths: tuple[int, ...] = (0, 0, 0, 0, 1, 2, 3, 0)
) -> Model:
    def body(writer: BodyWriter, x: relax.Var, w: relax.Var, u: relax.Var) -> relax.Expr:
        p = writer.emit("p", relax.op.nn.pad(x, widths, mode, pad_value))
        y = writer.emit("y", relax.op.nn.conv2d(p, w, padding=(1, 0, 0, 1)), is_output=True)
        z = writer.emit("z", relax.op.nn.conv2d(p, u, strides=2), is_output=True)
        return relax.Tuple([y, z])

    channels = 3 + sum(widths[2:4])
    params = {"w": positive(rng, 2, channels, 2, 2), "u": positive(rng, 4, channels, 3, 3)}
    return model_of({"x": ((1, 3, 6, 6), "float32")}, params, body, ("y", "z"))


def test_zero_padding_becomes_the_convolutions_own(rng: np.random.Generator) -> None:
    model = padded(rng)
    simple, folds = simplify(model)
    assert ops(simple) == ["nn.conv2d", "nn.conv2d"]
    assert folds == (Fold(op="nn.pad", tensor="x", gone="p", padding=(1, 3, 2, 0)),)  # type: ignore[arg-type]
    pads = [[int(pad) for pad in item.value.attrs.padding] for item in DataflowView(simple.module["main"]).bindings]
    assert pads == [[2, 3, 2, 1], [1, 3, 2, 0]]
    assert_same_function(rng, model, simple, 1, 3, 6, 6)


@pytest.mark.parametrize(
    "form", [{"pad_value": 1.0}, {"mode": "reflect", "widths": (0, 0, 0, 0, 1, 2, 3, 0)}, {"widths": (0, 0, 1, 0, 1, 1, 1, 1)}]
)
def test_other_padding_stays(rng: np.random.Generator, form: dict[str, Any]) -> None:
    assert simplify(padded(rng, **form))[1] == ()


def test_constants_kept_in_integers_become_float() -> None:
    scale, zero_point = np.array([0.5, 0.25], np.float32), np.array([1, 0], np.int32)
    values = np.array([[1, 2], [3, 4], [-128, 127]], np.int8)

    def body(writer: BodyWriter, x: relax.Var, w: relax.Var) -> relax.Expr:
        f = writer.emit("_f", relax.op.dequantize(w, relax.const(scale), relax.const(zero_point), axis=1))
        return writer.emit("y", relax.op.matmul(x, f), is_output=True)

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((1, 3), "float32"), w: R.Tensor((3, 2), "float32")) -> R.Tensor((1, 2), "float32"):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                y = R.matmul(x, w)
                R.output(y)
            return y

    simple, folds = simplify(model_of({"x": ((1, 3), "float32")}, {"w": values}, body, ("y",)))
    tvm.ir.assert_structural_equal(simple.module["main"], Expected["main"])
    np.testing.assert_array_equal(simple.params[TensorId("w")], (values - zero_point).astype(np.float32) * scale)
    assert folds == ()


def test_integers_of_open_sizes_stay_as_they_are() -> None:
    model = decoder(state="int8")
    assert simplify(model)[0].module is model.module
