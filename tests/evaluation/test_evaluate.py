"""`octavo.evaluate`: its figures are those of a NumPy computation on the outputs, its verdict and demands follow from them."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import octavo
from octavo.evaluation import InferenceModel, Port, evaluate, has_scale_to_blame
from octavo.evaluation.advice import by_blame
from octavo.evaluation.layer_errors import LayerError
from octavo.ir.identity import TensorId
from octavo.numerics import QuantParams
from small_file import digits, write_small_net


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, np.ndarray]:
    """A float model, the same quantized, and samples."""
    folder = tmp_path_factory.mktemp("files")
    write_small_net(folder / "m.onnx")
    model, samples = octavo.load(folder / "m.onnx"), digits(0, 12)
    profile = octavo.profile(model, [samples], keep_samples=0)
    octavo.export_onnx(octavo.quantize(model, profile), folder / "m.int8.onnx")
    return folder / "m.onnx", folder / "m.int8.onnx", samples


def results(path: Path, samples: np.ndarray) -> np.ndarray:
    executable = octavo.compile(octavo.load(path))
    return np.concatenate([executable(samples[i : i + 1])["logits"] for i in range(len(samples))])


def db(signal: np.ndarray, error: np.ndarray) -> float:
    return 10 * math.log10(np.square(signal, dtype=np.float64).sum() / np.square(error, dtype=np.float64).sum())


def fixed(values: np.ndarray, *, shape: tuple[int, ...] = (1, 4), params: QuantParams | None = None) -> InferenceModel:
    """Something that gives one row of `values` after the other, whatever it takes."""
    rows = iter(values)
    return InferenceModel(
        label="fixed",
        inputs=(Port(name="x", shape=shape, dtype="float32"),),
        outputs=(Port(name="y", shape=values.shape[1:], dtype=str(values.dtype), params=params),),
        run=lambda arrays: [next(rows)],
    )


def nothing(count: int, shape: tuple[int, ...] = (1, 4)) -> np.ndarray:
    return np.zeros((count, *shape[1:]), np.float32)


def test_figures_are_those_of_numpy(files: tuple[Path, Path, np.ndarray]) -> None:
    path, int8, samples = files
    real, found = results(path, samples), results(int8, samples)
    labels = np.arange(12) % 10
    evaluation = evaluate(path, int8, samples, labels=labels)
    [output] = evaluation.outputs
    assert output.sqnr_db == pytest.approx(db(real, real - found), abs=1e-9)
    assert output.max_abs_error == np.abs(real.astype(np.float64) - found).max()
    cosine = (
        np.vdot(real.astype(np.float64), found)
        / np.linalg.norm(real.astype(np.float64))
        / np.linalg.norm(found.astype(np.float64))
    )
    assert output.cosine == pytest.approx(cosine, abs=1e-12)
    assert output.agreement == np.mean(real.argmax(1) == found.argmax(1))
    first_five = np.argsort(-found, axis=1)[:, :5]
    assert output.top5_agreement == np.mean([row.argmax() in five for row, five in zip(real, first_five, strict=True)])
    assert evaluation.metric is not None
    assert evaluation.metric.reference == np.mean(real.argmax(1) == labels)
    assert evaluation.metric.candidate == np.mean(found.argmax(1) == labels)
    ratios = [db(a, a - b) for a, b in zip(real, found, strict=True)]
    assert [row.number for row in evaluation.worst[:3]] == list(np.argsort(ratios)[:3])
    assert evaluation.worst[0].sqnr_db == pytest.approx(min(ratios))


def test_the_same_twice_is_equal(files: tuple[Path, Path, np.ndarray]) -> None:
    evaluation = evaluate(files[1], files[1], files[2][:2])
    assert evaluation.sqnr_db == math.inf
    assert evaluation.verdict.level == "good"
    assert evaluation.verdict.text.startswith("equal on 2 samples")
    assert evaluation.to_json()["sqnr_db"] is None, "JSON knows no infinity"


def test_another_runtime_is_evaluated_exactly(files: tuple[Path, Path, np.ndarray]) -> None:
    evaluation = evaluate(f"onnxruntime:{files[1]}", files[1], files[2][:4])
    assert evaluation.agreement == 1
    assert evaluation.reference.startswith("ONNX Runtime")
    assert evaluation.sqnr_db > 40


def test_a_model_ruined_on_purpose_is_called_so_and_the_layer_named(files: tuple[Path, Path, np.ndarray]) -> None:
    model = octavo.load(files[0])
    profile = octavo.profile(model, [files[2]], keep_samples=0)
    first = next(key for key, entry in model.tensors.items() if entry.op == "Relu")
    params = octavo.quantize(model, profile).plan.activations[first]
    wide = QuantParams.per_tensor(params.dtype, float(params.scale) * 64, int(params.zero_point))
    ruined = octavo.Recipe(tensors={str(first): wide})
    quantized = octavo.quantize(model, profile, recipe=ruined)
    evaluation = evaluate(model, quantized, files[2], task="classification")
    assert evaluation.verdict.level in ("poor", "ruined")
    assert evaluation.layers[0].id == first
    assert evaluation.layers[0].has_unfit_scale
    assert any(model.tensors[first].source_name in line for line in evaluation.verdict.advice)
    assert evaluate(model, quantized.plan, files[2], layers=0).outputs == evaluation.outputs


def test_layers_of_a_file_are_named(files: tuple[Path, Path, np.ndarray]) -> None:
    evaluation = evaluate(files[0], files[1], files[2][:2], layers=1)
    assert {"pixels", "stem/conv", "stem/relu", "block/add"} <= {each.source_name for each in evaluation.layers}
    assert not any("names of the reference" in note for note in evaluation.notes)


def test_a_file_whose_tensors_have_other_names_says_so(files: tuple[Path, Path, np.ndarray], tmp_path: Path) -> None:
    proto = onnx.load(files[1])
    kept = {value.name for value in (*proto.graph.input, *proto.graph.output)}
    made = {name for node in proto.graph.node for name in node.output} - kept
    for node in proto.graph.node:
        for names in (node.input, node.output):
            names[:] = [f"other_{name}" if name in made else name for name in names]
    onnx.save(proto, tmp_path / "other.onnx")
    evaluation = evaluate(files[0], tmp_path / "other.onnx", files[2][:2], layers=1)
    assert [each.source_name for each in evaluation.layers] == ["pixels"]
    assert any("1 of 5 quantized tensors have names of the reference" in note for note in evaluation.notes)


def test_demands() -> None:
    real = np.array([[[1, 0, 0]], [[0, 1, 0]], [[0, 0, 1]], [[1, 0, 0]]], np.float32)
    found = np.array([[[1, 0, 0]], [[0, 1, 0]], [[1, 0, 0]], [[1, 0, 0]]], np.float32)
    evaluation = evaluate(fixed(real), fixed(found), nothing(4), labels=[0, 1, 2, 0])
    assert evaluation.agreement == 0.75
    assert evaluation.metric is not None
    assert evaluation.metric.drop == 0.25
    assert evaluation.missed(min_agreement=0.75, min_sqnr=3, max_drop=0.25) == ()
    assert evaluation.missed(min_agreement=0.8, min_sqnr=3.1, max_drop=0.2) == (
        "agreement 0.7500 is below 0.8",
        "SQNR 3.0 dB is below 3.1 dB",
        "top-1 drops by 0.2500, more than 0.2",
    )
    with pytest.raises(octavo.OctavoError, match="without labels"):
        evaluate(fixed(real), fixed(found), nothing(4)).missed(max_drop=0.1)


def test_integers_are_compared_as_what_they_stand_for() -> None:
    params = QuantParams.per_tensor("int8", 0.5, 3)
    found = np.array([[[3, 5, -1]]], np.int8)
    evaluation = evaluate(fixed(np.array([[[0, 1, -2.5]]], np.float32)), fixed(found, params=params), nothing(1))
    assert evaluation.outputs[0].max_abs_error == 0.5


def layer(name: str, *, local: float, excess: float = 0.0) -> LayerError:
    return LayerError(
        id=TensorId(name),
        source_name=name,
        op="Conv",
        sqnr_db=10.0,
        local_sqnr_db=local,
        scale_excess_db=excess,
        inherited=0.9,
        block=TensorId(name),
        block_share=1.0,
    )


def test_layers_are_listed_by_what_arises_in_them() -> None:
    rows = (layer("fine", local=51, excess=9), layer("coarse", local=20, excess=5), layer("x", local=40), layer("bad", local=12))
    assert [each.id for each in by_blame(rows)] == ["coarse", "bad", "x", "fine"]
    assert [each.id for each in rows if has_scale_to_blame(each)] == ["coarse"]


def test_outputs_that_are_taken_for_classes_by_their_shapes_alone_are_named() -> None:
    two = InferenceModel(
        label="two",
        inputs=(Port(name="x", shape=(1, 4), dtype="float32"),),
        outputs=tuple(Port(name=name, shape=(1, 6), dtype="float32") for name in ("points", "scores")),
        run=lambda arrays: [np.arange(6, dtype=np.float32)[None]] * 2,
    )
    assert "points, scores are taken for scores of classes" in evaluate(two, two, nothing(2)).notes[0]
    assert not evaluate(two, two, nothing(2), task="tensor").notes


def softmax(scores: np.ndarray) -> np.ndarray:
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (shares / shares.sum(axis=-1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("form", [softmax, lambda scores: np.log(softmax(scores))])
def test_steps_of_a_sequence_are_classes(form: Callable[[np.ndarray], np.ndarray]) -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(6, 1, 9, 7))
    scores[..., :6, 0] += 9  # a blank at most steps
    near = scores + rng.normal(scale=0.5, size=scores.shape)
    evaluation = evaluate(fixed(form(scores)), fixed(form(near)), nothing(6))
    first, second = (each.argmax(-1).ravel() for each in (scores, near))
    counted = (first != 0) | (second != 0)
    assert 0 < counted.mean() < 0.5
    [output] = evaluation.outputs
    assert output.decides == "steps"
    assert output.agreement == pytest.approx((first == second)[counted].mean())
    assert output.top5_agreement is not None
    assert output.agreement <= output.top5_agreement


def test_a_sequence_that_is_no_shares_is_one_if_the_task_says_so() -> None:
    scores = np.random.default_rng(0).normal(size=(6, 1, 9, 7)).astype(np.float32)
    assert evaluate(fixed(scores), fixed(scores), nothing(6)).agreement is None
    labels = scores.argmax(-1)[:, 0]
    labels[:, 0] = -100  # no label
    labels[0, 1] = (labels[0, 1] + 1) % 7
    evaluation = evaluate(fixed(scores), fixed(scores), nothing(6), task="sequence", labels=labels)
    assert evaluation.agreement == 1
    assert evaluation.metric is not None
    assert evaluation.metric.reference == pytest.approx(1 - 1 / (6 * 8))
    with pytest.raises(octavo.OctavoError, match=r"one for each step, \[6, 9\], got int64 of shape \[6\]"):
        evaluate(fixed(scores), fixed(scores), nothing(6), task="sequence", labels=np.zeros(6, np.int64))
    rows = scores[:, :, 0]
    with pytest.raises(
        octavo.OctavoError, match=r"a sequence has outputs of \[samples, steps, classes\]; this model has y \[1, 7\]"
    ):
        evaluate(fixed(rows), fixed(rows), nothing(6), task="sequence")


def test_labels_that_start_elsewhere_are_found() -> None:
    values = np.eye(4, dtype=np.float32)[:, None]
    evaluation = evaluate(fixed(values), fixed(values), nothing(4), labels=np.arange(4) - 1)
    assert "--first-class 1" in " ".join(evaluation.verdict.advice)
    moved = evaluate(fixed(values), fixed(values), nothing(4), labels=np.arange(4) - 1, first_class=1)
    assert moved.metric is not None
    assert moved.metric.reference == 1


def test_images_and_masks() -> None:
    rng = np.random.default_rng(0)
    picture = rng.uniform(size=(2, 1, 3, 8, 8)).astype(np.float32)
    other = picture + rng.normal(scale=0.01, size=picture.shape).astype(np.float32)
    evaluation = evaluate(fixed(picture, shape=(1, 3, 8, 8)), fixed(other, shape=(1, 3, 8, 8)), nothing(2, (1, 3, 8, 8)))
    error = np.square(picture.astype(np.float64) - other).mean()
    assert evaluation.outputs[0].psnr_db == pytest.approx(10 * math.log10((picture.max() - picture.min()) ** 2 / error))
    scores = rng.uniform(size=(2, 1, 5, 8, 8)).astype(np.float32)
    near = scores + rng.normal(scale=0.1, size=scores.shape).astype(np.float32)
    masks = evaluate(fixed(scores, shape=(1, 3, 8, 8)), fixed(near, shape=(1, 3, 8, 8)), nothing(2, (1, 3, 8, 8)))
    a, b = scores.argmax(2), near.argmax(2)
    shares = [np.sum((a == c) & (b == c)) / np.sum((a == c) | (b == c)) for c in range(5)]
    assert masks.outputs[0].agreement == pytest.approx(np.mean(shares))
    assert masks.outputs[0].decides == "mask"


def test_state_goes_from_run_to_run(tmp_path: Path) -> None:
    """Of y = x + s, next = y, each run sees the sum of all before it."""
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in ("x", "s")]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in ("y", "next")]
    one = numpy_helper.from_array(np.ones((1, 2), np.float32), "one")
    nodes = [helper.make_node("Add", ["x", "s"], ["y"]), helper.make_node("Mul", ["y", "one"], ["next"])]
    graph = helper.make_graph(nodes, "sums", inputs, outputs, [one])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), tmp_path / "s.onnx")
    seen: list[np.ndarray] = []
    watched = InferenceModel(
        label="watched",
        inputs=tuple(Port(name=name, shape=(1, 2), dtype="float32") for name in ("x", "s")),
        outputs=tuple(Port(name=name, shape=(1, 2), dtype="float32") for name in ("y", "next")),
        run=lambda arrays: seen.append(np.array(arrays[1])) or [arrays[0] + arrays[1]] * 2,
    )
    samples = {"x": np.array([[1, 2], [3, 4], [5, 6]], np.float32)}
    evaluation = evaluate(tmp_path / "s.onnx", watched, samples, state={"next": "s"})
    assert evaluation.sqnr_db == math.inf
    assert [output.decides for output in evaluation.outputs] == ["class", ""]
    assert np.array_equal(np.concatenate(seen), [[0, 0], [1, 2], [4, 6]])


def test_what_cannot_be_compared_is_refused_in_one_line(files: tuple[Path, Path, np.ndarray]) -> None:
    one = np.zeros((1, 1, 3), np.float32)
    with pytest.raises(octavo.OctavoError, match="unknown task 'words'"):
        evaluate(fixed(one), fixed(one), nothing(1), task="words")
    with pytest.raises(octavo.OctavoError, match="no samples"):
        evaluate(fixed(one), fixed(one), [])
    with pytest.raises(octavo.OctavoError, match=r"shape \[1, 3\] in one model, \[1, 4\] in the other"):
        evaluate(fixed(one), fixed(np.zeros((1, 1, 4), np.float32)), nothing(1))
    with pytest.raises(octavo.OctavoError, match="state names output z"):
        evaluate(fixed(one), fixed(one), nothing(1), state={"z": "x"})
    with pytest.raises(octavo.OctavoError, match="one for each of the 1 samples"):
        evaluate(fixed(one), fixed(one), nothing(1), labels=[1, 2])
    boxes = [fixed(np.zeros((1, 1, 7, 6), np.float32), shape=(1, 3, 16, 16)) for _ in range(2)]
    with pytest.raises(octavo.OctavoError, match="rows of 5 numbers"):
        evaluate(*boxes, nothing(1, (1, 3, 16, 16)), task="detection:yolox")
