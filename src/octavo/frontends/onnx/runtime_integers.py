"""ONNX Runtime's products of integers that end in float, as DynamicQuantizeLinear, MatMulInteger and a product with the scales.

That is what its quantizer writes where it does not fuse them, and what integer kernels are recognised by.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx

from .standard_steps import Steps


def scaled_product(r: Steps, a: str, b: str, scales: tuple[str, str], zero_points: tuple[str, str], bias: str, to: str) -> str:
    """Return (a - a_zero_point) @ (b - b_zero_point) * (a_scale * b_scale) + bias; absent zero points and bias are ""."""
    points = [zero_points[0], zero_points[1]]
    while points and not points[-1]:
        points.pop()
    integers = r.emit("MatMulInteger", [a, b, *points])
    real = r.emit("Cast", [integers], to_type=onnx.TensorProto.FLOAT)
    product = r.emit("Mul", [real, r.emit("Mul", list(scales))], to="" if bias else to)
    return r.emit("Add", [product, bias], to=to) if bias else product


def _dynamic_matmul(r: Steps) -> None:
    a, scale, zero_point = r.emit_all("DynamicQuantizeLinear", [r.required(0, "A")], 3)
    scales = scale, r.required(2, "b_scale")
    scaled_product(r, a, r.required(1, "B"), scales, (zero_point, r.input(3)), r.input(4), r.output(0))


def _matmul(r: Steps) -> None:
    scales = r.required(2, "a_scale"), r.required(3, "b_scale")
    points = r.input(4), r.input(5)
    scaled_product(r, r.required(0, "A"), r.required(1, "B"), scales, points, r.input(6), r.output(0))


REWRITES: dict[str, Callable[[Steps], None]] = {
    "DynamicQuantizeMatMul": _dynamic_matmul,
    "MatMulIntegerToFloat": _matmul,
}
"""How each op becomes standard ones."""
