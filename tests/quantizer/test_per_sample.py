"""Convolutions whose input is quantized per sample when run: from the choice to the kernel's bytes, the plan and ONNX."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_nets import OnnxWriter

import octavo
from octavo.export.onnx.onnx_export import export_onnx
from octavo.frontends.load import load
from octavo.ir.identity import TensorId
from octavo.numerics import dequantize_accumulator
from octavo.numerics.dynamic import PER_ROW, centered_rows
from octavo.numerics.quantized.conv2d import conv2d_accumulate
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.numerics.window import Window
from octavo.quantizer.choices import Choices
from octavo.quantizer.quantize_graph import quantize_graph
from octavo.target import CPU
from reference_sessions import reference_session

PLAIN = octavo.Recipe(bias_correction=False, weight_rounding="nearest", equalization="none", min_sqnr=None)
FORMS: dict[str, dict[str, Any]] = {
    "padded": {"kernel": (3, 3), "pads": [1, 2, 0, 1]},
    "strided": {"kernel": (3, 2), "strides": [2, 1]},
    "pointwise": {"kernel": (1, 1)},
    "grouped": {"kernel": (3, 3), "pads": [1, 1, 1, 1], "group": 2},
    "depthwise": {"kernel": (3, 3), "pads": [1, 1, 1, 1], "group": 8},
    "dilated": {"kernel": (3, 3), "dilations": [2, 2]},
    "line": {"kernel": (5,), "pads": [4, 0]},
}


def convolution(folder: Path, batch: int | str, kernel: tuple[int, ...], **attrs: Any) -> octavo.Model:
    """One convolution of 8 channels, with a bias and a clamp, of an image or a line."""
    net = OnnxWriter()
    weight = net.constant("w", 16, 8 // attrs.get("group", 1), *kernel)
    net.node("Relu", [net.node("Conv", ["x", weight, net.constant("b", 16)], "c", **attrs)], "y")
    sizes = (12, 11)[: len(kernel)]
    onnx.save(net.model({"x": [batch, 8, *sizes]}, {"y": [batch, 16, *([None] * len(kernel))]}, 17), folder / "float.onnx")
    return load(folder / "float.onnx")


def samples_of(rng: np.random.Generator, batch: int, kernel: tuple[int, ...], count: int = 4) -> list[np.ndarray]:
    """Batches whose samples are of very unlike size, one of zeros among them."""
    widths = 10 ** rng.uniform(-3, 1, (count, batch, *[1] * (1 + len(kernel))))
    widths[1, 0] = 0
    return list((rng.normal(size=(count, batch, 8, *(12, 11)[: len(kernel)])) * widths).astype(np.float32))


def per_sample(model: octavo.Model, samples: list[np.ndarray], **given: Any) -> octavo.QuantizedModel:
    """Return a model of which all convolutions are quantized so, and nothing is corrected."""
    profile = octavo.profile(model, samples)
    layers = [layer for layer in quantize_graph(model, profile, recipe=PLAIN).plan.layers if layer.weight]
    changes = Choices(per_row={layer.output: "it is tried" for layer in layers})
    return quantize_graph(model, profile, recipe=PLAIN, changes=changes, **given)


def output(executable: Any, x: np.ndarray) -> np.ndarray:
    (value,) = executable(x).values()
    return value


def oracle(x: np.ndarray, quantized: octavo.QuantizedModel, attrs: dict[str, Any], bias: np.ndarray) -> np.ndarray:
    """The layer's result by the definition: integers of each sample, int32 sums, scaled in float32; channels lie last."""
    centered, scales = centered_rows(x, None)
    weight, params = quantized.plan.weight_values[TensorId("w")], quantized.plan.weights[TensorId("w")]
    pads, count = attrs.get("pads", [0] * 2 * (x.ndim - 2)), x.ndim - 2
    strides, dilation = attrs.get("strides", [1] * count), attrs.get("dilations", [1] * count)
    if count == 1:
        centered, weight, scales = centered[:, :, None], weight[:, :, None], scales[..., None]
        pads, strides, dilation = [0, pads[0], 0, pads[1]], [1, *strides], [1, *dilation]
    sums = conv2d_accumulate(
        centered.transpose(0, 2, 3, 1),
        weight.transpose(2, 3, 1, 0),
        window=Window(strides=tuple(strides), padding=tuple(pads), dilation=tuple(dilation)),
        groups=attrs.get("group", 1),
    )
    by_sample = scales.reshape(-1, 1, 1, 1)
    found = dequantize_accumulator(sums, params.scale, bias, input_scale=by_sample, low=0.0).transpose(0, 3, 1, 2)
    return found[:, :, 0] if count == 1 else found


