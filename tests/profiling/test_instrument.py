"""Instrumenting: every float tensor of the source is observed, and the model computes what it did."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

import octavo
from nets import model_of, residual_net
from octavo.ir.graph import Model
from octavo.ir.graph.dataflow import BodyWriter
from octavo.ir.identity import TensorId
from octavo.numerics.statistics.histogram import Histogram
from octavo.numerics.statistics.observer_state import COUNTS_SIZE, empty_ranges
from octavo.profiling import Instrumented, instrument
from octavo.profiling.profile import profiler


def names(instrumented: Instrumented) -> list[str]:
    return [str(item.tensor) for item in instrumented.observations]


def test_every_float_tensor_is_observed_once_or_follows_from_another() -> None:
    instrumented = instrument(residual_net())
    assert names(instrumented) == ["x", "c1", "c2", "c3", "s", "m", "f", "y", "p"]
    assert [(item.tensor, item.source, item.low, item.high) for item in instrumented.clamped] == [
        ("r1", "c1", 0.0, math.inf),
        ("r2", "c2", 0.0, 6.0),
        ("r3", "s", 0.0, math.inf),
    ]
    axes = {str(item.tensor): (item.channel_axis, item.channels, math.prod(item.shape)) for item in instrumented.observations}
    assert axes["x"] == (1, 3, 192)
    assert axes["y"] == (1, 10, 10)


def test_a_clamp_whose_source_is_not_selected_has_an_observer_of_its_own() -> None:
    instrumented = instrument(residual_net(), lambda entry: str(entry.id) in ("r1", "r2", "c2"))
    assert names(instrumented) == ["r1", "c2"]
    assert [item.tensor for item in instrumented.clamped] == ["r2"]


def outputs(model: Model, x: np.ndarray) -> list[np.ndarray]:
    """Return what the instrumented model computes."""
    instrumented, executable = profiler(model, 1)
    states = [
        state for item in instrumented.observations for state in (empty_ranges(item.channels), np.zeros(COUNTS_SIZE, np.int32))
    ]
    return executable.run_flat([x, *states])


def test_outputs_are_bit_for_bit_those_of_the_model() -> None:
    model = residual_net()
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    np.testing.assert_array_equal(outputs(model, x)[0], next(iter(octavo.compile(model)(x).values())))


def clamps() -> Model:
    """Clamps of every kind: of an input, of each other, with the bounds on one side of zero, and of a value read twice."""

    def body(writer: BodyWriter, x: relax.Var) -> relax.Expr:
        a = writer.emit("a", relax.op.clip(x, -1.5, 0.75))
        b = writer.emit("b", relax.op.nn.relu(a))
        c = writer.emit("c", relax.op.clip(x, 0.5, 2.0))
        d = writer.emit("d", relax.op.clip(x, -2.0, -0.25))
        e = writer.emit("e", relax.op.clip(b, 0.1, 0.3))
        f = writer.emit("f", relax.op.add(c, d))
        return writer.emit("y", relax.op.add(f, e), is_output=True)

    return model_of({"x": ((1, 20, 5, 7), "float32")}, {}, body, ("y",))


def test_what_follows_from_another_tensor_is_what_an_observer_would_see() -> None:
    model, rng = clamps(), np.random.default_rng(1)
    samples = rng.standard_normal((6, 20, 5, 7)).astype(np.float32)
    samples[rng.random(samples.shape) < 0.2] = 0
    everything = octavo.profile(model, samples)
    assert len(instrument(model).observations) == 3
    for name in "abcde":
        alone = octavo.profile(model, samples, tensors=[name])
        assert list(alone) == [name]
        derived, observed = everything[TensorId(name)], alone[TensorId(name)]
        assert derived.histogram == observed.histogram
        assert (derived.zeros, derived.minimum, derived.maximum) == (observed.zeros, observed.minimum, observed.maximum)
        np.testing.assert_array_equal(derived.channel_minimum, observed.channel_minimum)
        np.testing.assert_array_equal(derived.channel_maximum, observed.channel_maximum)
        assert derived.source_name == f"net/{name}:0"


def test_channels_last_graphs_are_observed_along_their_last_axis() -> None:
    weight = np.ones((1, 1, 3, 5), np.float32)

    def body(writer: BodyWriter, x: relax.Var, w: relax.Var) -> relax.Expr:
        conv = relax.op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO")
        return writer.emit("y", conv, is_output=True)

    model = model_of({"x": ((1, 4, 4, 3), "float32")}, {"w": weight}, body, ("y",))
    assert [(item.channel_axis, item.channels) for item in instrument(model).observations] == [(3, 3), (3, 5)]
    x = np.random.default_rng(0).standard_normal((1, 4, 4, 3)).astype(np.float32)
    profile = octavo.profile(model, x)
    np.testing.assert_array_equal(profile[TensorId("x")].channel_minimum, x.min(axis=(0, 1, 2)))
    y = next(iter(octavo.compile(model)(x).values()))
    np.testing.assert_array_equal(profile[TensorId("y")].channel_maximum, y.max(axis=(0, 1, 2)))
    assert profile[TensorId("w")].channel_axis == 3


def test_half_precision_is_observed_and_integers_and_unread_values_are_handled() -> None:
    def body(writer: BodyWriter, x: relax.Var, i: relax.Var) -> relax.Expr:
        doubled = writer.emit("h", relax.op.add(x, x), is_output=True)
        shifted = writer.emit("j", relax.op.add(i, i), is_output=True)
        single = writer.emit("_single", relax.op.astype(x, "float32"))
        writer.emit("unread", relax.op.nn.relu(single))
        return relax.Tuple([doubled, shifted])

    model = model_of({"x": ((2, 3), "float16"), "i": ((2, 3), "int32")}, {}, body, ("h", "j"))
    assert names(instrument(model)) == ["x", "h", "unread"]
    profile = octavo.profile(model, {"x": np.full((2, 3), 1.5, np.float16), "i": np.ones((2, 3), np.int32)})
    assert (profile[TensorId("h")].minimum, profile[TensorId("h")].dtype) == (3.0, "float16")
    assert profile[TensorId("unread")].histogram == Histogram.of(np.full(6, 1.5, np.float32))
