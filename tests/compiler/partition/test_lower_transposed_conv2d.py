"""Transposed convolutions in QDQ form: their kernels against the definition, and what is rejected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from octavo.compiler.partition.pipeline import integer_regions
from octavo.ir.graph.dataflow import BodyWriter
from octavo.numerics import Window, conv2d_transpose_accumulate, requantize, requantize_multiplier
from octavo.target import CPU
from qdq_graph import Qdq, graph, run_float, run_lowered

X, Y = (0.05, 7), (0.4, 131)
CASES: dict[str, dict[str, Any]] = {
    "upsampling": {"kernel": (2, 2), "strides": (2, 2)},
    "no phase lacks taps": {"kernel": (4, 4), "strides": (2, 2), "padding": (1, 1, 1, 1)},
    "output padding": {"kernel": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1), "output_padding": (1, 1)},
    "stride beyond the kernel": {"kernel": (2, 1), "strides": (3, 2), "output_padding": (2, 0)},
    "stride 1": {"kernel": (3, 2), "strides": (1, 1), "padding": (0, 1, 2, 0)},
    "one row": {"kernel": (1, 5), "strides": (1, 4), "padding": (0, 2, 0, 1), "dilation": (1, 2)},
    "drops whole pixels": {"kernel": (3, 3), "strides": (2, 2), "padding": (5, 4, 3, 6)},
    "groups": {"kernel": (4, 3), "strides": (2, 3), "padding": (1, 0, 1, 0), "groups": 2, "channels": (6, 8)},
    "depthwise": {"kernel": (4, 4), "strides": (2, 2), "padding": (1, 1, 1, 1), "groups": 17, "channels": (17, 17)},
}


def operands(case: dict[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the attributes and the operands of a case, x NHWC and w IOHW, with weights and zero points to their limits."""
    attributes = {"padding": (0, 0, 0, 0), "output_padding": (0, 0), "dilation": (1, 1), "groups": 1, **case}
    kernel, (inputs, outputs) = attributes.pop("kernel"), attributes.pop("channels", (5, 18))
    rng = np.random.default_rng(len(case) + outputs)
    groups = attributes["groups"]
    # Scales along the outputs of a group; of a depthwise one, whose outputs are its inputs, along these.
    axis = 0 if groups == inputs else 1
    along = inputs if groups == inputs else outputs // groups
    arrays = {
        "x": rng.integers(0, 256, (2, 5, 6, inputs)).astype(np.uint8),
        "w": rng.integers(-128, 128, (inputs, outputs // groups, *kernel)).astype(np.int8),
        "w_scale": np.linspace(0.004, 0.009, along).astype(np.float32),
        "w_zero_point": rng.integers(-128, 128, along).astype(np.int32),
        "bias": rng.integers(-3000, 3000, outputs).astype(np.int32),
        "axis": np.asarray(axis),
    }
    return attributes, arrays


def module_of(attributes: dict[str, Any], arrays: dict[str, np.ndarray], layout: str, ending: str) -> tvm.IRModule:
    """dequantize, conv2d_transpose, bias, relu, quantize; or no quantize at all."""
    axis = int(arrays["axis"])
    shape = arrays["x"].shape if layout == "NHWC" else arrays["x"].transpose(0, 3, 1, 2).shape
    repeats = 1 if axis == 0 else attributes["groups"]

    def body(writer: BodyWriter, inputs: dict[str, Any]) -> Any:
        q = Qdq(writer, "uint8")
        x = q.dequantize("x", inputs["x"], X)
        w = q.weight("w", arrays["w"], arrays["w_scale"], arrays["w_zero_point"], axis)
        lv = writer.emit("lv", relax.op.nn.conv2d_transpose(x, w, **attributes, data_layout=layout, kernel_layout="IOHW"))
        scale = np.float32(X[0]) * np.tile(arrays["w_scale"], repeats)
        bias = arrays["bias"].astype(np.float32) * scale
        shaped = bias.reshape([1, 1, 1, -1] if layout == "NHWC" else [1, -1, 1, 1])
        y = writer.emit("y", relax.op.add(lv, relax.const(shaped)), is_output=ending == "float")
        if ending == "float":
            return y
        return q.quantize("y", writer.emit("z", relax.op.nn.relu(y)), Y, is_output=True)

    return graph({"x": (shape, "uint8")}, body)


@pytest.mark.parametrize("case", CASES)
def test_a_transposed_convolution_equals_its_definition(case):
    attributes, arrays = operands(CASES[case])
    layout = "NHWC" if case == "upsampling" else "NCHW"
    module = module_of(attributes, arrays, layout, "relu")
    parts = integer_regions(module, CPU)
    assert parts.rejections == {}
    (region,) = parts.regions.values()
    assert region.attrs["quantize_info"]["weight"]["axis"] == int(arrays["axis"])
    groups, (inputs, of_group, *kernel) = attributes["groups"], arrays["w"].shape
    repeats = 1 if int(arrays["axis"]) == 0 else groups
    scale, zero_point = (np.tile(arrays[name], repeats) for name in ("w_scale", "w_zero_point"))
    turned = arrays["w"].reshape(groups, inputs // groups, of_group, *kernel).transpose(3, 4, 1, 0, 2)
    w = turned.reshape(*kernel, inputs // groups, groups * of_group)
    window = Window(**{name: attributes[name] for name in ("strides", "padding", "dilation") if name in attributes})
    given = {"window": window, "output_padding": attributes.get("output_padding", (0, 0)), "groups": groups}
    sums = conv2d_transpose_accumulate(arrays["x"], w, x_zero_point=X[1], w_zero_point=zero_point, **given)
    multiplier = requantize_multiplier(np.float32(X[0]), scale, np.float32(Y[0]))
    real_bias = arrays["bias"].astype(np.float32) * (np.float32(X[0]) * scale) / np.float64(np.float32(Y[0]))
    want = requantize(sums, multiplier, Y[1], Y[1], 255, "uint8", real_bias=real_bias.astype(np.float32))
    x = arrays["x"] if layout == "NHWC" else np.ascontiguousarray(arrays["x"].transpose(0, 3, 1, 2))
    got = run_lowered(module, x, threads=3)
    np.testing.assert_array_equal(got if layout == "NHWC" else got.transpose(0, 2, 3, 1), want)


def test_a_result_that_nothing_quantizes_stays_float():
    attributes, arrays = operands(CASES["no phase lacks taps"])
    module = module_of(attributes, arrays, "NCHW", "float")
    assert integer_regions(module, CPU).rejections == {}
    x = np.ascontiguousarray(arrays["x"].transpose(0, 3, 1, 2))
    np.testing.assert_allclose(run_lowered(module, x), run_float(module, x), rtol=1e-5, atol=1e-3)
