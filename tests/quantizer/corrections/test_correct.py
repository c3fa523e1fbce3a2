"""Corrections through `octavo.quantize`: what they do to layers, who asks for them, and that a plan keeps them."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import octavo
from apply_steps import with_steps
from integer_results import INTEGER_RESULTS
from machine_isas import each_isa
from nets import model_of
from octavo.cli.main import main
from octavo.compiler.backends.cpu.kernels import AVX2
from octavo.errors import ProfileError, QuantizationError
from octavo.ir.graph.dataflow import BodyWriter, DataflowView
from octavo.ir.graph.weighted_sums import products_of
from octavo.ir.identity import TensorId
from octavo.numerics import dequantize
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.numerics.statistics.ranges import symmetric_params
from octavo.profiling import samples_of as samples_of_profile
from octavo.quantizer.choices import Choices
from octavo.quantizer.corrections import correct, weights
from octavo.quantizer.corrections.weights import Inputs, rounded_weights
from octavo.quantizer.plan.plan import QuantizedModel
from octavo.quantizer.programs import Programs
from octavo.quantizer.quantize_graph import planner_of
from octavo.quantizer.steps import Correct, Equalize
from octavo.quantizer.steps.per_row import PerRow
from octavo.quantizer.tune import planned_plainly

PLAIN = octavo.Recipe(bias_correction=False, weight_rounding="nearest")


def depthwise_net(rng: np.random.Generator) -> octavo.Model:
    """conv, clip, depthwise, relu, conv with a residual, mean, dense: weights of few inputs whose rounding moves means."""
    shapes = {
        "w1": (8, 3, 3, 3),
        "b1": (8,),
        "w2": (8, 1, 3, 3),
        "b2": (8,),
        "w3": (8, 8, 1, 1),
        "b3": (8,),
        "w4": (8, 5),
        "b4": (5,),
    }
    params = {name: rng.normal(size=shape).astype(np.float32) / (3 if name[0] == "w" else 1) for name, shape in shapes.items()}
    params["w2"] += np.float32(0.7)

    def body(writer: BodyWriter, **v: Any) -> Any:
        def biased(name: str, value: Any, bias: str) -> Any:
            shaped = writer.emit(f"_{name}_bias", relax.op.reshape(v[bias], (1, -1, 1, 1)))
            return writer.emit(name, relax.op.add(writer.emit(f"_{name}", value), shaped))

        c1 = writer.emit("r1", relax.op.clip(biased("c1", relax.op.nn.conv2d(v["x"], v["w1"], padding=1), "b1"), 0, 6))
        c2 = writer.emit("r2", relax.op.nn.relu(biased("c2", relax.op.nn.conv2d(c1, v["w2"], padding=1, groups=8), "b2")))
        c3 = writer.emit("s3", relax.op.add(biased("c3", relax.op.nn.conv2d(c2, v["w3"]), "b3"), c1))
        pooled = writer.emit("pooled", relax.op.mean(c3, axis=[2, 3]))
        return writer.emit("y", relax.op.add(writer.emit("_y", relax.op.matmul(pooled, v["w4"])), v["b4"]), is_output=True)

    return model_of({"x": ((1, 3, 9, 9), "float32")}, params, body, ("y",))


def samples_of(rng: np.random.Generator, count: int = 24) -> list[np.ndarray]:
    """Pictures whose neighbouring pixels are alike."""
    found: list[np.ndarray] = []
    for _ in range(count):
        steps = rng.normal(size=(1, 3, 9, 9)) * rng.uniform(0.2, 1)
        found.append((rng.normal() + steps.cumsum(axis=2).cumsum(axis=3) / 4).astype(np.float32))
    return found


def outputs(executable: octavo.Executable, samples: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([next(iter(executable(x).values())) for x in samples])


@dataclass(frozen=True, slots=True, eq=False)
class Corrected:
    """A model, its profile, and what becomes of it with all that the default recipe corrects."""

    model: octavo.Model
    samples: list[np.ndarray]
    profile: octavo.Profile
    quantized: QuantizedModel


@pytest.fixture(scope="module")
def corrected() -> Corrected:
    rng = np.random.default_rng(2)
    model, samples = depthwise_net(rng), samples_of(rng)
    profile = octavo.profile(model, samples, keep_samples=64)
    return Corrected(model, samples, profile, with_steps(model, profile))


def test_outputs_are_right_on_average_and_nearer_to_the_float_ones(rng: np.random.Generator, corrected: Corrected) -> None:
    model, samples, profile, both = corrected.model, corrected.samples, corrected.profile, corrected.quantized
    exact = octavo.compile(model)
    real = outputs(exact, samples)
    plain = octavo.quantize(model, profile, recipe=PLAIN)
    biases = with_steps(model, profile, recipe=octavo.Recipe(weight_rounding="nearest"))
    assert not plain.plan.corrections
    assert biases.plan.corrections.bias_shifts.keys() == {layer.output for layer in biases.plan.layers if layer.bias}
    assert not biases.plan.corrections.weight_values
    assert both.plan.corrections.weight_values.keys() == {TensorId(name) for name in ("w1", "w2", "w3", "w4")}
    executables = [octavo.compile(each) for each in (plain, biases, both)]
    before, after, best = (outputs(each, samples) for each in executables)
    off = np.abs((before - real).mean(axis=0))
    # A bias is a whole number of units, and outputs are rounded, too: something is left.
    assert np.abs((after - real).mean(axis=0)).max() < 0.4 * off.max()
    assert np.abs((best - real).mean(axis=0)).max() < 0.4 * off.max()
    unseen = samples_of(rng)
    reference = outputs(exact, unseen)
    decibels = [sqnr_db(reference, outputs(each, unseen)) for each in executables]
    assert decibels[0] < min(decibels[1:])
    # With 16 bits for activations what is left is the weights' noise.
    wide = [
        with_steps(model, profile, recipe=octavo.Recipe(activation_dtype="int16", weight_rounding=rounding))
        for rounding in ("nearest", "gram")
    ]
    nearest, rounded = (sqnr_db(reference, outputs(octavo.compile(each), unseen)) for each in wide)
    assert nearest < rounded


def coarse_net(rng: np.random.Generator) -> octavo.Model:
    """Two products; between them channels that are much alike, and one so much wider that the others have few steps."""
    widths = np.array([40.0, *[1.0] * 11])
    params = {
        "w1": ((1 + 0.2 * rng.normal(size=(3, 12))) * widths).astype(np.float32),
        "b1": rng.normal(size=12).astype(np.float32),
        "w2": (rng.normal(size=(12, 4)) / widths[:, None]).astype(np.float32),
        "b2": rng.normal(size=4).astype(np.float32),
    }

    def body(writer: BodyWriter, **v: Any) -> Any:
        first = writer.emit("h", relax.op.add(writer.emit("_h", relax.op.matmul(v["x"], v["w1"])), v["b1"]))
        return writer.emit("y", relax.op.add(writer.emit("_y", relax.op.matmul(first, v["w2"])), v["b2"]), is_output=True)

    return model_of({"x": ((16, 3), "float32")}, params, body, ("y",))


def test_weights_make_up_for_what_the_layers_before_them_rounded(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = coarse_net(rng)
    samples, unseen = ([rng.normal(size=(16, 3)).astype(np.float32) for _ in range(64)] for _ in range(2))
    profile, recipe = octavo.profile(model, samples, keep_samples=64), octavo.Recipe(equalization="none", min_sqnr=None)
    unbiased = replace(recipe, bias_correction=False)
    found, blind = (with_steps(model, profile, recipe=each) for each in (recipe, unbiased))
    monkeypatch.setattr("octavo.quantizer.corrections.correct._MAX_BYTES", 0)
    plain, blind_again = (with_steps(model, profile, recipe=each) for each in (recipe, unbiased))
    reference = outputs(octavo.compile(model), unseen)
    first, second = (sqnr_db(reference, outputs(octavo.compile(each), unseen)) for each in (found, plain))
    assert first > second + 2
    # Other weights move means: where no bias brings these back they are those that the layer's own rounding asks for.
    for name, values in blind.plan.corrections.weight_values.items():
        assert np.array_equal(values, blind_again.plan.corrections.weight_values[name])


def test_they_do_not_depend_on_order_or_threads_and_are_in_the_fingerprint(corrected: Corrected) -> None:
    model, samples, profile = corrected.model, corrected.samples, corrected.profile
    other = octavo.profile(model, samples[::-1], keep_samples=64, threads=2)
    plain = octavo.quantize(model, octavo.profile(model, samples, keep_samples=0))
    for quantize in (with_steps, octavo.quantize):
        first, again = quantize(model, profile), quantize(model, other)
        assert first.plan.corrections
        assert first.plan.corrections == again.plan.corrections
        assert first.fingerprint == again.fingerprint != plain.fingerprint
        assert all(np.array_equal(first.params[key], again.params[key]) for key in first.params)


@pytest.mark.parametrize("isa", each_isa([AVX2]))
def test_layers_of_fewer_products_are_corrected_as_everywhere_else(
    isa: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = {"w1": rng.normal(size=(128, 3, 3, 3)) / 3, "b1": rng.normal(size=128), "w2": rng.normal(size=(128, 128, 1, 1)) / 9}
    params |= {"b2": rng.normal(size=128), "w3": rng.normal(size=(128, 128, 1, 1)) / 9, "b3": rng.normal(size=128)}

    def body(writer: BodyWriter, x: Any, **v: Any) -> Any:
        for number in range(1, 4):
            made = writer.emit(f"_c{number}", relax.op.nn.conv2d(x, v[f"w{number}"], padding=int(number == 1)))
            bias = writer.emit(f"_b{number}", relax.op.reshape(v[f"b{number}"], (1, -1, 1, 1)))
            x = writer.emit(f"r{number}", relax.op.nn.relu(writer.emit(f"s{number}", relax.op.add(made, bias))))
        return writer.emit("y", relax.op.mean(x, axis=[2, 3]), is_output=True)

    arrays = {name: values.astype(np.float32) for name, values in params.items()}
    model = model_of({"x": ((1, 3, 28, 28), "float32")}, arrays, body, ("y",))
    samples = [rng.normal(size=(1, 3, 28, 28)).astype(np.float32).cumsum(axis=2) for _ in range(4)]
    profile = octavo.profile(model, samples, keep_samples=4)
    found = []
    for name in (isa, "generic"):
        monkeypatch.setenv("OCTAVO_TARGET", name)
        found.append(with_steps(model, profile))
    kernels = [op.kernel for op in octavo.explain(found[0], target=isa).ops]
    assert sum(".strassen" in str(kernel) for kernel in kernels) == 2
    assert found[0].plan.corrections.weight_values
    assert found[0].fingerprint == found[1].fingerprint
    assert all(np.array_equal(found[0].params[key], found[1].params[key]) for key in found[0].params)


def test_what_comes_before_all_that_differs_is_corrected_once(corrected: Corrected, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans with other ranges of the first, a middle and the last activation, each behind a plan without."""
    planner = planner_of(corrected.model, corrected.profile, None, octavo.Recipe())
    plain = planned_plainly(planner, None)
    samples = samples_of_profile(corrected.model, corrected.profile)
    program = Programs.of_model(corrected.model).of(plain.plan)
    names, rounded = [], weights.rounded_weights

    def counted(product: Any, *others: Any, **options: Any) -> Any:
        names.append(product.weight)
        return rounded(product, *others, **options)

    monkeypatch.setattr(correct, "rounded_weights", counted)
    known = correct.Corrector(program, samples)
    known.corrections(plain.plan)
    assert len(names) == 4
    for tensor, anew in {"x": 4, "r1": 3, "pooled": 1, "y": 0}.items():
        ends = {TensorId(tensor): (-0.7, 1.9)}
        plan = planner.planned(plain.choices.with_more(Choices(ranges=ends))).plan
        names.clear()
        found = known.corrections(plan)
        assert len(names) == anew, tensor
        expected = correct.Corrector(program, samples).corrections(plan)
        assert found == expected
        assert [*found.weight_values] == [*expected.weight_values]


