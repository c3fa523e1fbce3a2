"""Biases corrected by the profile alone: mean errors go as they do where the model is run, for each kind of product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import octavo
from nets import model_of
from octavo.errors import QuantizationError
from octavo.ir.graph.dataflow import BodyWriter

BARE: dict[str, Any] = {"weight_rounding": "nearest", "equalization": "none", "min_sqnr": None}
Product = Callable[[Any, Any], Any]


def conv(**attrs: Any) -> Product:
    return lambda x, w: relax.op.nn.conv2d(x, w, **attrs)


def transposed(**attrs: Any) -> Product:
    return lambda x, w: relax.op.nn.conv2d_transpose(x, w, **attrs)


NHWC = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
PRODUCTS: dict[str, tuple[Product, tuple[int, ...], tuple[int, ...], int]] = {
    "conv": (conv(padding=[1, 1]), (1, 6, 7, 7), (8, 6, 3, 3), 1),
    "strided": (conv(padding=[0, 1, 1, 0], strides=[2, 2]), (1, 6, 8, 9), (8, 6, 3, 3), 1),
    "dilated": (conv(padding=[2, 2], dilation=[2, 2], **NHWC), (1, 7, 7, 6), (3, 3, 6, 8), 3),
    "depthwise": (conv(padding=[1, 1], groups=6), (1, 6, 7, 7), (6, 1, 3, 3), 1),
    "grouped": (conv(padding=[1, 1], groups=2), (1, 6, 7, 7), (8, 3, 3, 3), 1),
    "transposed": (transposed(padding=[1, 1], strides=[2, 2]), (1, 6, 6, 6), (6, 8, 3, 3), 1),
    "grouped, transposed": (transposed(strides=[2, 2], groups=2), (1, 6, 6, 6), (6, 4, 2, 2), 1),
    "matmul": (relax.op.matmul, (1, 6), (6, 16), -1),
}


def samples_of(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Values whose channels have unlike ranges, and their means in the middle of these."""
    axis = shape.index(6)
    ranges = rng.uniform(1, 8, 6).reshape([6 if place == axis else 1 for place in range(len(shape))])
    return (rng.uniform(0, 1, (200, *shape[1:])) * ranges).astype(np.float32)


def run(model: octavo.Model, samples: np.ndarray) -> np.ndarray:
    [found] = octavo.compile(model)(samples).values()
    return found


@pytest.mark.parametrize("name", PRODUCTS)
def test_mean_errors_go(name: str, rng: np.random.Generator) -> None:
    product, shape, kernel, axis = PRODUCTS[name]
    params = {"w": rng.uniform(-1, 1, kernel).astype(np.float32)}

    def body(writer: BodyWriter, **v: Any) -> Any:
        made = writer.emit("product", product(v["x"], v["w"]))
        return writer.emit("y", relax.op.add(made, v["b"]), is_output=True)

    channels = {"grouped, transposed": 8, "depthwise": 6, "matmul": 16}.get(name, 8)
    bias = rng.normal(size=channels).astype(np.float32)
    params["b"] = bias.reshape(-1) if axis in (3, -1) else bias.reshape(1, -1, 1, 1)
    model = model_of({"x": (shape, "float32")}, params, body, ("y",))
    samples = samples_of(rng, shape)
    profile = octavo.profile(model, samples)
    exact = run(model, samples)

    def error(correction: Any) -> float:
        recipe = octavo.Recipe(bias_correction=correction, weight_bits=5, weight_granularity="per_tensor", **BARE)
        quantized = octavo.quantize(model, profile, recipe=recipe)
        assert bool(quantized.plan.corrections.bias_shifts) == bool(correction)
        found = run(quantized, samples) - exact
        return float(
            np.sqrt(np.mean(found.mean(axis=tuple(each for each in range(found.ndim) if each != axis % found.ndim)) ** 2))
        )

    assert error("analytic") < error(False) / 4


