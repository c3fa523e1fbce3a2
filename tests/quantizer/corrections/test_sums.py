"""Means and covariances of what layers read, against a plain evaluation of the layer at every position."""

from typing import Any

import numpy as np
import pytest
from tvm import relax

import octavo
from nets import model_of
from octavo.ir.composites.attributes import read_composites
from octavo.ir.composites.weighted import Conv2dOp, Conv2dTransposeOp, MatmulOp
from octavo.ir.graph.dataflow import BodyWriter
from octavo.quantizer.corrections.gram import ExactRows, covariances, inherited_errors
from octavo.quantizer.corrections.window_sums import mean_accumulators

CASES: dict[str, dict[str, Any]] = {
    "3x3, padded": {"padding": (1, 1, 1, 1)},
    "strided": {"strides": (2, 2), "padding": (0, 1, 1, 0)},
    "dilated": {"dilation": (2, 1), "padding": (2, 1, 2, 1)},
    "grouped": {"groups": 2, "padding": (1, 1, 1, 1)},
    "depthwise": {"groups": 6, "padding": (1, 1, 1, 1)},
}


def composite(rng: np.random.Generator, layout: str, **options: Any) -> Any:
    """Return the composite of a quantized convolution of 6 channels by 4 (6 where depthwise), 7 x 8 pixels."""
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
    return only_op(model, rng)


def only_op(model: octavo.Model, rng: np.random.Generator) -> Any:
    shape = tuple(int(dim) for dim in model.module["main"].params[0].ty.shape)
    quantized = octavo.quantize(model, octavo.profile(model, rng.normal(size=shape).astype(np.float32)))
    kinds = (Conv2dOp, MatmulOp, Conv2dTransposeOp)
    [op] = [each.op for each in read_composites(octavo.partition(quantized)).values() if isinstance(each.op, kinds)]
    return op


def windows(op: Conv2dOp, x: np.ndarray) -> np.ndarray:
    """Return what lies under each tap at every position, 0 in the padding: (groups, positions, rows x columns x channels)."""
    kernel_h, kernel_w, inputs, _ = op.weight.values.shape
    top, left, bottom, right = op.padding
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    rows = (padded.shape[1] - (kernel_h - 1) * op.dilation[0] - 1) // op.strides[0] + 1
    columns = (padded.shape[2] - (kernel_w - 1) * op.dilation[1] - 1) // op.strides[1] + 1
    found: list[np.ndarray] = []
    for image in padded:
        for row in range(rows):
            for column in range(columns):
                places = (row * op.strides[0], column * op.strides[1])
                taps = [
                    image[places[0] + a * op.dilation[0], places[1] + b * op.dilation[1]]
                    for a in range(kernel_h)
                    for b in range(kernel_w)
                ]
                found.append(np.array(taps).reshape(-1, op.groups, inputs).transpose(1, 0, 2).reshape(op.groups, -1))
    return np.array(found).transpose(1, 0, 2)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", CASES)
def test_convolutions(rng: np.random.Generator, name: str, layout: str) -> None:
    op = composite(rng, layout, **CASES[name])
    samples = [rng.integers(0, 256, (2, 7, 8, 6)).astype(np.uint8) for _ in range(3)]
    real = [sample.astype(np.int64) - op.x.zero_point for sample in samples]
    rows = np.concatenate([windows(op, sample) for sample in real], axis=1)
    weight = op.weight.values.astype(np.int64)
    outputs = weight.shape[3] // op.groups
    for group in range(op.groups):
        taps = weight[..., group * outputs : (group + 1) * outputs].reshape(-1, outputs)
        found = mean_accumulators(op, sum(real[1:], real[0]), 3)[group * outputs : (group + 1) * outputs]
        np.testing.assert_allclose(found, (rows[group] @ taps).mean(axis=0), rtol=1e-12)
        expected = np.cov(rows[group].T.astype(np.float64), bias=True)
        np.testing.assert_allclose(covariances(op, samples).plain()[group], expected, rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_results_are_matched_with_what_they_are_made_of(rng: np.random.Generator, name: str) -> None:
    op = composite(rng, "NCHW", **CASES[name])
    samples = [rng.integers(0, 256, (2, 7, 8, 6)).astype(np.uint8) for _ in range(16)]
    taps = op.weight.values.astype(np.float64)
    weight = taps.reshape(-1, op.groups, taps.shape[3] // op.groups).transpose(1, 2, 0)
    exact = [windows(op, each.astype(np.int64) - op.x.zero_point) @ weight.transpose(0, 2, 1) for each in samples]
    values = [each.transpose(1, 0, 2).reshape(each.shape[1], -1).astype(np.float32) + 3 for each in exact]
    found = inherited_errors(op, samples, weight + 0.25, ExactRows(len(values[0]), values))
    assert found is not None
    # All that is wrong is the weight, by 0.25: were a position another one's, it would stay as it is.
    assert np.abs(found.made_up_for() - weight).max() < 0.1
    assert inherited_errors(op, samples, weight, ExactRows(len(values[0]) + 1, values)) is None


def test_products_of_matrices(rng: np.random.Generator) -> None:
    weight, bias = rng.normal(size=(5, 3)).astype(np.float32), rng.normal(size=3).astype(np.float32)

    def body(writer: BodyWriter, **v: Any) -> Any:
        return writer.emit("y", relax.op.add(writer.emit("p", relax.op.matmul(v["x"], v["w"])), v["b"]), is_output=True)

    op = only_op(model_of({"x": ((4, 5), "float32")}, {"w": weight, "b": bias}, body, ("y",)), rng)
    samples = [rng.integers(0, 256, (4, 5)).astype(np.uint8) for _ in range(6)]
    real = np.concatenate(samples).astype(np.int64) - op.x.zero_point
    found = mean_accumulators(op, sum(each.astype(np.int64) - op.x.zero_point for each in samples), 6)
    np.testing.assert_allclose(found, (real @ op.weight.values.astype(np.int64)).mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(covariances(op, samples).plain()[0], np.cov(real.T.astype(np.float64), bias=True), rtol=1e-9)


@pytest.mark.parametrize("options", [{}, {"strides": (2, 2), "padding": (1, 1, 1, 1), "output_padding": (1, 1)}])
def test_transposed_convolutions(rng: np.random.Generator, options: dict[str, Any]) -> None:
    weight, bias = rng.normal(size=(3, 4, 3, 2)).astype(np.float32), rng.normal(size=4).astype(np.float32)

    def body(writer: BodyWriter, **v: Any) -> Any:
        conv = writer.emit("c", relax.op.nn.conv2d_transpose(v["x"], v["w"], **options))
        return writer.emit("y", relax.op.add(conv, writer.emit("_b", relax.op.reshape(v["b"], (1, -1, 1, 1)))), is_output=True)

    op = only_op(model_of({"x": ((1, 3, 5, 4), "float32")}, {"w": weight, "b": bias}, body, ("y",)), rng)
    x = rng.integers(0, 256, (1, 5, 4, 3)).astype(np.int64) - op.x.zero_point
    _, channels, rows, columns = op.y.shape
    result = np.zeros((rows, columns, channels), np.int64)
    for iy, ix, a, b in np.ndindex(5, 4, 3, 2):
        oy, ox = iy * op.strides[0] + a - op.padding[0], ix * op.strides[1] + b - op.padding[1]
        if 0 <= oy < rows and 0 <= ox < columns:
            result[oy, ox] += x[0, iy, ix] @ op.weight.values[a, b].astype(np.int64)
    np.testing.assert_allclose(mean_accumulators(op, x, 1), result.mean(axis=(0, 1)), rtol=1e-12)