def test_clipped_ranges_move_no_bias(corrected: Corrected) -> None:
    """Biases are those of ranges that hold all, whatever ranges the model gets."""
    model, profile = corrected.model, corrected.profile
    wide, narrow = (
        with_steps(model, profile, recipe=octavo.Recipe(range_estimator=name, min_sqnr=None))
        for name in ("min_max", "percentile:90")
    )
    assert wide.plan.corrections == narrow.plan.corrections
    assert wide.plan.activations != narrow.plan.activations


@pytest.mark.parametrize(("dtype", "target"), [(None, None), ("int8", INTEGER_RESULTS), ("int16", None)])
def test_a_plan_s_file_keeps_them(corrected: Corrected, tmp_path: Path, dtype: Any, target: Any) -> None:
    model, profile = corrected.model, corrected.profile
    options = {} if target is None else {"target": target}
    quantized = with_steps(model, profile, recipe=octavo.Recipe(activation_dtype=dtype), **options)
    assert quantized.plan.corrections
    quantized.plan.save(tmp_path / "plan.json")
    again = octavo.quantize(model, plan=tmp_path / "plan.json", **options)
    assert again.fingerprint == quantized.fingerprint
    assert all(np.array_equal(again.params[key], quantized.params[key]) for key in quantized.params)


