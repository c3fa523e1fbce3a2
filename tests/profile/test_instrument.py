"""Instrumenting: every float tensor of the source is observed, and the model computes what it did."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from nets import compiled, model_of, residual_net
from octavo.errors import ModelError
from octavo.graph.dataflow import BodyWriter
from octavo.profile import instrument


def test_every_float_tensor_is_observed_once_and_helpers_are_not() -> None:
    instrumented = instrument(residual_net())
    names = [str(item.tensor) for item in instrumented.observations]
    assert names == ["x", "c1", "r1", "c2", "r2", "c3", "s", "r3", "m", "f", "y", "p"]
    axes = {str(item.tensor): (item.channel_axis, item.channels, item.size) for item in instrumented.observations}
    assert axes["x"] == (1, 3, 192)
    assert axes["y"] == (1, 10, 10)


def test_outputs_are_bit_for_bit_those_of_the_model() -> None:
    model = residual_net()
    instrumented = instrument(model)
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    results = compiled(instrumented.module)([x])
    assert len(results) == instrumented.output_count + len(instrumented.observations)
    np.testing.assert_array_equal(results[0], compiled(model.bound())([x])[0])


def test_channels_last_graphs_are_observed_along_their_last_axis() -> None:
    weight = np.ones((1, 1, 3, 5), np.float32)

    def body(writer: BodyWriter, x: relax.Var, w: relax.Var) -> relax.Expr:
        conv = relax.op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO")
        return writer.emit("y", conv, is_output=True)

    instrumented = instrument(model_of({"x": ((1, 4, 4, 3), "float32")}, {"w": weight}, body, ("y",)))
    assert [(item.channel_axis, item.channels) for item in instrumented.observations] == [(3, 3), (3, 5)]


def test_half_precision_is_observed_and_integers_are_not() -> None:
    def body(writer: BodyWriter, x: relax.Var, i: relax.Var) -> relax.Expr:
        doubled = writer.emit("h", relax.op.add(x, x), is_output=True)
        shifted = writer.emit("j", relax.op.add(i, i), is_output=True)
        return relax.Tuple([doubled, shifted])

    model = model_of({"x": ((2, 3), "float16"), "i": ((2, 3), "int32")}, {}, body, ("h", "j"))
    instrumented = instrument(model)
    assert [str(item.tensor) for item in instrumented.observations] == ["x", "h"]
    assert instrumented.output_count == 2
    results = compiled(instrumented.module)([np.full((2, 3), 1.5, np.float16), np.ones((2, 3), np.int32)])
    np.testing.assert_array_equal(results[0], np.full((2, 3), 3, np.float16))
    np.testing.assert_array_equal(results[1], np.full((2, 3), 2))


def test_a_symbolic_shape_is_refused_with_its_tensor() -> None:
    batch = tvm.tirx.Var("batch", "int64")

    def body(writer: BodyWriter, x: relax.Var) -> relax.Expr:
        return writer.emit("y", relax.op.nn.relu(x), is_output=True)

    with pytest.raises(ModelError, match=r"net/x:0 has a symbolic shape"):
        instrument(model_of({"x": ((batch, 3), "float32")}, {}, body, ("y",)))
