"""What `quantize` does where a few roundings ruin a model: other ranges, or activations that stay float."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

import octavo
from apply_steps import with_steps
from nets import mlp, model_of
from octavo.compiler.target_choice import resolve_target
from octavo.errors import QuantizationError
from octavo.ir.graph.dataflow import BodyWriter
from octavo.ir.identity import TensorId
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.quantizer.ranges import range_of
from octavo.quantizer.referee import Referee, RoundedProgram
from octavo.quantizer.steps import Correct, FloatTensors, KeepFloat, keep_float, ranges
from octavo.quantizer.steps.per_row import PerRow

PLAIN = octavo.Recipe(bias_correction=False, weight_rounding="nearest", min_sqnr=None)


def spectrum_net(rng: np.random.Generator) -> octavo.Model:
    """What speech goes through: power of a spectrum, its logarithm, and layers behind."""

    def body(writer: BodyWriter, **v: Any) -> Any:
        spectrum = writer.emit("spectrum", relax.op.matmul(v["x"], v["dft"]))
        power = writer.emit("power", relax.op.multiply(spectrum, spectrum))
        bands = writer.emit("bands", relax.op.matmul(power, v["mel"]))
        loud = writer.emit("loud", relax.op.log(writer.emit("_floor", relax.op.maximum(bands, relax.const(1e-6, "float32")))))
        value = loud
        for number in range(3):
            value = writer.emit(f"d{number}", relax.op.matmul(value, v[f"w{number}"]))
            value = writer.emit(f"r{number}", relax.op.nn.relu(value))
        pooled = writer.emit("pooled", relax.op.mean(value, axis=[1]))
        return writer.emit("y", relax.op.matmul(pooled, v["head"]), is_output=True)

    angles = np.outer(np.arange(64), np.arange(32)) * np.pi / 32
    params = {"dft": np.cos(angles), "mel": rng.uniform(size=(32, 16)) ** 4, "head": rng.normal(size=(16, 5)) / 4}
    params |= {f"w{number}": rng.normal(size=(16, 16)) / 4 for number in range(3)}
    return model_of(
        {"x": ((1, 8, 64), "float32")}, {name: value.astype(np.float32) for name, value in params.items()}, body, ("y",)
    )


def sounds(rng: np.random.Generator, count: int = 24) -> list[np.ndarray]:
    """Noise from very quiet to loud."""
    return [
        (10 ** rng.uniform(-3, 0, (1, 8, 1)) * rng.normal(size=(1, 8, 64)).cumsum(axis=2) / 8).astype(np.float32)
        for _ in range(count)
    ]


def outputs(model: octavo.Model, samples: list[np.ndarray]) -> np.ndarray:
    """Return what a model gives, sample by sample."""
    run = octavo.compile(model)
    return np.concatenate([next(iter(run(sample).values())) for sample in samples])


def test_a_range_for_few_samples_is_none_for_all(rng: np.random.Generator) -> None:
    """What only the last sample has counts, though effects are measured on the others."""
    model = mlp(rng)
    samples = [rng.normal(size=(1, 16)).astype(np.float32) / 8 for _ in range(16)]
    samples[-1] *= 80
    plan = octavo.quantize(model, octavo.profile(model, samples), recipe=PLAIN).plan
    given = [[sample] for sample in samples]
    ends = []
    for each in (given[:8], given):
        referee = Referee(RoundedProgram(model, [plan], resolve_target(None)), each)
        ends.append(ranges.better_ranges(plan, referee).get(TensorId("h")))
    assert ends[0] is not None, "the range of all samples is too wide for the first"
    assert ends[0][1] < range_of(plan.activations[TensorId("h")])[1] / 3
    assert ends[1] is None or ends[1][1] > 1.5 * ends[0][1]


def test_what_costs_nothing_keeps_its_range(rng: np.random.Generator) -> None:
    """A model that gives zeros whatever it reads."""
    model = mlp(rng)
    plan = octavo.quantize(model, octavo.profile(model, [rng.normal(size=(1, 16)).astype(np.float32)]), recipe=PLAIN).plan
    assert ranges.costly(plan, dict.fromkeys(plan.activations, 0.0)) == []
    assert ranges.costly(plan, dict.fromkeys(plan.activations, 1.0))


def test_what_rounding_ruins_stays_float(rng: np.random.Generator, tmp_path: Path) -> None:
    model, samples, unseen = spectrum_net(rng), sounds(rng), sounds(rng)
    profile = octavo.profile(model, samples, keep_samples=24)
    kept = KeepFloat(goal_db=18.0, below_db=21.0)
    whatever, quantized = (with_steps(model, profile, steps) for steps in ([Correct()], [kept, Correct()]))
    expected = outputs(model, unseen)
    before, after = (sqnr_db(expected, outputs(each, unseen)) for each in (whatever, quantized))
    assert before < 10
    assert after > 18
    floats = {str(op.tensor): op.reason for op in quantized.plan.float_ops}
    assert "leaves" in floats["bands"]
    integers = {str(layer.output) for layer in quantized.plan.layers}
    assert {"r1", "r2", "y"} <= integers, "what rounding does not hurt is integer"
    assert len(integers) > len(floats) - 4

    quantized.plan.save(tmp_path / "plan.json")
    again = octavo.quantize(model, plan=tmp_path / "plan.json")
    assert again.fingerprint == quantized.fingerprint


def test_float_is_worth_its_time_the_less_the_more_outputs_have(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs below what they must have take what gains; above it the same gain must be sure, and make up for the time."""
    model, samples, unseen = spectrum_net(rng), sounds(rng), sounds(rng)
    profile, expected = octavo.profile(model, samples, keep_samples=24), outputs(model, unseen)
    plain, free = (with_steps(model, profile, steps) for steps in ([], [KeepFloat(goal_db=18.0, below_db=21.0)]))
    before, after = (sqnr_db(expected, outputs(each, unseen)) for each in (plain, free))
    assert before < 10
    assert after > before + 3
    assert "leaves" in {str(op.tensor): op.reason for op in free.plan.float_ops}["bands"]
    assert {str(layer.output) for layer in free.plan.layers} >= {"r1", "r2"}, "what gains nothing is integer"
    enough = [KeepFloat(goal_db=0.0, below_db=21.0)]
    assert with_steps(model, profile, enough).plan.float_ops != plain.plan.float_ops
    for demands in (("_SURE",), ("_PRICE", "_MAX_PRICE_DB")):
        with monkeypatch.context() as patch:
            for each in demands:
                patch.setattr(keep_float, each, 1e4)
            assert with_steps(model, profile, enough).plan.float_ops == plain.plan.float_ops


