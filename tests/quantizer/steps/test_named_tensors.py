"""An activation with 16 bits: it keeps its range, what must have its width follows, and a target that has none keeps 8."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

import octavo
from apply_steps import with_steps
from nets import model_of
from octavo.ir.graph.dataflow import BodyWriter
from octavo.ir.identity import TensorId
from octavo.quantizer.ranges import range_of
from octavo.quantizer.steps import WidenTensor
from octavo.target import OpSupport, TargetDescription

PLAIN = octavo.Recipe(bias_correction=False, weight_rounding="nearest", equalization="none", min_sqnr=None)
SUM = TensorId("total")


@pytest.fixture(scope="module")
def net() -> tuple[octavo.Model, octavo.Profile]:
    """A dense layer of a sum of what another gives, and that turned."""
    rng = np.random.default_rng(3)

    def body(writer: BodyWriter, **v: Any) -> Any:
        first = writer.emit("first", relax.op.nn.relu(writer.emit("product", relax.op.matmul(v["x"], v["a"]))))
        total = writer.emit("total", relax.op.add(first, writer.emit("turned", relax.op.flip(first, axis=1))))
        return writer.emit("y", relax.op.matmul(total, v["b"]), is_output=True)

    params = {name: rng.normal(size=(16, 16)).astype(np.float32) for name in "ab"}
    model = model_of({"x": ((1, 16), "float32")}, params, body, ("y",))
    return model, octavo.profile(model, [rng.normal(size=(1, 16)).astype(np.float32) for _ in range(8)], keep_samples=8)


def test_it_keeps_its_range_and_what_shares_its_width_follows(net: tuple[octavo.Model, octavo.Profile]) -> None:
    before, after = (with_steps(*net, steps, recipe=PLAIN).plan for steps in ([], [WidenTensor(tensor=SUM)]))
    wide = {name for name, params in after.activations.items() if params.dtype == "int16"}
    assert wide == {SUM, "turned", "first"}
    assert {layer.output for layer in after.layers} == {layer.output for layer in before.layers}
    for name in wide:
        low, high = range_of(before.activations[name])
        assert range_of(after.activations[name])[1] == pytest.approx(max(-low, high), rel=1e-3), "symmetric"


def test_a_target_without_16_bits_keeps_8(net: tuple[octavo.Model, octavo.Profile]) -> None:
    dense = OpSupport(op="matmul", activations=("int8",), weights=("int8",), weight_schemes=("symmetric",))
    ops = (dense, *(OpSupport(op=op, activations=("int8",)) for op in ("add", "flip")))
    target = TargetDescription(name="narrow", ops=ops)
    before, after = (with_steps(*net, steps, recipe=PLAIN, target=target).plan for steps in ([], [WidenTensor(tensor=SUM)]))
    assert SUM in before.activations
    assert after.activations == before.activations
