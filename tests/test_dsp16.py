"""A vendor with int16 activations, int8 weights and float multipliers: networks, its conformance, and faults planted in its C."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import conformance_modules
import octavo
from dsp16 import DESCRIPTION, Dsp16
from octavo.compiler.backends import Code, CSource, toolkit
from octavo.errors import CompileError
from octavo.evaluation import conformance
from octavo.ir.composites.attributes import read_composites

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


@pytest.fixture(name="model", scope="module")
def fixture_model(tmp_path_factory) -> octavo.Model:
    return network(tmp_path_factory.mktemp("net") / "net.onnx", np.random.default_rng(0))


@pytest.fixture(name="samples", scope="module")
def fixture_samples() -> list[np.ndarray]:
    return [np.random.default_rng(seed).normal(size=(1, 3, 16, 16)).astype(np.float32) for seed in range(20)]


@pytest.fixture(name="quantized", scope="module")
def fixture_quantized(model, samples) -> octavo.QuantizedModel:
    return octavo.quantize(model, octavo.profile(model, samples), target=Dsp16())


def test_a_network_runs_on_it_as_it_was_simulated(model, samples, quantized):
    executable, simulation = octavo.compile(quantized, target=Dsp16()), octavo.compile(quantized)
    assert {op.taker for op in octavo.explain(executable).counted} == {"dsp16"}
    found = results(executable, samples)
    np.testing.assert_array_equal(found, results(simulation, samples))
    noise = found - results(octavo.compile(model), samples)
    assert 10 * np.log10((found**2).sum() / (noise**2).sum()) > 35  # of 8-bit weights alone


def test_the_toolkit_gives_float_multipliers(quantized):
    composites = read_composites(octavo.partition(quantized, target=Dsp16())).values()
    own = [composite for composite in composites if composite.kind.startswith("dsp16.")]  # the edges are the host's
    assert len(own) > 6
    for composite in own:
        info = composite.quantize_info
        if composite.kind == "dsp16.add":
            with pytest.raises(CompileError, match=r"dsp16.add of .*: it has no single input whose scale counts"):
                toolkit.float_multiplier(composite)
            continue
        x, y = np.float32(info["input"]["scale"]), np.float32(info["output"]["scale"])
        w = np.asarray(info["weight"]["scale"], np.float32) if "weight" in info else np.float32(1)
        found = toolkit.float_multiplier(composite)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, x * w / y)
        if "weight" in info:
            np.testing.assert_allclose(found, toolkit.real_multiplier(composite), rtol=2e-7)


def test_float_literals_are_exact():
    values = np.array([0.1, -1e-30, 3, 2**-149, 3.4e38], np.float32)
    assert toolkit.c_array("m", values).startswith("static const float m[5] = {0x1.99999a0000000p-4f, -0x")
    assert [np.float32(float.fromhex(toolkit.c_float(each).removesuffix("f"))) for each in values.tolist()] == values.tolist()
    assert toolkit.c_array("w", np.array([[1, -2]], np.int8)) == "static const int8_t w[2] = {1, -2};\n"


def test_resnet8_runs_on_it_as_it_was_simulated(shared: Path):
    model = octavo.load(shared / "models/tflite/resnet8_cifar10_fp32.tflite")
    images = np.load(shared / "data/cifar10/cifar10.npz")["x"].astype(np.float32)
    samples = [image[None] for image in images[:60]]
    quantized = octavo.quantize(model, octavo.profile(model, samples[:20]), target=Dsp16())
    executable = octavo.compile(quantized, target=Dsp16())
    assert {op.taker for op in octavo.explain(executable).ops if op.macs} == {"dsp16"}
    found = results(executable, samples[20:])
    np.testing.assert_array_equal(found, results(octavo.compile(quantized), samples[20:]))
    # Over 1400 images top-1 is 0.771, of the float model 0.775, of uint8 activations 0.774: weights of 8 bits are what is lost.
    assert np.mean(found.argmax(axis=1) == results(octavo.compile(model), samples[20:]).argmax(axis=1)) > 0.97


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
    """These cases alone, by their names without what all have in common."""
    return conformance_modules.some(cases, folder, names, lambda name: name.replace("-int16-half_even", ""))


def test_it_conforms_to_its_own_description(cases, tmp_path):
    names = {name for _, _, name, _ in FAULTS.values()} | {"max_pool2d-general", "avg_pool2d-counted_padding_0", "mean-two_axes"}
    report, _ = conformance_modules.run_together(some(cases, tmp_path / "some", *names), lambda _: Dsp16())
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
