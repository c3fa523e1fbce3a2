"""Constants that the graph computes: known before quantizing, so that weights among them become integers."""

from __future__ import annotations

import numpy as np
from tvm import relax

from nets import model_of
from octavo.ir.graph.dataflow import BodyWriter, DataflowView, call_to, op_name
from octavo.ir.simplify import simplify
from tvm_alone import tvm_alone


def test_weights_that_are_split_and_scaled_are_weights(rng: np.random.Generator) -> None:
    def body(writer: BodyWriter, x: relax.Var, w: relax.Var, gain: relax.Var) -> relax.Expr:
        parts = writer.emit("_parts", relax.op.split(w, 2, axis=0))
        first = writer.emit("_first", relax.TupleGetItem(parts, 0))
        scaled = writer.emit("scaled", relax.op.multiply(first, gain))
        turned = writer.emit("_turned", relax.op.permute_dims(scaled))
        return writer.emit("y", relax.op.matmul(x, turned), is_output=True)

    values = {"w": rng.standard_normal((6, 4)).astype(np.float32), "gain": np.float32([1.5])}
    model = model_of({"x": ((2, 4), "float32")}, values, body, ("y",))
    simple, _ = simplify(model)
    np.testing.assert_array_equal(simple.params["_turned"], (values["w"][:3] * np.float32(1.5)).T)
    assert [op_name(binding.value) for binding in DataflowView(simple.module["main"]).bindings] == ["matmul"]
    x = rng.standard_normal((2, 4)).astype(np.float32)
    np.testing.assert_allclose(tvm_alone(simple.bound())(x)[0], tvm_alone(model.bound())(x)[0], rtol=1e-6)


def test_weights_in_the_text_are_parameters_once(rng: np.random.Generator) -> None:
    literal = relax.const(rng.standard_normal((4, 4)).astype(np.float32))

    def body(writer: BodyWriter, x: relax.Var) -> relax.Expr:
        hidden = writer.emit("hidden", relax.op.matmul(x, literal))
        return writer.emit("y", relax.op.matmul(hidden, literal), is_output=True)

    simple, _ = simplify(model_of({"x": ((2, 4), "float32")}, {}, body, ("y",)))
    calls = [call_to(binding.value, "matmul") for binding in DataflowView(simple.module["main"]).bindings]
    assert [call is not None and call.args[1].name for call in calls] == [*simple.params] * 2


def test_what_only_changes_layout_stays_as_it_is() -> None:
    def body(writer: BodyWriter, x: relax.Var, w: relax.Var) -> relax.Expr:
        turned = writer.emit("_turned", relax.op.permute_dims(w))
        return writer.emit("y", relax.op.matmul(x, turned), is_output=True)

    model = model_of({"x": ((2, 4), "float32")}, {"w": np.ones((3, 4), np.float32)}, body, ("y",))
    assert simplify(model)[0] is model
