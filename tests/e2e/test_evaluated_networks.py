"""`octavo evaluate` on networks: figures equal an independent computation on the outputs, detectors' those of the benchmark."""

import json
import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import datasets
import octavo
from average_precision import average_precision
from octavo.cli.main import main
from octavo.evaluation import OutputEvaluation


def executables(path: Path, samples: list[np.ndarray], layers: int | None = None) -> tuple[octavo.Executable, octavo.Executable]:
    """Compile a float network, and the same with its first `layers` quantized by plain ranges, which costs least."""
    model = octavo.load(path)
    first = [key for key, entry in model.tensors.items() if entry.kind != "constant"]
    profile = octavo.profile(model, samples, tensors=None if layers is None else first[:layers], keep_samples=0)
    return octavo.compile(model), octavo.compile(octavo.quantize(model, profile))


def evaluated(capsys: pytest.CaptureFixture[str], folder: Path, *words: str | Path, samples: list[np.ndarray]) -> dict:
    np.savez(folder / "x.npz", x=np.concatenate(samples))
    assert main(["evaluate", *map(str, words), "--data", str(folder / "x.npz"), "--layers", "0", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def outputs_of(executable: octavo.Executable, samples: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([next(iter(executable(sample).values())) for sample in samples])


def check_errors(output: OutputEvaluation, real: np.ndarray, found: np.ndarray) -> None:
    real, found = real.astype(np.float64), found.astype(np.float64)
    assert output.sqnr_db == pytest.approx(10 * math.log10((real**2).sum() / ((real - found) ** 2).sum()), abs=1e-9)
    assert output.max_abs_error == np.abs(real - found).max()
    assert output.cosine == pytest.approx((real * found).sum() / math.sqrt((real**2).sum() * (found**2).sum()), abs=1e-12)


def test_resnet8(shared: Path) -> None:
    """The labels are given one less than the classes that they are, as those of networks with a background are."""
    samples, classes = datasets.cifar10(np.float32, 30)
    pair = executables(shared / "models" / "tflite" / "resnet8_cifar10_fp32.tflite", samples[:2])
    found = octavo.evaluate(*pair, samples, labels=classes.astype(int) - 1, first_class=1)
    real, made = (outputs_of(each, samples) for each in pair)
    [output] = found.outputs
    check_errors(output, real, made)
    assert output.agreement == np.mean(real.argmax(1) == made.argmax(1))
    assert found.metric is not None
    assert found.metric.reference == np.mean(real.argmax(1) == classes) > 0.7
    assert found.metric.candidate == np.mean(made.argmax(1) == classes)
    assert 0 < output.agreement < 1


def test_ds_cnn_of_integers_against_floats_and_litert(shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shared / "models" / "tflite"
    samples, classes = datasets.keywords(datasets.pixels, 20)
    np.savetxt(tmp_path / "y.txt", classes, fmt="%d")
    files = folder / "dscnn_kws_fp32.tflite", folder / "dscnn_kws_int8.tflite"
    found = evaluated(capsys, tmp_path, *files, "--labels", tmp_path / "y.txt", "--task", "keywords", samples=samples)
    scale = np.float32(0.5847029)  # of the int8 model's input, whose zero point is 83
    floats = octavo.compile(octavo.load(files[0]))
    real = outputs_of(floats, [(sample.astype(np.float32) - 83) * scale for sample in samples])
    made = (
        outputs_of(octavo.compile(octavo.load(files[1])), samples).astype(np.float32) + 128
    ) / 256  # softmax's scale and zero point in TFLite
    output = found["outputs"][0]
    error = (real.astype(np.float64) - made) ** 2
    assert output["sqnr_db"] == pytest.approx(10 * math.log10((real.astype(np.float64) ** 2).sum() / error.sum()), abs=1e-3)
    assert output["agreement"] == np.mean(real.argmax(1) == made.argmax(1))
    assert found["metric"]["candidate"] == np.mean(made.argmax(1) == classes)
    exact = evaluated(capsys, tmp_path, f"litert:{files[1]}", files[1], samples=samples)
    assert exact["outputs"][0]["max_abs_error"] == 0


def test_yolox(shared: Path) -> None:
    samples = datasets.scenes(datasets.blue_first, size=416, limit=2)
    pair = executables(shared / "models" / "onnx" / "yolox_nano_416_fp32.onnx", samples[:1], layers=16)
    truth = datasets.scene_boxes(size=416)[:2]
    rows = [np.concatenate([np.full((len(boxes), 1), number), boxes], axis=1) for number, boxes in enumerate(truth)]
    found = octavo.evaluate(*pair, samples, labels=np.concatenate(rows), task="detection:yolox")
    real, made = (outputs_of(each, samples) for each in pair)
    [output] = found.outputs
    check_errors(output, real, made)
    assert found.metric is not None
    assert found.metric.reference == average_precision(real, truth, size=416) > 0.3
    assert found.metric.candidate == average_precision(made, truth, size=416)
    assert output.agreement is not None
    assert 0 < output.agreement < 1


def espcn(path: Path) -> None:
    """Write a network of ESPCN's form: convolutions, and channels that become pixels of a picture twice as large."""
    rng = np.random.default_rng(0)
    shapes = {"w1": (16, 1, 5, 5), "w2": (8, 16, 3, 3), "w3": (4, 8, 3, 3)}
    arrays = {name: rng.normal(scale=(shape[1] * shape[2] ** 2) ** -0.5, size=shape) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], pads=[2] * 4),
        helper.make_node("Tanh", ["c1"], ["t1"]),
        helper.make_node("Conv", ["t1", "w2"], ["c2"], pads=[1] * 4),
        helper.make_node("Tanh", ["c2"], ["t2"]),
        helper.make_node("Conv", ["t2", "w3"], ["c3"], pads=[1] * 4),
        helper.make_node("DepthToSpace", ["c3"], ["y"], blocksize=2),
    ]
    constants = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in arrays.items()]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 24, 24])]
    wanted = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 48, 48])]
    graph = helper.make_graph(nodes, "espcn", given, wanted, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


def test_super_resolution(tmp_path: Path) -> None:
    espcn(tmp_path / "m.onnx")
    samples = [np.random.default_rng(1).uniform(size=(1, 1, 24, 24)).astype(np.float32) for _ in range(3)]
    pair = executables(tmp_path / "m.onnx", samples)
    [output] = octavo.evaluate(*pair, samples).outputs
    real, made = (outputs_of(each, samples) for each in pair)
    check_errors(output, real, made)
    error = np.square(real.astype(np.float64) - made).mean()
    peak = float(real.max()) - float(real.min())
    assert output.psnr_db == pytest.approx(10 * math.log10(peak**2 / error), abs=1e-9)