def test_outputs_that_have_what_they_must_gain_also_beyond_near_enough() -> None:
    """A small decoder at 37 dB comes to 52 for little time, and its tokens with it; below 18 dB nobody pays for more than 40."""
    step, (poor, fair, near, nearer, nearest) = (
        KeepFloat(goal_db=18.0, below_db=21.0),
        (10 ** (-db / 10) for db in (15, 37, 40, 52, 80)),
    )
    assert step._gain(fair, nearer, 0.0) == pytest.approx(step._gain(fair, near, 0.0) + 12)
    assert step._gain(fair, nearest, 0.0) == pytest.approx(step._gain(fair, nearer, 0.0) + 8)
    assert step._gain(poor, nearest, 0.0) == step._gain(poor, near, 0.0)


def test_what_costs_little_time_is_tried_before_what_costs_much() -> None:
    """Of equal effects; what nothing else makes up for is tried where outputs have too little."""
    cheap = [keep_float._Group(names=(TensorId(f"c{place}"),), effect=1e-4, ops=((TensorId("c"), 0.001),)) for place in range(6)]
    dear = keep_float._Group(names=(TensorId("dear"),), effect=5e-4, ops=((TensorId("d"), 1.0),))
    others = [
        keep_float._Group(names=(TensorId(f"o{place}"),), effect=1e-7, ops=((TensorId(f"o{place}"), 0.001),))
        for place in range(7)
    ]
    step, groups = KeepFloat(goal_db=18.0, below_db=21.0), [dear, *cheap, *others]
    first = step._chosen(groups, own=1.2e-3, of_weights=1e-4, few=False)[0]
    assert {*cheap} <= {*first.groups}
    assert dear not in first.groups
    assert first.left == pytest.approx(6e-4, rel=0.01)
    assert first.time == pytest.approx(0.001), "an op is float once"

    many = [replace(each, effect=each.effect * 100) for each in groups]
    first = step._chosen(many, own=0.12, of_weights=1e-3, few=False)[0]
    assert {each.names for each in first.groups} >= {each.names for each in (dear, *cheap)}
    assert step._chosen([], own=0.1, of_weights=0.0, few=False) == []


def test_few_that_cost_most_are_tried_where_errors_do_not_add_up() -> None:
    """What picks the best boxes picks others for one rounding as for three: none alone is expected to bring outputs to 18 dB."""
    effects = {"both": (0.26, 0.4), "best": (0.07, 0.02), "product": (0.07, 0.2), "x": (0.05, 0.7), "convolved": (0.007, 0.7)}
    groups = [
        keep_float._Group(names=(TensorId(name),), effect=effect, ops=((TensorId(name), time),))
        for name, (effect, time) in effects.items()
    ]
    more = [keep_float._Group(names=(TensorId(f"o{place}"),), effect=1e-6, ops=()) for place in range(5)]
    trials = KeepFloat(goal_db=18.0, below_db=21.0)._chosen([*groups, *more], own=0.27, of_weights=0.016, few=True)
    tried = [{name for group in each.groups for name in group.names} & effects.keys() for each in trials]
    assert {"both", "best", "product"} in tried, "the convolutions stay integer"
    assert max(map(len, tried)) > 3