def test_a_weight_that_gets_other_parameters_is_rounded_to_nearest(corrected: Corrected) -> None:
    model, plan = corrected.model, corrected.quantized.plan
    name = TensorId("w1")
    wider = replace(plan.weights[name], scale=plan.weights[name].scale * 2)
    edited = octavo.quantize(model, plan=plan.with_params({name: wider}))
    assert name not in edited.plan.corrections.weight_values
    assert TensorId("w2") in edited.plan.corrections.weight_values
    expected = np.clip(np.rint(model.params[name] / wider.scale.reshape(-1, 1, 1, 1)), -127, 127)
    assert np.array_equal(edited.plan.weight_values[name], expected)


WRONG = {
    "scale": (lambda data: data["weights"]["w1"]["scale"].__setitem__(0, 0.5), "rounded for other parameters than it has"),
    "length": (lambda data: data["weight_values"]["w1"].update(shape=[8, 3, 3, 2]), "data has 216 bytes, expected 144"),
    "text": (lambda data: data["weight_values"]["w1"].update(data="!"), "data is no base64"),
    "weight": (lambda data: data["weight_values"].update(w9=data["weight_values"]["w1"]), "w9 is no weight of the plan"),
    "dtype": (lambda data: data["weight_values"]["w1"].update(dtype="int64"), "dtype must be one of int8"),
    "shift": (lambda data: data["bias_shifts"]["r1"].__setitem__(0, "x"), "bias_shifts: r1 must be a float32 number"),
    "size": (lambda data: data["bias_shifts"].update(r1=[1.0]), "r1 has 8 channels, got 1 numbers"),
    "layer": (lambda data: data["bias_shifts"].update(c9=[1.0]), "c9 is the output of no layer"),
    "shape": (lambda data: data["weight_values"]["w1"].update(shape=[216]), "w1 has the shape (8, 3, 3, 3), got (216,)"),
}


