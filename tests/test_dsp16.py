"""A vendor with int16 activations, int8 weights and float multipliers: networks, its conformance, and faults planted in its C."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import octavo
from dsp16 import DESCRIPTION, Dsp16
from octavo import conformance
from octavo.backends import Code, CSource

NODES = """
a = Conv<pads=[1, 1, 1, 1], strides=[2, 2]>(x, w1, b1) r = Relu(a)
d = Conv<pads=[1, 1, 1, 1], group=8>(r, w2, b2) c = Clip(d, zero, six) p = Conv(c, w3) s = Add(p, r)
m = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(s) v = AveragePool<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(m)
g = GlobalAveragePool(v) f = Flatten(g) y = Gemm<transB=1>(f, w4, b4)
"""
SHAPES = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 1, 3, 3), "b2": (8,), "w3": (8, 8, 1, 1), "w4": (10, 8), "b4": (10,)}


def network(path: Path, rng: np.random.Generator) -> octavo.Model:
    header = "net (float[1, 3, 16, 16] x) => (float[1, 10] y) <float zero = {0}, float six = {6}>"
    graph = onnx.parser.parse_graph(f"{header} {{ {NODES} }}")
    for name, shape in SHAPES.items():
        value = rng.normal(scale=1 / np.sqrt(np.prod(shape[1:]) or 1), size=shape).astype(np.float32)
        graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return octavo.load(path)


def results(executable: octavo.Executable, samples: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([next(iter(executable(sample).values())) for sample in samples])


def test_a_network_runs_on_it_as_it_was_simulated(tmp_path, rng):
    model = network(tmp_path / "net.onnx", rng)
    samples = [rng.normal(size=(1, 3, 16, 16)).astype(np.float32) for _ in range(20)]
    quantized = octavo.quantize(model, octavo.profile(model, samples), target=Dsp16())
    executable, simulation = octavo.compile(quantized, target=Dsp16()), octavo.compile(quantized)
    assert {op.taker for op in octavo.explain(executable).counted} == {"dsp16"}
    found = results(executable, samples)
    np.testing.assert_array_equal(found, results(simulation, samples))
    noise = found - results(octavo.compile(model), samples)
    assert 10 * np.log10((found**2).sum() / (noise**2).sum()) > 35  # of 8-bit weights alone


def test_resnet8_runs_on_it_as_it_was_simulated(shared: Path):
    model = octavo.load(shared / "models/tflite/resnet8_cifar10_fp32.tflite")
    images = np.load(shared / "data/cifar10/cifar10.npz")["x"].astype(np.float32)
    samples = [image[None] for image in images[:300]]
    quantized = octavo.quantize(model, octavo.profile(model, samples[:100]), target=Dsp16())
    executable = octavo.compile(quantized, target=Dsp16())
    assert {op.taker for op in octavo.explain(executable).ops if op.macs} == {"dsp16"}
    found = results(executable, samples[100:])
    np.testing.assert_array_equal(found, results(octavo.compile(quantized), samples[100:]))
    # Over 1400 images top-1 is 0.771, of the float model 0.775, of uint8 activations 0.774: weights of 8 bits are what is lost.
    assert np.mean(found.argmax(axis=1) == results(octavo.compile(model), samples[100:]).argmax(axis=1)) > 0.97


class Faulty(Dsp16):
    """The same with a line of its C replaced."""

    def __init__(self, right: str, wrong: str) -> None:
        self.right, self.wrong = right, wrong

    def generate(self, composite) -> Code:
        code = super().generate(composite)
        text = code.source.text.replace(self.right, self.wrong)
        assert text != code.source.text
        source = CSource(text=text, symbol=code.source.symbol)
        return Code(source=source, constants=code.constants, layout=code.layout, workspace=code.workspace)


FAULTS = {
    "rounds half up": ("rintf(value)", "floorf(value + 0.5f)", "conv2d-ties", "off by one at ties (of both signs)"),
    "multiplies in float64": ("(float)sum * m[o]", "rint(sum * (double)m[o])", "conv2d-beside_ties", "off by one, not at ties"),
    "one channel's scale is its neighbour's": ("* m[o]", "* m[o == 1 ? 2 : o]", "conv2d-per_channel", "only in channels 1"),
    "padding is not 0": ("continue;", "{ sum += w[0]; continue; }", "conv2d-padding_0", "touches the padding"),
    "wraps": ("value < low ? low : value > high ? high : value", "(int32_t)value", "conv2d-saturation", "it wraps"),
    "strides swapped": ("i * 1 - ", "i * 3 - ", "conv2d-stride_1x3", "values differ throughout"),
    "no bias": ("sum = bias[o]", "sum = 0", "matmul-general", "each channel is off by a number of its own"),
    "sums of 32 bits": ("int64_t sum", "int32_t sum", "conv2d-beyond_32_bits", "only where sums leave 32 bits"),
    "scales of the addends swapped": ("(float)a[i]", "(float)b[i]", "add-general", "values differ throughout"),
    "an average rounds twice": ("(float)sum * (", "rintf((float)sum / 8) * 8 * (", "mean-ties", "off by one"),
}


@pytest.fixture(name="cases", scope="module")
def fixture_cases(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dsp16") / "cases"
    suite = conformance.write(Dsp16(), folder)
    assert suite.not_covered == suite.refused == []
    return folder


def some(cases: Path, folder: Path, *names: str) -> Path:
    """The index of these cases alone, which stay where they are."""
    index = json.loads((cases / "index.json").read_text())
    index["cases"] = [entry for entry in index["cases"] if entry["name"].replace("-int16-half_even", "") in names]
    folder.mkdir()
    (folder / "index.json").write_text(json.dumps(index))
    for entry in index["cases"]:
        (folder / entry["name"]).symlink_to(cases / entry["name"])
    return folder


def test_it_conforms_to_its_own_description(cases, tmp_path):
    names = {name for _, _, name, _ in FAULTS.values()} | {"max_pool2d-general", "avg_pool2d-counted_padding_0", "mean-two_axes"}
    report = conformance.run(some(cases, tmp_path / "some", *names), Dsp16())
    assert len(report.results) == len(names)
    assert report.passed, report.summary


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_its_code_is_found_and_called_what_it_is(cases, tmp_path, fault):
    right, wrong, name, said = FAULTS[fault]
    report = conformance.run(some(cases, tmp_path / "some", name), Faulty(right, wrong))
    (failed,) = report.failed
    assert failed.difference is not None, failed.problem
    assert said in failed.problem


def test_a_case_that_it_does_not_take_fails_with_the_reason(cases, tmp_path):
    class Lazy(Dsp16):
        description = octavo.TargetDescription.from_json({**DESCRIPTION, "ops": DESCRIPTION["ops"][1:]})

    (result,) = conformance.run(some(cases, tmp_path / "some", "conv2d-ties"), Lazy()).results
    assert "dsp16 does not take it: " in result.problem
    assert "conv2d" in result.problem
