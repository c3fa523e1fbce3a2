"""Cases of ONNX reductions, places of extremes and functions of single elements in QDQ form. No test and no Octavo."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx_case import Writer
from onnx_qdq_cases import Maker, binary, draw, image, shape_of, unary


def reduction(op: str) -> Maker:
    def make(w: Writer) -> str:
        shape, keep = image(w), draw(w, 0, 1)
        axes = sorted(w.rng.choice(4, draw(w, 1, 4), replace=False).tolist())
        w.quantize(w.node(op, [w.real(w.quantized(shape)), w.constant(np.int64(axes))], keepdims=keep))
        return f"{shape} axes {axes} keepdims {keep}"

    return make


def extreme_of_16_bits(op: str) -> Maker:
    """Scale and zero point stay, as quantizers leave them around an extreme."""

    def make(w: Writer) -> str:
        x, axes = w.quantized(image(w)), sorted(w.rng.choice(4, draw(w, 1, 3), replace=False).tolist())
        w.quantize(w.node(op, [w.real(x), w.constant(np.int64(axes))], keepdims=0), x.names[1:])
        return f"axes {axes}"

    return make


def place(op: str) -> Maker:
    def make(w: Writer) -> str:
        shape, keep = shape_of(w, 3), draw(w, 0, 1)
        axis = draw(w, -3, 2)
        w.output(w.node(op, [w.real(w.quantized(shape))], axis=axis, keepdims=keep), "int64")
        return f"{shape} axis {axis} keepdims {keep}"

    return make


def log_softmax(w: Writer) -> str:
    shape = shape_of(w)
    w.quantize(w.node("LogSoftmax", [w.real(w.quantized(shape, scale=0.05))], axis=-1))
    return f"{shape}"


def gate(w: Writer) -> str:
    """A gate that stays in float between two tensors: x * sigmoid(g), and the sum of both read twice."""
    shape = image(w)
    x, g = w.real(w.quantized(shape)), w.real(w.quantized((1, shape[1], 1, 1), scale=0.03))
    gate = w.node("Sigmoid", [g])
    w.quantize(w.node("Mul", [x, gate]))
    w.quantize(w.node("Add", [x, gate]))
    return f"{shape}"


def comparison(op: str) -> Maker:
    """Two tensors of parameters of their own, or of the same, whose integers are often equal."""

    def make(w: Writer) -> str:
        shape = shape_of(w, 3)
        a, b = w.quantized(shape), w.quantized(shape if draw(w, 0, 1) else shape[2:])
        params = a.names[1:] if draw(w, 0, 1) else b.names[1:]
        w.output(w.node(op, [w.real(a), w.node("DequantizeLinear", [b.values, *params])]), "bool")
        return f"{shape}"

    return make


def choice(w: Writer) -> str:
    """Where by a condition that is fed, or by a comparison of two other tensors: no table holds four."""
    shape = shape_of(w, 3)
    if draw(w, 0, 1):
        condition = w.feed(w.rng.integers(0, 2, (*shape[:2], 1)).astype(bool))
    else:
        condition = w.node("Less", [w.real(w.quantized(shape)), w.real(w.quantized(shape))])
        condition = w.node("Not", [w.node("And", [condition, w.feed(w.rng.integers(0, 2, shape[2:]).astype(bool))])])
    a = w.real(w.quantized(shape))
    b = w.constant(np.float32(-3.25)) if draw(w, 0, 1) else w.real(w.quantized(shape[1:]))
    w.quantize(w.node("Where", [condition, a, b]))
    return f"{shape}"


def top(w: Writer) -> str:
    """Values and places of the greatest or least elements; one of both may go unread."""
    shape, read = shape_of(w, 3), draw(w, 0, 2)
    # Places along another axis than the last are of 64 bits, which kernels do not move.
    axis = -1 if read < 2 else draw(w, 0, 2)
    count = draw(w, 1, shape[axis])
    x = w.quantized(shape)
    values, places = w.node(
        "TopK", [w.real(x), w.constant(np.int64([count]))], count=2, axis=axis, largest=draw(w, 0, 1), sorted=1
    )
    if read < 2:
        w.output(places, "int64")
    if read:
        w.quantize(values, x.names[1:])
    return f"{count} of {shape} axis {axis}"


EIGHT, WITH_16 = ("u8", "s8"), ("u8", "s8", "u16", "s16")
FUNCTIONS: dict[str, list[tuple[Any, tuple[str, ...], int]]] = {
    **{op: [(binary(op), EIGHT, 4)] for op in ("Max", "Min", "Sum")},
    "ReduceSum": [(reduction("ReduceSum"), EIGHT, 3)],
    **{op: [(reduction(op), EIGHT, 3), (extreme_of_16_bits(op), ("s16", "u16"), 2)] for op in ("ReduceMax", "ReduceMin")},
    **{op: [(place(op), EIGHT, 2)] for op in ("ArgMax", "ArgMin")},
    "LogSoftmax": [(log_softmax, EIGHT, 2)],
    **{op: [(unary(op), EIGHT, 1)] for op in ("Abs", "Neg", "Exp", "Softplus")},
    "gate": [(gate, EIGHT, 2)],
    **{op: [(comparison(op), WITH_16, 2)] for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")},
    "TopK": [(top, WITH_16, 3)],
    "Where": [(choice, WITH_16, 4)],
}
"""op -> (maker, kinds of tensors, cases of each)."""
