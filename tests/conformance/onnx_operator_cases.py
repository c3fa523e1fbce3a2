"""Cases of ONNX's QOperator and integer ops: random shapes and quantization. No test and no Octavo."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx_case import MICROSOFT, Quantized, Writer
from onnx_qdq_cases import CONVOLUTIONS, Maker, draw, image, shape_of


def integer_bias(w: Writer, channels: int) -> list[str]:
    return [w.constant(w.rng.integers(-3000, 3000, channels).astype(np.int32))] if draw(w, 0, 2) else []


def qlinear_conv(form: str) -> Maker:
    def make(w: Writer) -> str:
        attributes = CONVOLUTIONS[form](w)
        group = attributes.get("group", 1)
        shape = image(w, 8 if group > 1 else 0)
        channels = group if form == "depthwise" else int(w.rng.choice([2, 4, 16, 18]))
        kernel = (draw(w, 1, 3), draw(w, 1, 3)) if group == 1 else (3, 3)
        per_axis = bool(draw(w, 0, 1))
        x = w.quantized(shape)
        weight = w.weights((channels, shape[1] // group, *kernel), 0, per_axis=per_axis)
        bias = integer_bias(w, channels)

        def real() -> str:
            return str(w.node("Conv", [w.real(x), w.real(weight, 0 if per_axis else None)], **attributes))

        w.output(w.node("QLinearConv", [*x.names, *weight.names, *w.params_for(real), *bias], **attributes))
        return f"{form} {shape} kernel {kernel}"

    return make


def qlinear_matmul(w: Writer) -> str:
    rank, units = draw(w, 2, 4), int(w.rng.choice([1, 8, 21]))
    shape = (*(draw(w, 1, 4) for _ in range(rank - 1)), int(w.rng.choice([5, 16, 33])))
    per_axis = bool(draw(w, 0, 1))
    x, weight = w.quantized(shape), w.weights((shape[-1], units), 1, per_axis=per_axis)
    params = w.params_for(lambda: w.node("MatMul", [w.real(x), w.real(weight, 1 if per_axis else None)]))
    w.output(w.node("QLinearMatMul", [*x.names, *weight.names, *params]))
    return f"{shape} units {units}"


def q_gemm(w: Writer) -> str:
    rows, terms, units = draw(w, 1, 5), int(w.rng.choice([5, 16, 33])), int(w.rng.choice([1, 8, 21]))
    trans_a, trans_b = draw(w, 0, 1) * draw(w, 0, 1), draw(w, 0, 1)
    alpha = float(w.rng.choice([1.0, 1.0, 0.5, 1.7]))
    axis, per_axis = 0 if trans_b else 1, bool(draw(w, 0, 1))
    x = w.quantized((terms, rows) if trans_a else (rows, terms))
    weight = w.weights((units, terms) if trans_b else (terms, units), axis, per_axis=per_axis)
    attributes = {"alpha": alpha, "transA": trans_a, "transB": trans_b}

    def real() -> str:
        return str(w.node("Gemm", [w.real(x), w.real(weight, axis if per_axis else None)], **attributes))

    bias = integer_bias(w, units) or [""]
    w.output(w.node("QGemm", [*x.names, *weight.names, *bias, *w.params_for(real)], domain=MICROSOFT, **attributes))
    return f"{rows} x {terms} x {units} {attributes}"


def qlinear_binary(op: str) -> Maker:
    def make(w: Writer) -> str:
        shape, form = shape_of(w), draw(w, 0, 3)
        other = shape if form < 2 else (shape[-1],) if form == 2 else (1,)
        a = w.quantized(shape)
        b = w.quantized(other, constant=form == 1, scale=float(a.real_scale * w.rng.uniform(0.3, 3)))
        params = w.params_for(lambda: w.node(op, [w.real(a), w.real(b)]))
        w.output(w.node(f"QLinear{op}", [*a.names, *b.names, *params], domain=MICROSOFT))
        return f"{shape} and {other} form {form}"

    return make


def qlinear_pool(op: str) -> Maker:
    def make(w: Writer) -> str:
        shape, attributes = image(w), {}
        if op == "AveragePool":
            kernel = [draw(w, 1, 4), draw(w, 1, 4)]
            attributes = {"kernel_shape": kernel, "strides": [draw(w, 1, 3), draw(w, 1, 3)], "count_include_pad": draw(w, 0, 1)}
            if draw(w, 0, 1):
                attributes["pads"] = [draw(w, 0, kernel[axis % 2] - 1) for axis in range(4)]
        x = w.quantized(shape)
        params = w.params_for(lambda: w.node(op, [w.real(x)], **attributes))
        w.output(w.node(f"QLinear{op}", [*x.names, *params], domain=MICROSOFT, channels_last=0, **attributes))
        return f"{shape} {attributes}"

    return make


def qlinear_concat(w: Writer) -> str:
    shape, parts = list(image(w)), list[Quantized]()
    for _ in range(draw(w, 2, 4)):
        shape[1] = draw(w, 1, 5)
        parts.append(w.quantized(tuple(shape), scale=float(w.rng.uniform(0.02, 0.05))))
    params = w.params_for(lambda: w.node("Concat", [w.real(part) for part in parts], axis=1))
    w.output(w.node("QLinearConcat", [*params, *(name for part in parts for name in part.names)], domain=MICROSOFT, axis=1))
    return f"{shape} {len(parts)} parts"


def qlinear_unary(op: str, **fields: Any) -> Maker:
    def make(w: Writer) -> str:
        shape = shape_of(w)
        attributes = {name: value(w) if callable(value) else value for name, value in fields.items()}
        x = w.quantized(shape, scale=float(2.0 ** w.rng.uniform(-6, -3)))
        params = w.params_for(lambda: w.node(op, [w.real(x)], **attributes))
        w.output(w.node(f"QLinear{op}", [*x.names, *params], domain=MICROSOFT, **attributes))
        return f"{shape} {attributes}"

    return make


def qlinear_softmax(*, any_scale: bool) -> Maker:
    """With the step of 1 / 256 that quantizers write, or any step."""

    def make(w: Writer) -> str:
        shape = shape_of(w)
        x = w.quantized(shape, scale=float(2.0 ** w.rng.uniform(-6, -3)))
        least = np.iinfo(w.activation).min
        params = [w.constant(np.float32(1 / 256)), w.constant(least, w.activation)]
        if any_scale:
            params = w.params_for(lambda: w.node("Softmax", [w.real(x)]))
        w.output(w.node("QLinearSoftmax", [*x.names, *params], domain=MICROSOFT, axis=-1, opset=13))
        return f"{shape}"

    return make


def conv_integer(w: Writer) -> str:
    form = str(w.rng.choice(["plain", "grouped", "dilated", "uneven"]))
    attributes = CONVOLUTIONS[form](w)
    group = attributes.get("group", 1)
    shape = image(w, 8 if group > 1 else 0)
    x, weight = w.quantized(shape), w.weights((6, shape[1] // group, 3, 3), 0, per_axis=False)
    w.output(w.node("ConvInteger", [x.values, weight.values, x.zero_point, weight.zero_point], **attributes), "int32")
    return f"{form} {shape}"


def matmul_integer(w: Writer) -> str:
    shape, units = (draw(w, 1, 4), draw(w, 1, 5), int(w.rng.choice([5, 16, 33]))), int(w.rng.choice([1, 8, 21]))
    x, weight = w.quantized(shape[draw(w, 0, 1) :]), w.weights((shape[-1], units), 1, per_axis=False)
    w.output(w.node("MatMulInteger", [x.values, weight.values, x.zero_point, weight.zero_point]), "int32")
    return f"{shape} units {units}"


def dynamic_quantize(w: Writer) -> str:
    shape = shape_of(w)
    x = w.feed((w.rng.normal(size=shape) * w.rng.uniform(0.1, 30) + w.rng.normal()).astype(np.float32))
    values, scale, zero_point = w.node("DynamicQuantizeLinear", [x], count=3)
    w.output(values, "uint8")
    w.output(scale, "float32")
    w.output(zero_point, "uint8")
    return f"{shape}"