def test_rows_that_are_too_coarse_stay_float(rng: np.random.Generator) -> None:
    """A range of its own for each row of a spectrum leaves quiet bands of loud rows nothing."""
    model, samples, unseen = spectrum_net(rng), sounds(rng), sounds(rng)
    profile, expected = octavo.profile(model, samples, keep_samples=24), outputs(model, unseen)
    rows, kept = (with_steps(model, profile, [PerRow(), *more]) for more in ([], [KeepFloat(goal_db=18.0, below_db=21.0)]))
    before, after = (sqnr_db(expected, outputs(each, unseen)) for each in (rows, kept))
    assert before < 12
    assert after > 18
    read = {str(name) for layer in rows.plan.layers for name in layer.per_row}
    floats = read - {str(name) for layer in kept.plan.layers for name in layer.inputs}
    assert floats
    assert read - floats >= {"r0", "r1"}, "the others are still integers"
    assert any("which stays float: rounding it to 8 bits" in op.reason for op in kept.plan.float_ops)

    named = FloatTensors(names=(TensorId(min(floats)),), reasons=("",))
    one = with_steps(model, profile, [PerRow(), named])
    assert min(floats) not in {str(name) for layer in one.plan.layers for name in layer.inputs}


@pytest.mark.parametrize("has_branch", [False, True])
@pytest.mark.parametrize(("size", "is_float"), [(20.0, False), (2000.0, True)])
def test_the_only_product_that_counts_stays_integer_unless_outputs_are_useless_then(
    rng: np.random.Generator, size: float, is_float: bool, has_branch: bool
) -> None:
    """It reads large values that cancel out: their rounding is less than what is left, or more.

    A branch ends in weights of zeros, as untrained ones do.
    """

    def body(writer: BodyWriter, **v: Any) -> Any:
        own = writer.emit("own", relax.op.matmul(v["x"], v["w"]))
        if not has_branch:
            return writer.emit("y", relax.op.nn.relu(own), is_output=True)
        branch = writer.emit("h", relax.op.nn.relu(writer.emit("g", relax.op.matmul(v["x"], v["u"]))))
        return writer.emit("y", relax.op.add(own, writer.emit("z", relax.op.matmul(branch, v["v"]))), is_output=True)

    weights = {"w": np.repeat(rng.normal(size=(2, 8)), 2, axis=0)}
    weights |= {"u": rng.normal(size=(4, 16)), "v": np.zeros((16, 8))} if has_branch else {}
    model = model_of({"x": ((1, 4), "float32")}, {name: each.astype(np.float32) for name, each in weights.items()}, body, ("y",))
    large, left = rng.uniform(-size, size, (8, 2)), rng.normal(size=(8, 2))
    samples = [*np.stack([large, left - large], axis=2).reshape(8, 1, 4).astype(np.float32)]
    profile = octavo.profile(model, samples, keep_samples=8)
    plan = with_steps(model, profile, [KeepFloat(goal_db=30.0, below_db=33.0)]).plan
    assert ("w" not in plan.weights) == is_float


def test_ranges_that_ruin_a_model_are_others(rng: np.random.Generator) -> None:
    """A percentile that cuts what counts: the samples tell."""
    model = mlp(rng)
    samples = [rng.normal(size=(1, 16)).astype(np.float32) for _ in range(24)]
    profile = octavo.profile(model, samples, keep_samples=24)
    recipe, found = octavo.Recipe(range_estimator="percentile:60"), ranges.TuneRanges(below_db=20.0)
    cut, mended = (with_steps(model, profile, steps, recipe=recipe) for steps in ([Correct()], [found, Correct()]))
    expected = outputs(model, samples)
    assert sqnr_db(expected, outputs(cut, samples)) < 15
    assert sqnr_db(expected, outputs(mended, samples)) > 20
    said = {str(each.tensor): each.message for each in mended.plan.adjustments}
    assert "it costs the model's outputs least" in said["h"]
    assert {str(layer.output) for layer in mended.plan.layers} == {"h", "y"}, "nothing had to stay float"


def test_tensors_that_a_recipe_keeps_float(rng: np.random.Generator) -> None:
    model = mlp(rng)
    profile = octavo.profile(model, [rng.normal(size=(1, 16)).astype(np.float32)])
    [kept] = [model.tensors[TensorId("h")].source_name]
    plan = octavo.quantize(model, profile, recipe=octavo.Recipe(float_tensors=(kept,))).plan
    assert "h" not in plan.activations
    [first] = plan.layers
    assert (first.inputs, first.output) == (("x",), "h"), "a product can end in float"
    assert "it reads h, which stays float: the recipe says so" in {op.reason for op in plan.float_ops}
    with pytest.raises(QuantizationError, match="recipe: float_tensors: the model has no tensor 'hh'; did you mean 'h'"):
        octavo.quantize(model, profile, recipe=octavo.Recipe(float_tensors=("hh",)))


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "18", True])
def test_a_ratio_that_is_none(value: Any) -> None:
    with pytest.raises(QuantizationError, match="recipe: min_sqnr must be a number of dB, 0 or more, or None"):
        octavo.Recipe(min_sqnr=value)