def test_mean_errors_go_where_sizes_are_open(rng: np.random.Generator) -> None:
    sizes: Any = [1, 6, *(tvm.tirx.Var(name, "int64") for name in ("height", "width"))]
    x = relax.Var("x", relax.TensorType(sizes, "float32"))
    builder: Any = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            made = builder.emit(conv(padding=[1, 1])(x, relax.const(rng.uniform(-1, 1, (8, 6, 3, 3)).astype(np.float32))))
            made = relax.op.add(made, relax.const(rng.normal(size=(1, 8, 1, 1)).astype(np.float32)))
            y = builder.emit_output(made)
        builder.emit_func_output(y)
    model = octavo.load(builder.get())
    samples = [samples_of(rng, (1, 6, size, size + 3))[:10] for size in (16, 24)]
    profile = octavo.profile(model, samples)
    exact = run(model, samples[1])

    def error(correction: Any) -> float:
        recipe = octavo.Recipe(bias_correction=correction, weight_bits=5, weight_granularity="per_tensor", **BARE)
        found = run(octavo.quantize(model, profile, recipe=recipe), samples[1]) - exact
        return float(np.sqrt(np.mean(found.mean(axis=(0, 2, 3)) ** 2)))

    assert error("analytic") < error(False) / 4


def test_a_plan_keeps_them(rng: np.random.Generator, tmp_path: Any) -> None:
    product, shape, kernel, _ = PRODUCTS["conv"]
    params = {"w": rng.uniform(-1, 1, kernel).astype(np.float32), "b": np.zeros((1, 8, 1, 1), np.float32)}

    def body(writer: BodyWriter, **v: Any) -> Any:
        return writer.emit("y", relax.op.add(writer.emit("product", product(v["x"], v["w"])), v["b"]), is_output=True)

    model = model_of({"x": (shape, "float32")}, params, body, ("y",))
    quantized = octavo.quantize(model, octavo.profile(model, samples_of(rng, shape), keep_samples=0), preset="fast")
    assert quantized.plan.recipe.bias_correction == "analytic"
    assert quantized.plan.corrections.bias_shifts
    quantized.plan.save(tmp_path / "plan.json")
    again = octavo.quantize(model, plan=tmp_path / "plan.json")
    assert again.fingerprint == quantized.fingerprint
    assert {name: value.tobytes() for name, value in again.params.items()} == {
        name: value.tobytes() for name, value in quantized.params.items()
    }


def test_other_words_are_refused() -> None:
    with pytest.raises(QuantizationError, match="bias_correction must be True, False or 'analytic', got 'empirical'"):
        octavo.Recipe(bias_correction="empirical")  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", [None, "linear", "nearest"])
def test_open_images_are_quantized_without_a_run(mode: str | None, rng: np.random.Generator) -> None:
    """Which taps read padding is asked of a typical size; a resize behind the layer stays float."""
    weights = {"w": rng.uniform(-1, 1, (8, 6, 3, 3)).astype(np.float32)}
    nodes = [helper.make_node("Conv", ["x", "w"], ["y" if mode is None else "c"], pads=[1, 1, 1, 1], strides=[2, 2])]
    if mode is not None:
        weights["scales"] = np.array([1, 1, 2, 2], np.float32)
        nodes.append(helper.make_node("Resize", ["c", "", "scales"], ["y"], mode=mode))
    shapes = {"x": ["N", 6, "H", "W"], "y": None}
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "open", infos[:1], infos[1:], constants)
    model = octavo.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))
    images = [samples_of(rng, (1, 6, size, size + 3))[:1] for size in (9, 20, 31, 40)]
    quantized = octavo.quantize(model, octavo.profile(model, [{"x": image} for image in images]), preset="fast")
    found, expected = (octavo.compile(each)({"x": images[2]})["y"] for each in (quantized, model))
    assert np.mean((found - expected) ** 2) < 1e-3 * np.mean(expected**2)
