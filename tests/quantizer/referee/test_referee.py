"""The referee's score of a plan is the compiled model's own error, whatever the plan equalizes, rounds or leaves float."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import octavo
from nets import model_of, residual_net
from octavo.compiler.target_choice import resolve_target
from octavo.errors import QuantizationError
from octavo.ir.graph.dataflow import BodyWriter, DataflowView
from octavo.ir.identity import TensorId
from octavo.ir.simplify import simplify
from octavo.quantizer.choices import Choices
from octavo.quantizer.plan import IntegerLayer
from octavo.quantizer.quantize_graph import quantize_graph
from octavo.quantizer.referee import Referee, RoundedProgram, sqnr_by_result
from octavo.quantizer.referee.rounding import RowSteps
from random_nets import random_net

TARGET = resolve_target(None)
PLAIN = octavo.Recipe(bias_correction=False, weight_rounding="nearest", equalization="none", min_sqnr=None)


def drawn(model: octavo.Model, rng: np.random.Generator, count: int = 8) -> list[np.ndarray]:
    shape = [int(size) for size in model.module["main"].params[0].ty.shape]
    return [rng.normal(size=shape).astype(np.float32) for _ in range(count)]


def own_error(model: octavo.Model, quantized: octavo.QuantizedModel, samples: list[list[np.ndarray]]) -> float:
    """Return what the compiled integer model's worst output has, in dB."""
    simple = simplify(model)[0]  # weights that a file keeps in integers are products of floats there
    floats, found = ([[*run(*each).values()] for each in samples] for run in map(octavo.compile, (simple, quantized)))
    by_result = sqnr_by_result(DataflowView(simple.module["main"]), floats, found)
    return min(each for each in by_result if each is not None)


def referee_of(model: octavo.Model, plan: Any, samples: list[list[np.ndarray]]) -> Referee:
    return Referee(RoundedProgram(simplify(model)[0], [plan], TARGET), samples)


@pytest.mark.parametrize("seed", [5, 9])
def test_scores_are_the_compiled_models_errors(seed: int, rng: np.random.Generator) -> None:
    """Random networks; what kernels round otherwise than the float program is a tie now and then."""
    model = random_net(seed)
    samples = drawn(model, rng)
    profile = octavo.profile(model, samples, keep_samples=8)
    plain, default = quantize_graph(model, profile), octavo.quantize(model, profile)
    given = [[sample] for sample in samples]
    referee = referee_of(model, plain.plan, given)
    for quantized in (plain, default):
        assert referee.score(quantized.plan).sqnr_db == pytest.approx(own_error(model, quantized, given), abs=0.05)


def convolutions(rng: np.random.Generator, *, spread: float = 0.0, bias: str = "b{}") -> octavo.Model:
    """Two convolutions, the channels between them unlike by up to as many powers of ten."""

    def body(writer: BodyWriter, **v: Any) -> Any:
        value: Any = v["x"]
        for number in range(2):
            raw = writer.emit(f"_c{number}", relax.op.nn.conv2d(value, v[f"w{number}"], padding=1))
            shaped = writer.emit(f"_b{number}", relax.op.reshape(v[bias.format(number)], (1, -1, 1, 1)))
            value = writer.emit(f"s{number}", relax.op.add(raw, shaped))
            value = writer.emit(f"r{number}", relax.op.nn.relu(value), is_output=number == 1)
        return value

    widths = 10 ** rng.uniform(-spread, 0, (8, 1, 1, 1))
    params = {"w0": rng.normal(size=(8, 4, 3, 3)) * widths, "w1": rng.normal(size=(8, 8, 3, 3)) / widths.reshape(1, 8, 1, 1)}
    params |= {bias.format(number): rng.normal(size=8) * widths.reshape(8) for number in range(2)}
    return model_of(
        {"x": ((1, 4, 6, 6), "float32")}, {name: value.astype(np.float32) for name, value in params.items()}, body, ("r1",)
    )