@pytest.mark.parametrize("form", FORMS)
def test_a_convolution_is_the_oracle_bit_for_bit(form: str, rng: np.random.Generator, tmp_path: Path) -> None:
    attrs = dict(FORMS[form])
    kernel = attrs.pop("kernel")
    model, samples = convolution(tmp_path, 3, kernel, **attrs), samples_of(rng, 3, kernel)
    quantized = per_sample(model, samples)
    (layer,) = [each for each in quantized.plan.layers if each.weight]
    assert layer.has_samples
    executable = octavo.compile(quantized)
    for x in samples:
        np.testing.assert_array_equal(output(executable, x), oracle(x, quantized, attrs, model.params[TensorId("b")]))
    assert {op.reason for op in octavo.explain(quantized).ops if op.op == "conv2d"} == {
        "its input is quantized per sample, when run: it is tried"
    }


@pytest.mark.parametrize("form", ["padded", "line"])
def test_plan_module_and_file_give_its_bytes(form: str, rng: np.random.Generator, tmp_path: Path) -> None:
    attrs = dict(FORMS[form])
    kernel = attrs.pop("kernel")
    model, samples = convolution(tmp_path, 3, kernel, **attrs), samples_of(rng, 3, kernel)
    quantized = per_sample(model, samples)
    quantized.plan.save(tmp_path / "plan.json")
    assert octavo.quantize(model, plan=tmp_path / "plan.json").fingerprint == quantized.fingerprint
    export_onnx(quantized, tmp_path / "int8.onnx")
    session, ours = reference_session(tmp_path / "int8.onnx", optimized=False), octavo.compile(quantized)
    others = [octavo.compile(load(tmp_path / "int8.onnx")), octavo.compile(octavo.load(quantized.bound()))]
    for x in samples:
        want = output(ours, x)
        assert all(output(other, x).tobytes() == want.tobytes() for other in others)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], want, rtol=0, atol=1e-6 * float(np.abs(want).max()))


def test_a_sample_is_the_same_in_a_batch_of_any_size(rng: np.random.Generator, tmp_path: Path) -> None:
    model, samples = convolution(tmp_path, "n", (3, 3), pads=[1, 1, 1, 1]), samples_of(rng, 5, (3, 3))
    executable = octavo.compile(per_sample(model, samples))
    for x in samples:
        alone = [output(executable, x[place : place + 1]) for place in range(5)]
        np.testing.assert_array_equal(output(executable, x), np.concatenate(alone))


def test_a_target_that_does_not_take_it_gets_static_parameters(rng: np.random.Generator, tmp_path: Path) -> None:
    static = replace(CPU, ops=tuple(replace(op, per_row_input=False) for op in CPU.ops))
    model, samples = convolution(tmp_path, 3, (3, 3)), samples_of(rng, 3, (3, 3))
    quantized = per_sample(model, samples, target=static)
    assert not any(layer.per_row for layer in quantized.plan.layers)
    reasons = [op.reason for op in octavo.explain(quantized, target=static).ops]
    assert any("target cpu quantizes no input of nn.conv2d per row when run (it is tried)" in reason for reason in reasons)


def recordings(folder: Path) -> octavo.Model:
    """Convolutions of recordings, whose results are as large for quiet ones as for loud ones: each is divided by its size."""
    net = OnnxWriter()
    x = "x"
    for number, (given, made) in enumerate([(1, 16), (16, 16), (16, 16)]):
        weight = net.constant(f"w{number}", made, given, 5)
        x = net.node("Relu", [net.node("Conv", [x, weight], f"c{number}", pads=[2, 2])], f"r{number}")
    size = net.node("ReduceMean", [net.node("Abs", [x], "a")], "m", axes=[1, 2], keepdims=1)
    net.node("Div", [x, size], "y")
    onnx.save(net.model({"x": [1, 1, 256]}, {"y": [1, 16, 256]}, 13), folder / "float.onnx")
    return load(folder / "float.onnx")


@pytest.mark.parametrize("spread", [0.0, 2.0])
def test_the_default_takes_it_where_samples_are_of_unlike_size(spread: float, rng: np.random.Generator, tmp_path: Path) -> None:
    model = recordings(tmp_path)

    def draw(count: int) -> list[np.ndarray]:
        return [(rng.uniform(-1, 1, (1, 1, 256)) * np.exp(spread * rng.normal())).astype(np.float32) for _ in range(count)]

    profile, fresh = octavo.profile(model, draw(32), keep_samples=32), draw(16)
    quantized = octavo.quantize(model, profile)
    layers = [layer for layer in quantized.plan.layers if layer.weight]
    assert len(layers) > 1
    assert {layer.has_samples for layer in layers} == {spread > 0}
    exact, ours = octavo.compile(model), octavo.compile(quantized)
    found, want = (np.stack([output(each, x) for x in fresh]) for each in (ours, exact))
    assert sqnr_db(want, found) > 30
    assert ("per sample" in quantized.plan.journal.kept) == (spread > 0)


def test_a_row_of_a_convolution_is_a_sample(rng: np.random.Generator) -> None:
    x = rng.normal(size=(2, 3, 4, 5)).astype(np.float32)
    steps, scales = centered_rows(x, None, PER_ROW)
    rows, of_rows = centered_rows(x.reshape(2, -1))
    np.testing.assert_array_equal(steps.reshape(2, -1), rows)
    np.testing.assert_array_equal(scales, of_rows.reshape(2, 1, 1, 1))
