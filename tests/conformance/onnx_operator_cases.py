"""Cases of ONNX's QOperator and integer ops: random shapes and quantization. No test and no Octavo."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx_case import MICROSOFT, Quantized, Writer
from onnx_qdq_cases import CONVOLUTIONS, Maker, draw, image, product_shapes, shape_of


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


def qlinear_product(w: Writer) -> str:
    """QLinearMatMul of two activations."""
    shapes = product_shapes(w)
    a, b = w.quantized(shapes[0]), w.quantized(shapes[1], w.weight)
    params = w.params_for(lambda: w.node("MatMul", [w.real(a), w.real(b)]))
    w.output(w.node("QLinearMatMul", [*a.names, *b.names, *params]))
    return f"{shapes[0]} by {shapes[1]}"


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


def conv_integer(form: str, *, rank: int = 2) -> Maker:
    """Its sums as they are; per-tensor zero points, as ONNX Runtime takes them."""

    def make(w: Writer) -> str:
        attributes = CONVOLUTIONS[form](w)
        if rank == 1:
            attributes = {name: value if isinstance(value, int | str) else value[::2] for name, value in attributes.items()}
        group = attributes.get("group", 1)
        shape = image(w, 8 if group > 1 else 0)[: rank + 2]
        channels = group * draw(w, 1, 2) if form == "depthwise" else int(w.rng.choice([2, 6, 18]))
        x, weight = w.quantized(shape), w.weights((channels, shape[1] // group, *(3,) * rank), 0, per_axis=False)
        w.output(w.node("ConvInteger", [x.values, weight.values, x.zero_point, weight.zero_point], **attributes), "int32")
        return f"{form} {shape}"

    return make


def matmul_integer(w: Writer) -> str:
    """Its sums as they are: of an activation and weights, or of two activations."""
    shape, units = (draw(w, 1, 4), draw(w, 1, 5), int(w.rng.choice([5, 16, 33]))), int(w.rng.choice([1, 8, 21]))
    x, weight = w.quantized(shape[draw(w, 0, 1) :]), w.weights((shape[-1], units), 1, per_axis=False)
    if draw(w, 0, 2) == 0:
        weight = w.quantized((shape[0], shape[-1], units), w.weight)
    w.output(w.node("MatMulInteger", [x.values, weight.values, x.zero_point, weight.zero_point]), "int32")
    return f"{shape} units {units}"


def scaled_sums(op: str) -> Maker:
    """QuantizeLinear, sums in int32, Cast, Mul, and an int32 or a float32 bias: what exporters write by hand."""

    def make(w: Writer) -> str:
        shape = (draw(w, 2, 4), 8, draw(w, 5, 9), draw(w, 5, 9)) if op == "ConvInteger" else (draw(w, 2, 9), 16)
        units, axis = int(w.rng.choice([5, 16, 18])), 0 if op == "ConvInteger" else 1
        fed = w.feed(w.rng.normal(size=shape).astype(np.float32))
        params = [
            w.constant(np.float32(0.02)),
            w.constant(draw(w, 110, 140) - (128 if w.activation == "int8" else 0), w.activation),
        ]
        weight = w.weights((units, 8, 3, 3) if axis == 0 else (16, units), axis, per_axis=False)
        x = w.node("QuantizeLinear", [fed, *params])
        sums = w.node(op, [x, weight.values, params[1], weight.zero_point])
        channels = (units, 1, 1) if axis == 0 else (units,)
        form = draw(w, 0, 2)
        if form == 0:
            sums = w.node("Add", [sums, w.constant(w.rng.integers(-9000, 9000, channels).astype(np.int32))])
        scale = w.constant((w.rng.uniform(0.001, 0.02, channels if draw(w, 0, 1) else ()) * 0.02).astype(np.float32))
        value = w.node("Mul", [w.node("Cast", [sums], to=onnx.TensorProto.FLOAT), scale])
        if form == 1:
            value = w.node("Add", [value, w.constant(w.rng.normal(size=channels).astype(np.float32))])
        if draw(w, 0, 1):
            w.quantize(value)
        else:
            w.output(value, "float32")
        return f"{shape} units {units} form {form}"

    return make


def dynamic_quantize(w: Writer) -> str:
    shape = shape_of(w)
    x = w.feed((w.rng.normal(size=shape) * w.rng.uniform(0.1, 30) + w.rng.normal()).astype(np.float32))
    values, scale, zero_point = w.node("DynamicQuantizeLinear", [x], count=3)
    w.output(values, "uint8")
    w.output(scale, "float32")
    w.output(zero_point, "uint8")
    return f"{shape}"