def test_an_equalized_plan_is_scored_by_the_program_of_the_model_as_it_was(rng: np.random.Generator) -> None:
    model = convolutions(rng, spread=3)
    samples = drawn(model, rng)
    profile = octavo.profile(model, samples, keep_samples=8)
    plain, default = octavo.quantize(model, profile, recipe=PLAIN), octavo.quantize(model, profile)
    assert default.plan.equalization.factors
    given = [[sample] for sample in samples]
    referee = referee_of(model, plain.plan, given)
    scores = {}
    for name, quantized in (("plain", plain), ("default", default)):
        scores[name] = referee.score(quantized.plan)
        assert scores[name].sqnr_db == pytest.approx(own_error(model, quantized, given), abs=0.05)
    gain = scores["default"].gain_over(scores["plain"])
    assert gain.db > 5
    assert gain.is_certain(errors=3)


def test_what_equalization_adds_to_the_model_is_not_rounded(rng: np.random.Generator) -> None:
    model = convolutions(rng, spread=3)
    samples = drawn(model, rng)
    plan = octavo.quantize(model, octavo.profile(model, samples, keep_samples=8)).plan
    scaled_function = IntegerLayer(op="elementwise", output=TensorId("r0_function"), inputs=(TensorId("s0"),))
    more = replace(
        plan,
        activations={**plan.activations, scaled_function.output: plan.activations[TensorId("r0")]},
        layers=(*plan.layers, scaled_function),
    )
    referee = referee_of(model, more, [[sample] for sample in samples])
    assert referee.score(more).sqnr_db == referee.score(plan).sqnr_db


def test_a_bias_that_two_layers_read_is_each_one_s_own(rng: np.random.Generator) -> None:
    """A shift of one layer's bias alone, as large as it takes to be seen: the score is that of the model with it."""
    model = convolutions(rng, bias="b")
    samples = drawn(model, rng)
    plan = octavo.quantize(model, octavo.profile(model, samples), recipe=PLAIN).plan
    first, last = plan.layers
    assert first.bias != last.bias
    given = [[sample] for sample in samples]
    referee = referee_of(model, plan, given)
    found = []
    for layer in (first, last):
        assert layer.bias is not None
        values = plan.weight_values[layer.bias]
        room = int(1 / plan.biases[layer.bias].scale.max())
        shifted = replace(plan, weight_values={**plan.weight_values, layer.bias: values + room})
        found.append(referee.score(shifted).sqnr_db)
    assert referee.score(plan).sqnr_db > max(found) + 3
    assert found[0] != pytest.approx(found[1], abs=0.1)


def test_a_float_op_reads_what_a_float_op_made_unrounded(rng: np.random.Generator) -> None:
    """erf stays float; a dense layer reads what it gives rounded, and the result, float too, as it is."""

    def body(writer: BodyWriter, **v: Any) -> Any:
        smooth = writer.emit("e", relax.op.erf(v["x"]))
        dense = writer.emit("d", relax.op.matmul(smooth, v["w"]))
        return relax.Tuple([writer.emit("y", relax.op.erf(smooth), is_output=True), writer.emit("z", dense, is_output=True)])

    model = model_of({"x": ((1, 16), "float32")}, {"w": rng.normal(size=(16, 8)).astype(np.float32)}, body, ("y", "z"))
    samples = drawn(model, rng)
    quantized = octavo.quantize(model, octavo.profile(model, samples), recipe=replace(PLAIN, exclude=("e", "y")))
    assert "e" in quantized.plan.activations
    score = referee_of(model, quantized.plan, [[sample] for sample in samples]).score(quantized.plan)
    assert score.errors[0].max() == 0
    assert score.errors[1].min() > 0


def rows_apart(rng: np.random.Generator) -> octavo.Model:
    """Two dense layers of one input, an attention-like product of theirs, a float op of one, and a dense layer of the product."""

    def body(writer: BodyWriter, **v: Any) -> Any:
        q, k = (writer.emit(name, relax.op.matmul(v["x"], v[f"w{name}"])) for name in "qk")
        turned = writer.emit("t", relax.op.permute_dims(k, [0, 2, 1]))
        scores = writer.emit("s", relax.op.matmul(q, turned))
        smooth = writer.emit("e", relax.op.erf(q), is_output=True)
        return relax.Tuple([writer.emit("y", relax.op.matmul(scores, v["wo"]), is_output=True), smooth])

    sizes = {"wq": (16, 8), "wk": (16, 8), "wo": (5, 12)}
    params = {name: (0.1 * rng.normal(size=size)).astype(np.float32) for name, size in sizes.items()}
    return model_of({"x": ((2, 5, 16), "float32")}, params, body, ("y", "e"))


