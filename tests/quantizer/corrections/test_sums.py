"""Means and covariances of what layers read, against a plain evaluation of the layer at every position."""

from typing import Any

import numpy as np
import pytest
from tvm import relax

import octavo
from nets import model_of
from octavo.ir.graph.dataflow import BodyWriter, DataflowView
from octavo.ir.graph.weighted_sums import Product, products_of
from octavo.quantizer.corrections.weights import Inputs, covariances, exact_rows, inherited_errors

CASES: dict[str, dict[str, Any]] = {
    "3x3, padded": {"padding": (1, 1, 1, 1)},
    "strided": {"strides": (2, 2), "padding": (0, 1, 1, 0)},
    "dilated": {"dilation": (2, 1), "padding": (2, 1, 2, 1)},
    "grouped": {"groups": 2, "padding": (1, 1, 1, 1)},
    "depthwise": {"groups": 6, "padding": (1, 1, 1, 1)},
}


def convolution(rng: np.random.Generator, layout: str, **options: Any) -> tuple[Product, np.ndarray]:
    """Return a convolution of 6 channels by 4 (6 where depthwise), 7 x 8 pixels, and its weights."""
    groups = options.get("groups", 1)
    outputs = 6 if groups == 6 else 4
    weight = rng.normal(size=(outputs, 6 // groups, 3, 3)).astype(np.float32)
    bias = rng.normal(size=outputs).astype(np.float32)
    kernel_layout = "OIHW"
    if layout == "NHWC":
        weight, kernel_layout = weight.transpose(2, 3, 1, 0).copy(), "HWIO"
    shape = (2, 6, 7, 8) if layout == "NCHW" else (2, 7, 8, 6)

    def body(writer: BodyWriter, **v: Any) -> Any:
        conv = relax.op.nn.conv2d(v["x"], v["w"], data_layout=layout, kernel_layout=kernel_layout, **options)
        shaped = writer.emit("_b", relax.op.reshape(v["b"], (1, -1, 1, 1) if layout == "NCHW" else (1, 1, 1, -1)))
        return writer.emit("y", relax.op.add(writer.emit("c", conv), shaped), is_output=True)

    model = model_of({"x": (shape, "float32")}, {"w": weight, "b": bias}, body, ("y",))
    return only_product(model)


def only_product(model: octavo.Model) -> tuple[Product, np.ndarray]:
    [product] = products_of(model, DataflowView(model.module["main"])).values()
    return product, product.weights_of(model.params[product.weight])


def drawn(rng: np.random.Generator, shape: tuple[int, ...], count: int, scale: np.ndarray) -> tuple[list[np.ndarray], Inputs]:
    """Return integers, channels last, and what they stand for."""
    integers = [rng.integers(-100, 156, shape) for _ in range(count)]
    return integers, Inputs(
        values=[(each * scale).astype(np.float32) for each in integers], factors=scale, unit=np.ones((), np.float32)
    )


def windows(product: Product, x: np.ndarray) -> np.ndarray:
    """Return what lies under each tap at every position, 0 in the padding: (groups, positions, rows x columns x channels)."""
    kernel_h, kernel_w, inputs, _ = product.shape
    window, (top, left, bottom, right) = product.window, product.window.padding
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    rows = (padded.shape[1] - (kernel_h - 1) * window.dilation[0] - 1) // window.strides[0] + 1
    columns = (padded.shape[2] - (kernel_w - 1) * window.dilation[1] - 1) // window.strides[1] + 1
    found: list[np.ndarray] = []
    for image in padded:
        for row in range(rows):
            for column in range(columns):
                places = (row * window.strides[0], column * window.strides[1])
                taps = [
                    image[places[0] + a * window.dilation[0], places[1] + b * window.dilation[1]]
                    for a in range(kernel_h)
                    for b in range(kernel_w)
                ]
                found.append(np.array(taps).reshape(-1, product.groups, inputs).transpose(1, 0, 2).reshape(product.groups, -1))
    return np.array(found).transpose(1, 0, 2)


def by_group(product: Product, weights: np.ndarray) -> np.ndarray:
    """Return weights as (groups, outputs, inputs)."""
    return weights.reshape(product.inputs, product.groups, -1).transpose(1, 2, 0).astype(np.float64)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", CASES)
def test_convolutions(rng: np.random.Generator, name: str, layout: str) -> None:
    product, weights = convolution(rng, layout, **CASES[name])
    assert product.axis == layout.index("C")
    scale = rng.uniform(0.01, 0.1, 6).astype(np.float32)
    integers, inputs = drawn(rng, (2, 7, 8, 6), 3, scale)
    rows = np.concatenate([windows(product, each) for each in integers], axis=1)
    assert np.array_equal(inputs.total(), sum(integers[1:], integers[0]))
    expected = (rows @ by_group(product, weights).transpose(0, 2, 1)).mean(axis=1).reshape(-1)
    np.testing.assert_allclose(
        product.mean(inputs.total(), 3 * product.positions(inputs.shape), weights.astype(np.float64)), expected, rtol=1e-9
    )
    found = covariances(product, inputs).plain()
    for group in range(product.groups):
        expected = np.cov(rows[group].T.astype(np.float64), bias=True)
        np.testing.assert_allclose(found[group], expected, rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_results_are_matched_with_what_they_are_made_of(rng: np.random.Generator, name: str) -> None:
    product, weights = convolution(rng, "NCHW", **CASES[name])
    integers, inputs = drawn(rng, (2, 7, 8, 6), 16, np.ones(1, np.float32))
    rows_of = exact_rows(product, weights, (2, 7, 8, 6), 16)
    values = [rows_of(each.astype(np.float32)) for each in integers]
    weight = by_group(product, weights)
    for each, value in zip(integers, values, strict=True):
        exact = (windows(product, each) @ weight.transpose(0, 2, 1)).transpose(1, 0, 2).reshape(len(value), -1)
        np.testing.assert_allclose(value, exact, rtol=1e-4, atol=1e-3)
    found = inherited_errors(product, inputs, weight + 0.25, [each + np.float32(3) for each in values])
    # All that is wrong is the weight, by 0.25: were a position another one's, it would stay as it is.
    assert np.abs(found.made_up_for() - weight).max() < 0.1


def test_products_of_matrices(rng: np.random.Generator) -> None:
    weight, bias = rng.normal(size=(5, 3)).astype(np.float32), rng.normal(size=3).astype(np.float32)

    def body(writer: BodyWriter, **v: Any) -> Any:
        return writer.emit("y", relax.op.add(writer.emit("p", relax.op.matmul(v["x"], v["w"])), v["b"]), is_output=True)

    product, weights = only_product(model_of({"x": ((4, 5), "float32")}, {"w": weight, "b": bias}, body, ("y",)))
    assert np.array_equal(weights, weight)
    integers, inputs = drawn(rng, (4, 5), 6, np.full(1, 0.3, np.float32))
    real = np.concatenate(integers)
    found = product.mean(inputs.total(), 6 * product.positions(inputs.shape), weight.astype(np.float64))
    np.testing.assert_allclose(found, (real @ weight.astype(np.float64)).mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(covariances(product, inputs).plain()[0], np.cov(real.T.astype(np.float64), bias=True), rtol=1e-9)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("options", [{}, {"strides": (2, 2), "padding": (1, 1, 1, 1), "output_padding": (1, 1)}])
def test_transposed_convolutions(rng: np.random.Generator, options: dict[str, Any], groups: int) -> None:
    weight, bias = rng.normal(size=(6, 4, 3, 2)).astype(np.float32), rng.normal(size=4 * groups).astype(np.float32)

    def body(writer: BodyWriter, **v: Any) -> Any:
        conv = writer.emit("c", relax.op.nn.conv2d_transpose(v["x"], v["w"], groups=groups, **options))
        return writer.emit("y", relax.op.add(conv, writer.emit("_b", relax.op.reshape(v["b"], (1, -1, 1, 1)))), is_output=True)

    product, weights = only_product(model_of({"x": ((1, 6, 5, 4), "float32")}, {"w": weight, "b": bias}, body, ("y",)))
    integers, inputs = drawn(rng, (1, 5, 4, 6), 1, np.ones(1, np.float32))
    window, (_, rows, columns) = product.window, product.sizes
    result = np.zeros((rows, columns, groups, 4))
    by_input = weight.reshape(groups, 6 // groups, 4, 3, 2).astype(np.float64)
    for iy, ix, a, b in np.ndindex(5, 4, 3, 2):
        oy, ox = iy * window.strides[0] + a - window.padding[0], ix * window.strides[1] + b - window.padding[1]
        if 0 <= oy < rows and 0 <= ox < columns:
            result[oy, ox] += np.einsum("gi,gio->go", integers[0][0, iy, ix].reshape(groups, -1), by_input[..., a, b])
    found = product.mean(inputs.total(), product.positions(inputs.shape), weights.astype(np.float64))
    np.testing.assert_allclose(found, result.mean(axis=(0, 1)).reshape(-1), rtol=1e-9)