@pytest.fixture(scope="module")
def saved(corrected: Corrected, tmp_path_factory: pytest.TempPathFactory) -> tuple[octavo.Model, str]:
    """A model, and the text of its plan's file."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    corrected.quantized.plan.save(path)
    return corrected.model, path.read_text()


@pytest.mark.parametrize("fault", WRONG)
def test_what_is_wrong_in_a_file_is_named(saved: tuple[octavo.Model, str], tmp_path: Path, fault: str) -> None:
    model, text = saved
    path, data = tmp_path / "plan.json", json.loads(text)
    edit, said = WRONG[fault]
    edit(data)
    path.write_text(json.dumps(data))
    with pytest.raises(QuantizationError) as caught:
        octavo.quantize(model, plan=path)
    assert said in str(caught.value)


def test_samples_of_another_shape_are_refused(corrected: Corrected) -> None:
    wrong = replace(corrected.profile, kept_samples=((np.zeros((1, 3, 9, 8), np.float32),),))
    with pytest.raises(ProfileError, match="the samples that the profile keeps do not fit the model"):
        octavo.quantize(corrected.model, wrong)


@pytest.mark.parametrize("op", [relax.op.argsort, relax.op.nonzero])
def test_a_model_that_runs_on_the_virtual_machine_alone(op: Any, rng: np.random.Generator) -> None:
    """It is quantized without steps where it cannot be scored: an order is, by what it sorts."""

    def body(writer: BodyWriter, x: relax.Var, w: relax.Var, b: relax.Var) -> Any:
        product = writer.emit("y", relax.op.add(writer.emit("p", relax.op.matmul(x, w)), b))
        return writer.emit("z", op(product), is_output=True)

    params = {"w": rng.normal(size=(6, 4)).astype(np.float32), "b": rng.normal(size=4).astype(np.float32)}
    model = model_of({"x": ((3, 6), "float32")}, params, body, ("z",))
    samples = [rng.normal(size=(3, 6)).astype(np.float32) for _ in range(6)]
    recipe = octavo.Recipe(min_sqnr=None)  # so little may as well stay float
    plan = octavo.quantize(model, octavo.profile(model, samples, keep_samples=6), recipe=recipe).plan
    assert [layer.op for layer in plan.layers] == ["matmul"]
    assert not plan.corrections
    assert bool(plan.journal.entries) == (op is relax.op.argsort)


def test_the_command_says_what_was_corrected_and_leaves_it_out_when_asked(
    rng: np.random.Generator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weight, bias = rng.normal(size=(4, 3, 3, 3)).astype(np.float32), rng.normal(size=4).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[1, 1, 1, 1])
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size, 6, 6]) for name, size in (("x", 3), ("y", 4))]
    initializers = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")]
    graph = helper.make_graph([node], "net", values[:1], values[1:], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=rng.normal(2, 1, size=(24, 3, 6, 6)).astype(np.float32))
    names = {name: str(tmp_path / name) for name in ("m.onnx", "x.npz", "p.json", "q.onnx")}
    assert main(["profile", names["m.onnx"], "--data", names["x.npz"], "-o", names["p.json"]]) == 0
    capsys.readouterr()
    command = ["quantize", names["m.onnx"], "--profile", names["p.json"], "-o", names["q.onnx"]]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "correct kept: outputs" in said
    assert "above their error on 8 samples held back" in said
    assert main([*command, "--no-corrections"]) == 0
    assert "corrected" not in capsys.readouterr().out


def dense_net(rng: np.random.Generator, width: np.ndarray) -> octavo.Model:
    """Three dense layers, two with biases, a clamp between the last two; channels there are as wide as `width` says."""
    sizes = {"w1": (16, 24), "w2": (24, 24), "b2": (24,), "w3": (24, 7), "b3": (7,)}
    params = {name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    params = {**params, "w2": params["w2"] * width, "b2": params["b2"] * width, "w3": params["w3"] / width[:, np.newaxis]}

    def body(writer: BodyWriter, **v: Any) -> Any:
        first = writer.emit("first", relax.op.matmul(v["x"], v["w1"]))
        sums = writer.emit("_h", relax.op.add(writer.emit("_2", relax.op.matmul(first, v["w2"])), v["b2"]))
        product = writer.emit("_3", relax.op.matmul(writer.emit("h", relax.op.nn.relu(sums)), v["w3"]))
        return writer.emit("y", relax.op.add(product, v["b3"]), is_output=True)

    return model_of({"x": ((2, 5, 16), "float32")}, params, body, ("y",))


@pytest.mark.parametrize("is_equalized", [False, True])
def test_layers_that_quantize_rows_when_run(rng: np.random.Generator, tmp_path: Path, is_equalized: bool) -> None:
    """Rows have no scale in common, and biases are float32: weights and biases are corrected as elsewhere."""
    model = dense_net(rng, (10 ** rng.uniform(-1, 1, 24)).astype(np.float32) if is_equalized else np.ones(24, np.float32))
    drawn = rng.normal(size=(48, 2, 5, 16)) * 10 ** rng.uniform(-1, 0.5, (48, 2, 5, 1))
    samples, unseen = (list(each) for each in np.split((drawn @ rng.normal(size=(16, 16))).astype(np.float32), 2))
    profile, recipe = octavo.profile(model, samples, keep_samples=64), octavo.Recipe(weight_bits=4)
    steps: list[Any] = [PerRow(), *(Equalize.of(recipe) if is_equalized else [])]
    plain = with_steps(model, profile, steps, recipe=recipe)
    both = with_steps(model, profile, [*steps, Correct()], recipe=recipe)
    assert all(layer.per_row for layer in both.plan.layers)
    assert bool(both.plan.equalization) == is_equalized
    found = both.plan.corrections
    assert found.weight_values.keys() == {"w1", "w2", "w3"}
    assert found.bias_shifts.keys() == {"h", "y"}
    exact = outputs(octavo.compile(model), unseen)
    before, after = (sqnr_db(exact, outputs(octavo.compile(each), unseen)) for each in (plain, both))
    assert after > before + 3
    both.plan.save(tmp_path / "plan.json")
    assert octavo.quantize(model, plan=tmp_path / "plan.json").fingerprint == both.fingerprint


def test_weights_without_a_bias_behind_them_move_means_least(rng: np.random.Generator) -> None:
    """Inputs that all are near 50 hide in their covariances how far off results are on average."""

    def body(writer: BodyWriter, **v: Any) -> Any:
        return writer.emit("y", relax.op.matmul(v["x"], v["w"]), is_output=True)

    weight = rng.normal(size=(24, 16)).astype(np.float32)
    model = model_of({"x": ((200, 24), "float32")}, {"w": weight}, body, ("y",))
    [product] = products_of(model, DataflowView(model.module["main"])).values()
    values = [np.rint(50 + 3 * rng.normal(size=(200, 24))).astype(np.float32) for _ in range(3)]
    inputs = Inputs(values=values, factors=np.ones(1, np.float32), unit=np.ones((), np.float32))
    params = symmetric_params(weight, "int8", axis=1)

    def moved(*, has_bias: bool) -> float:
        found = rounded_weights(product, weight, params, inputs, has_bias=has_bias)
        assert found is not None
        return float(np.square(np.mean(values, axis=(0, 1)) @ (dequantize(*found) - weight)).mean())

    assert moved(has_bias=False) < moved(has_bias=True) / 5