@pytest.mark.parametrize("names", [("q",), ("q", "k"), ("y",), ("q", "k", "y"), ("s",), ("q", "k", "s", "y")])
def test_inputs_that_are_quantized_per_row_when_run(names: tuple[str, ...], rng: np.random.Generator) -> None:
    """A layer leaves float32, which a float op reads as it is and an integer op rounded; one reads an input that others round."""
    model = rows_apart(rng)
    samples = [each * 10 ** rng.uniform(-1, 1, (2, 5, 1)).astype(np.float32) for each in drawn(model, rng)]
    profile = octavo.profile(model, samples)
    static = octavo.quantize(model, profile, recipe=PLAIN)
    rows = quantize_graph(model, profile, recipe=PLAIN, changes=Choices(per_row={TensorId(name): "" for name in names}))
    assert {layer.output for layer in rows.plan.layers if layer.per_row} == set(names)
    given = [[sample] for sample in samples]
    referee = referee_of(model, static.plan, given)
    assert referee.score(rows.plan).sqnr_db == pytest.approx(own_error(model, rows, given), abs=0.05)
    assert not np.array_equal(referee.score(rows.plan).errors, referee.score(static.plan).errors)


def test_an_equalized_input_is_divided_before_its_rows_are_quantized(rng: np.random.Generator) -> None:
    x = (rng.normal(size=(6, 4)) * 10 ** rng.uniform(-2, 2, (6, 1))).astype(np.float32)
    factors = np.array([[1, 8, 0.5, 2]], np.float32)
    plain, divided = RowSteps(), RowSteps(factors=factors)
    tensor = tvm.runtime.tensor(x / factors)
    expected = np.from_dlpack(plain.rounded(tensor)) * factors
    np.testing.assert_array_equal(np.from_dlpack(divided.rounded(tvm.runtime.tensor(x))), expected)
    turned = np.from_dlpack(divided.transposed((1, 0)).rounded(tvm.runtime.tensor(np.ascontiguousarray(x.T))))
    np.testing.assert_array_equal(turned, expected.T)


def test_a_float_result_whose_kernel_brings_it_into_the_source_s_layout(rng: np.random.Generator) -> None:
    def body(writer: BodyWriter, **v: Any) -> Any:
        made = writer.emit("c", relax.op.nn.conv2d(v["x"], v["w"]))
        pooled = writer.emit("m", relax.op.mean(made, axis=[2, 3], keepdims=True))
        sums = writer.emit("y", relax.op.add(v["a"], pooled), is_output=True)
        return relax.Tuple([writer.emit("r", relax.op.nn.relu(made), is_output=True), sums])

    params = {"w": rng.normal(size=(8, 4, 3, 3)).astype(np.float32), "a": rng.normal(size=(1, 8, 1, 1)).astype(np.float32)}
    model = model_of({"x": ((1, 4, 6, 6), "float32")}, params, body, ("r", "y"))
    samples = drawn(model, rng)
    quantized = octavo.quantize(model, octavo.profile(model, samples), recipe=replace(PLAIN, exclude=("m", "y")))
    given = [[sample] for sample in samples]
    found = referee_of(model, quantized.plan, given).score(quantized.plan).sqnr_db
    assert found == pytest.approx(own_error(model, quantized, given), abs=0.05)


def test_a_plan_that_rounds_what_the_program_does_not_name(rng: np.random.Generator) -> None:
    model = residual_net()
    samples = drawn(model, rng)
    profile = octavo.profile(model, samples)
    all_integer = octavo.quantize(model, profile, recipe=PLAIN).plan
    less = octavo.quantize(model, profile, recipe=replace(PLAIN, exclude=("r2", "r3"))).plan
    gone = all_integer.activations.keys() - less.activations.keys()
    assert gone
    given = [[sample] for sample in samples]
    assert referee_of(model, all_integer, given).score(less).errors.size
    with pytest.raises(ValueError, match="is none of the tensors that this program can round"):
        referee_of(model, less, given).score(all_integer)


