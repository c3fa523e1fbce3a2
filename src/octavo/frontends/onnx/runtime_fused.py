"""ONNX Runtime's activations, and products and convolutions with what it fuses into them, as standard ops."""

from __future__ import annotations

from collections.abc import Callable

from .standard_steps import Steps


def _gelu(*, is_tanh: bool) -> Callable[[Steps], None]:
    """GELU, of the sum with a bias where there is one."""

    def rewrite(r: Steps) -> None:
        x, bias = r.required(0, "X"), r.input(1)
        r.gelu(r.emit("Add", [x, bias]) if bias else x, to=r.output(0), is_tanh=is_tanh)

    return rewrite


def _quick_gelu(r: Steps) -> None:
    """x times the sigmoid of alpha times x."""
    x, alpha = r.required(0, "X"), float(r.attrs.get("alpha", 1.702))
    inner = x if alpha == 1.0 else r.emit("Mul", [x, r.number(alpha)])
    r.emit("Mul", [x, r.emit("Sigmoid", [inner])], to=r.output(0))


def _operand(r: Steps, index: int, name: str) -> str:
    """Return an operand of a product, its axes moved as the attributes say; vectors stay as they are."""
    value = r.required(index, name)
    swaps, moves = bool(r.attrs.get(f"trans{name}", 0)), bool(r.attrs.get(f"transBatch{name}", 0))
    if not (swaps or moves):
        return value
    axes = list(range(r.rank(value)))
    if len(axes) < 2:
        return value
    if moves and len(axes) > 2:
        axes = [*axes[1:-1], 0, axes[-1]]
    if swaps:
        axes[-2:] = axes[:-3:-1]
    return r.transpose(value, *axes)


def _product(r: Steps, *, to: str) -> str:
    alpha = float(r.attrs.get("alpha", 1.0))
    product = r.emit("MatMul", [_operand(r, 0, "A"), _operand(r, 1, "B")], to=to if alpha == 1.0 else "")
    return product if alpha == 1.0 else r.emit("Mul", [product, r.number(alpha)], to=to)


def _matmul(r: Steps) -> None:
    _product(r, to=r.output(0))


def _matmul_activation(r: Steps) -> None:
    name, attrs = r.text("activation"), r.attrs
    given = [float(attrs[key]) for key in ("activation_alpha", "activation_beta", "activation_gamma") if key in attrs]
    r.activated(_product(r, to=""), name, given, to=r.output(0))


def _gemm(r: Steps) -> None:
    name, attrs = r.text("activation"), r.attrs
    inputs = [r.required(0, "A"), r.required(1, "B"), *([r.input(2)] if r.input(2) else [])]
    value = r.emit("Gemm", inputs, to="" if name else r.output(0), **r.copied("alpha", "beta", "transA", "transB"))
    if name:
        places = ("activation_alpha", "activation_gamma" if name == "Selu" else "activation_beta")
        r.activated(value, name, [float(attrs[key]) for key in places if key in attrs], to=r.output(0))


def _conv(r: Steps) -> None:
    """A convolution, the sum with another tensor, and an activation."""
    name, added = r.text("activation"), r.input(3)
    inputs = [r.required(0, "X"), r.required(1, "W"), *([r.input(2)] if r.input(2) else [])]
    attrs = r.copied("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    value = r.emit("Conv", inputs, to="" if name or added else r.output(0), **attrs)
    if added:
        value = r.emit("Add", [value, added], to="" if name else r.output(0))
    if name:
        r.activated(value, name, [float(each) for each in r.attrs.get("activation_params", ())], to=r.output(0))


REWRITES: dict[str, Callable[[Steps], None]] = {
    "BiasGelu": _gelu(is_tanh=False),
    "FastGelu": _gelu(is_tanh=True),
    "FusedConv": _conv,
    "FusedGemm": _gemm,
    "FusedMatMul": _matmul,
    "FusedMatMulActivation": _matmul_activation,
    "Gelu": _gelu(is_tanh=False),
    "QuickGelu": _quick_gelu,
    "TransposeMatMul": _matmul,
}
"""How each op becomes standard ones."""