@pytest.mark.parametrize("places", ["argmax", "argmin"])
def test_a_result_of_integers_is_scored_by_the_reals_that_it_is_chosen_by(places: str, rng: np.random.Generator) -> None:
    """Each share of a plan's error would be 0 else, and no step would gain."""
    weight = rng.normal(size=(8, 3, 1, 1)).astype(np.float32)

    def model(*, chosen: bool) -> octavo.Model:
        def body(writer: BodyWriter, x: Any, w: Any) -> Any:
            made = writer.emit("made", relax.op.nn.conv2d(x, w), is_output=not chosen)
            if not chosen:
                return made
            place = writer.emit("place", getattr(relax.op, places)(made, axis=1))
            return writer.emit("y", relax.op.astype(place, "int32"), is_output=True)

        return model_of({"x": ((1, 3, 8, 8), "float32")}, {"w": weight}, body, ("y" if chosen else "made",))

    samples = drawn(model(chosen=False), rng)
    scores = []
    for each in (model(chosen=False), model(chosen=True)):
        plan = quantize_graph(each, octavo.profile(each, samples), recipe=PLAIN).plan
        scores.append(referee_of(each, plan, [[sample] for sample in samples]).score(plan).sqnr_db)
    assert scores[0] == scores[1] < 60


def test_any_number_of_threads_gives_the_same_score(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    model = residual_net()
    samples = drawn(model, rng)
    plan = octavo.quantize(model, octavo.profile(model, samples), recipe=PLAIN).plan
    given = [[sample] for sample in samples]
    found: list[bytes] = []
    for least in (math.inf, 0):
        monkeypatch.setattr("octavo.quantizer.sample_threads._LEAST", least)
        found.append(referee_of(model, plan, given).score(plan).errors.tobytes())
    assert found[0] == found[1]


def test_what_is_kept_of_the_float_model_changes_no_score(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    model = convolutions(rng)
    samples = drawn(model, rng)
    plan = quantize_graph(model, octavo.profile(model, samples), recipe=PLAIN).plan
    found: list[Any] = []
    for few, every in ((2**28, 2**28), (2**28, 0), (0, 0)):
        monkeypatch.setattr("octavo.quantizer.referee.referee._KEPT_BYTES", few)
        monkeypatch.setattr("octavo.quantizer.referee.referee._KEPT_OF_ALL", every)
        referee = referee_of(model, plan, [[sample] for sample in samples])
        rounding = referee.rounding(plan)
        found += [(referee.effects(rounding), referee.layer_effects(rounding, rounding.layers), referee.effects(rounding))]
        assert bool(referee._kept) == bool(few or every)
    assert found[0] == found[1] == found[2]
    assert found[0][0] == found[0][2]


def test_values_that_are_not_finite_are_an_infinite_error(rng: np.random.Generator) -> None:
    model = residual_net()
    samples = drawn(model, rng)
    plan = octavo.quantize(model, octavo.profile(model, samples), recipe=PLAIN).plan
    referee = referee_of(model, plan, [[sample] for sample in samples])
    name = next(reversed(plan.weights))  # what it gives stays float: no integer bounds it
    huge = replace(plan.weights[name], scale=np.full_like(plan.weights[name].scale, 3e38))
    assert referee.score(replace(plan, weights={**plan.weights, name: huge})).sqnr_db == -math.inf


def test_without_samples_nothing_can_be_scored() -> None:
    model = residual_net()
    plan = octavo.quantize(model, octavo.profile(model, [np.ones((1, 3, 8, 8), np.float32)]), recipe=PLAIN).plan
    with pytest.raises(QuantizationError, match="keep_samples"):
        referee_of(model, plan, [])


def test_scores_of_a_real_network_are_within_a_tenth_of_a_db(shared: Path) -> None:
    model = octavo.load(shared / "models/tflite/dscnn_kws_fp32.tflite")
    feeds = [
        (each[None].astype(np.float32) - 83) * np.float32(0.5847029) for each in np.load(shared / "data/kws/kws.npz")["x"][:24]
    ]
    profile = octavo.profile(model, feeds, keep_samples=24)
    plain, default = octavo.quantize(model, profile, recipe=PLAIN), octavo.quantize(model, profile)
    given = [[feed] for feed in feeds[:16]]
    referee = referee_of(model, plain.plan, given)
    for quantized in (plain, default):
        assert referee.score(quantized.plan).sqnr_db == pytest.approx(own_error(model, quantized, given), abs=0.1)
