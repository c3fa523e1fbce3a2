"""Cases of ONNX ops between DequantizeLinear and QuantizeLinear: random shapes and quantization. No test and no Octavo.

A maker writes one op into a Writer and returns a label.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx_case import Quantized, Writer

Maker = Callable[[Writer], str]


def draw(w: Writer, low: int, high: int) -> int:
    """Draw from [low; high]."""
    return int(w.rng.integers(low, high + 1))


def image(w: Writer, channels: int = 0) -> tuple[int, int, int, int]:
    """Draw an NCHW shape."""
    return 1, channels or int(w.rng.choice([1, 3, 8, 17])), draw(w, 6, 12), draw(w, 6, 12)


def shape_of(w: Writer, rank: int = 0) -> tuple[int, ...]:
    return (1, *(draw(w, 2, 8) for _ in range((rank or draw(w, 2, 4)) - 1)))


def bias(w: Writer, x: Quantized, weight: Quantized, channels: int) -> list[str]:
    """Draw a bias: absent, of float32, or int32 in units of the accumulator."""
    form = draw(w, 0, 3)
    if form == 0:
        return []
    values = w.rng.integers(-3000, 3000, channels)
    scale = x.real_scale * weight.real_scale
    if form == 1:
        return [w.constant((values * scale).astype(np.float32))]
    zero = w.constant(np.zeros(scale.shape, np.int32))
    names = [w.constant(values.astype(np.int32)), w.constant(scale.astype(np.float32)), zero]
    return [w.node("DequantizeLinear", names, axis=0 if scale.ndim else None)]


def activated(w: Writer, value: str) -> str:
    """Put nothing, a Relu or a Clip behind."""
    form = draw(w, 0, 4)
    if form == 0:
        return str(w.node("Relu", [value]))
    if form == 1:
        return str(w.node("Clip", [value, w.constant(np.float32(0)), w.constant(np.float32(6))]))
    return value


CONVOLUTIONS: dict[str, Callable[[Writer], dict[str, Any]]] = {
    "plain": lambda w: {"strides": [draw(w, 1, 2), draw(w, 1, 2)]},
    "grouped": lambda w: {"group": 2, "pads": [1, 1, 1, 1]},
    "depthwise": lambda w: {"group": 8, "pads": [1, 1, 1, 1], "strides": [draw(w, 1, 2)] * 2},
    "dilated": lambda w: {"dilations": [2, draw(w, 1, 2)]},
    "uneven": lambda w: {"pads": [0, 2, 1, 0]},
    "SAME_UPPER": lambda w: {"auto_pad": "SAME_UPPER", "strides": [2, draw(w, 1, 2)]},
    "SAME_LOWER": lambda w: {"auto_pad": "SAME_LOWER", "strides": [draw(w, 1, 2), 2]},
    "VALID": lambda w: {"auto_pad": "VALID"},
}


def conv(form: str, *, rank: int = 2) -> Maker:
    def make(w: Writer) -> str:
        attributes = CONVOLUTIONS[form](w)
        if rank == 1:
            attributes = {name: value if isinstance(value, int | str) else value[::2] for name, value in attributes.items()}
        group = attributes.get("group", 1)
        shape = image(w, 8 if group > 1 else 0)
        shape = shape if rank == 2 else shape[:3]
        channels = group * draw(w, 1, 2) if form == "depthwise" else int(w.rng.choice([2, 4, 16, 18]))
        kernel = tuple(draw(w, 1, 3) for _ in range(rank)) if group == 1 else (3,) * rank
        per_axis = bool(draw(w, 0, 1))
        x = w.quantized(shape)
        weight = w.weights((channels, shape[1] // group, *kernel), 0, per_axis=per_axis)
        inputs = [w.real(x), w.real(weight, 0 if per_axis else None), *bias(w, x, weight, channels)]
        w.quantize(activated(w, w.node("Conv", inputs, **attributes)))
        return f"{form} {shape} kernel {kernel}"

    return make


def conv_transpose(w: Writer) -> str:
    shape, kernel = image(w, 8), (draw(w, 1, 4), draw(w, 1, 4))
    group, strides = int(w.rng.choice([1, 1, 2])), [draw(w, 1, 3), draw(w, 1, 3)]
    channels = draw(w, 2, 6)
    attributes: dict[str, Any] = {"strides": strides, "group": group}
    form = draw(w, 0, 3)
    if form == 1:
        attributes["pads"] = [draw(w, 0, (kernel[axis % 2] - 1) // 2) for axis in range(4)]
        attributes["output_padding"] = [draw(w, 0, stride - 1) for stride in strides]
    elif form == 2:
        attributes["auto_pad"] = "SAME_UPPER"
        attributes["strides"] = [min(s, k) for s, k in zip(strides, kernel, strict=True)]
    elif form == 3:
        attributes["dilations"] = [draw(w, 1, 2), draw(w, 1, 2)]
    x = w.quantized(shape)
    weight = w.weights((8, channels, *kernel), 1, per_axis=group == 1 and bool(draw(w, 0, 1)))
    inputs = [w.real(x), w.real(weight, 1 if weight.real_scale.ndim else None), *bias(w, x, weight, channels * group)]
    if len(inputs) > 2 and group > 1 and weight.real_scale.ndim:
        inputs.pop()
    w.quantize(w.node("ConvTranspose", inputs, **attributes))
    return f"{shape} kernel {kernel} {attributes}"


def matmul(w: Writer) -> str:
    rank, units = draw(w, 1, 4), int(w.rng.choice([1, 8, 21]))
    shape = (*(draw(w, 1, 4) for _ in range(rank - 1)), int(w.rng.choice([5, 16, 33])))
    per_axis = bool(draw(w, 0, 1))
    x, weight = w.quantized(shape), w.weights((shape[-1], units), 1, per_axis=per_axis)
    value = w.node("MatMul", [w.real(x), w.real(weight, 1 if per_axis else None)])
    if draw(w, 0, 1):
        value = w.node("Add", [value, w.constant(w.rng.normal(size=units).astype(np.float32))])
    w.quantize(activated(w, value))
    return f"{shape} units {units}"


def stacked_matmul(w: Writer) -> str:
    """MatMul of matrices by a constant of several, each its own: as it is, or by channels with a scale each that are moved."""
    experts, rows, inner, units = draw(w, 2, 4), draw(w, 1, 6), int(w.rng.choice([5, 16, 33])), int(w.rng.choice([1, 8, 21]))
    shape = (*((draw(w, 2, 3),) if draw(w, 0, 1) else ()), experts, rows, inner)
    x = w.quantized(shape)
    if draw(w, 0, 1):
        channels = w.real(w.weights((experts * units, inner), 0, per_axis=True), 0)
        stack = w.node("Reshape", [channels, w.constant(np.int64([experts, units, inner]))])
        weight = w.node("Transpose", [stack], perm=[0, 2, 1])
    else:
        weight = w.real(w.weights((experts, inner, units), 2, per_axis=False))
    w.quantize(activated(w, w.node("MatMul", [w.real(x), weight])))
    return f"{shape} units {units}"


def product_shapes(w: Writer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draw the shapes of two activations to be multiplied, whose batch axes are the same, broadcast, or absent on one side."""
    batch = (draw(w, 1, 3), draw(w, 2, 3))
    rows, inner, columns = draw(w, 1, 7), int(w.rng.choice([3, 16, 33])), int(w.rng.choice([1, 7, 18]))
    fronts = [(batch, batch), (batch, (1, batch[1])), (batch[1:], batch), (batch, ()), ((), ())][draw(w, 0, 4)]
    return (*fronts[0], rows, inner), (*fronts[1], inner, columns)


def product(*, quantized: bool) -> Maker:
    """MatMul of two activations, as attention has it; its result is quantized, or scaled and read in float."""

    def make(w: Writer) -> str:
        shapes = product_shapes(w)
        a, b = w.quantized(shapes[0]), w.quantized(shapes[1], w.weight)
        value = w.node("MatMul", [w.real(a), w.real(b)])
        if quantized:
            w.quantize(activated(w, value))
        else:
            w.output(value, "float32")
        return f"{shapes[0]} by {shapes[1]}"

    return make


def narrow_weights(op: str) -> Maker:
    """Weights of 4 bits between DequantizeLinear and the op: one scale, one for each output channel, or one for each block."""

    def make(w: Writer) -> str:
        form, low = draw(w, 0, 2), 0 if w.weight == "uint4" else -8
        units, inner = int(w.rng.choice([5, 16, 18])), int(w.rng.choice([16, 32, 64]))
        shape = (units, inner, 1, 1) if op == "Conv" else (units, inner) if op == "Gemm" else (inner, units)
        axis = 1 if op == "MatMul" else 0
        fields: dict[str, Any] = [{}, {"axis": axis}, {"axis": 1 - axis, "block_size": 16}][form]
        counts = [(), (units,), tuple(d // 16 if at == 1 - axis else d for at, d in enumerate(shape))][form]
        names = [
            w.constant(w.rng.integers(low, low + 16, shape), w.weight),
            w.constant(w.rng.uniform(0.01, 0.1, counts).astype(np.float32)),
            w.constant(w.rng.integers(low, low + 16, counts) if low == 0 else np.zeros(counts, int), w.weight),
        ]
        x = w.quantized((2, inner, 3, 4) if op == "Conv" else (draw(w, 1, 5), inner))
        weight = w.node("DequantizeLinear", names, **fields)
        w.quantize(activated(w, w.node(op, [w.real(x), weight], **({"transB": 1} if op == "Gemm" else {}))))
        return f"{shape} scales {counts}"

    return make


def gemm(w: Writer) -> str:
    """All attributes, and C as a row, a matrix row, a column, one number, or absent."""
    rows, terms, units = draw(w, 1, 5), int(w.rng.choice([5, 16, 33])), int(w.rng.choice([1, 8, 21]))
    trans_a, trans_b = draw(w, 0, 1) * draw(w, 0, 1), draw(w, 0, 1)
    alpha, beta = (float(w.rng.choice([1.0, 1.0, 0.5, 1.7])) for _ in range(2))
    x = w.quantized((terms, rows) if trans_a else (rows, terms))
    axis = 0 if trans_b else 1
    per_axis = bool(draw(w, 0, 1))
    weight = w.weights((units, terms) if trans_b else (terms, units), axis, per_axis=per_axis)
    inputs = [w.real(x), w.real(weight, axis if per_axis else None)]
    form = [(units,), (1, units), (rows, 1), (), None][draw(w, 0, 4)]
    if form is not None:
        inputs.append(w.constant(w.rng.normal(size=form).astype(np.float32)))
    w.quantize(activated(w, w.node("Gemm", inputs, alpha=alpha, beta=beta, transA=trans_a, transB=trans_b)))
    return f"{rows} x {terms} x {units} alpha {alpha} beta {beta} transA {trans_a} transB {trans_b} C {form}"


def binary(op: str) -> Maker:
    """Two activations of one shape, a row broadcast over leading axes, one number, or a quantized or float constant."""

    def make(w: Writer) -> str:
        shape, form = shape_of(w), draw(w, 0, 5)
        other = shape if form in (0, 1) else (shape[-1],) if form in (2, 3) else (1,)
        a = w.quantized(shape)
        sides = [w.real(a)]
        if op == "Div":
            low = float(w.rng.uniform(0.5, 2))
            sides.append(w.constant(w.rng.uniform(low, low + 2, other).astype(np.float32)))
        elif form == 5:
            sides.append(w.constant(w.rng.uniform(0.3, 2, other).astype(np.float32)))
        else:
            sides.append(w.real(w.quantized(other, constant=form in (1, 3), scale=float(a.real_scale * w.rng.uniform(0.3, 3)))))
        if draw(w, 0, 3) == 0 and op != "Div":
            sides.reverse()
        w.quantize(activated(w, w.node(op, sides)))
        return f"{shape} and {other} form {form}"

    return make


def unary(op: str, **fields: Any) -> Maker:
    """Attributes are numbers or functions of the writer."""

    def make(w: Writer) -> str:
        shape = shape_of(w)
        attributes = {name: value(w) if callable(value) else value for name, value in fields.items()}
        x = w.quantized(shape, scale=float(2.0 ** w.rng.uniform(-6, -3)) / (256 if w.activation.endswith("16") else 1))
        w.quantize(w.node(op, [w.real(x)], **attributes))
        return f"{shape} {attributes or ''}"

    return make


def clip(w: Writer) -> str:
    shape, x = shape_of(w), None
    x = w.quantized(shape)
    reach = float(x.real_scale) * 60
    bounds = [w.constant(np.float32(-reach * w.rng.random())), w.constant(np.float32(reach * w.rng.random()))]
    w.quantize(w.node("Clip", [w.real(x), *(bounds if draw(w, 0, 2) else [bounds[0], ""])]))
    return f"{shape}"


def prelu(w: Writer) -> str:
    shape = image(w)
    x = w.quantized(shape)
    slope = w.quantized((shape[1], 1, 1), constant=True, scale=0.003)
    w.quantize(w.node("PRelu", [w.real(x), w.real(slope)]))
    return f"{shape}"


def same_params(w: Writer, x: Quantized, value: str) -> None:
    """End in the input's own parameters: how quantizers treat ops that move values or choose among them."""
    w.quantize(value, [x.scale, x.zero_point])


def pool(op: str) -> Maker:
    def make(w: Writer) -> str:
        shape, kernel = image(w), [draw(w, 1, 4), draw(w, 1, 4)]
        attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": [draw(w, 1, 3), draw(w, 1, 3)]}
        form = draw(w, 0, 4)
        if form in (1, 2):
            attributes["pads"] = [draw(w, 0, kernel[axis % 2] - 1) for axis in range(4)]
        elif form == 3:
            attributes["auto_pad"] = str(w.rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
        elif form == 4:
            attributes["ceil_mode"] = 1
        if op == "AveragePool":
            attributes["count_include_pad"] = draw(w, 0, 1)
        x = w.quantized(shape)
        value = w.node(op, [w.real(x)], **attributes)
        if op == "MaxPool" or draw(w, 0, 1):
            same_params(w, x, value)
        else:
            w.quantize(value)
        return f"{shape} {attributes}"

    return make


def global_pool(op: str) -> Maker:
    def make(w: Writer) -> str:
        shape = image(w)
        x = w.quantized(shape)
        value = w.node(op, [w.real(x)])
        if op == "GlobalMaxPool":
            same_params(w, x, value)
        else:
            w.quantize(value)
        return f"{shape}"

    return make


def reduce_mean(w: Writer) -> str:
    shape = image(w)
    axes = [2, 3] if draw(w, 0, 1) else sorted(w.rng.choice([1, 2, 3], draw(w, 1, 2), replace=False).tolist())
    keep = draw(w, 0, 1)
    w.quantize(w.node("ReduceMean", [w.real(w.quantized(shape)), w.constant(np.int64(axes))], keepdims=keep))
    return f"{shape} axes {axes} keepdims {keep}"


def concat(w: Writer) -> str:
    shape, count = list(shape_of(w)), draw(w, 2, 4)
    axis = draw(w, 1, len(shape) - 1)
    first = w.quantized(tuple(shape))
    parts = [w.real(first)]
    for _ in range(count - 1):
        shape[axis] = draw(w, 1, 5)
        parts.append(w.real(w.quantized(tuple(shape), scale=float(first.real_scale * w.rng.uniform(0.5, 1.5)))))
    w.quantize(w.node("Concat", parts, axis=axis if draw(w, 0, 1) else axis - len(shape)))
    return f"{count} parts along {axis}"


def pad(w: Writer) -> str:
    shape = image(w)
    widths = [0, draw(w, 0, 1), draw(w, 0, 2), draw(w, 0, 2), 0, draw(w, 0, 1), draw(w, 0, 2), draw(w, 0, 2)]
    mode = str(w.rng.choice(["constant", "constant", "reflect", "edge"]))
    if mode == "reflect" and shape[1] == 1:
        widths[1] = widths[5] = 0
    x = w.quantized(shape)
    same_params(w, x, w.node("Pad", [w.real(x), w.constant(np.int64(widths))], mode=mode))
    return f"{shape} {mode} {widths}"


def moving(op: str) -> Maker:
    """Ops that only move values; several results for Split."""

    def make(w: Writer) -> str:
        shape = (1, 4, 6, 8)
        x = w.quantized(shape)
        value, attributes = w.real(x), {}
        inputs: list[str] = []
        if op == "Reshape":
            inputs = [w.constant(np.int64([[1, 24, 8], [0, -1], [4, 6, 8], [2, -1]][draw(w, 0, 3)]))]
        elif op == "Transpose":
            attributes["perm"] = [0, *(1 + w.rng.permutation(3)).tolist()]
        elif op == "Slice":
            axes, steps = [2, 3], [draw(w, 1, 2), int(w.rng.choice([1, 3, -1]))]
            starts, ends = ([1, 0], [6, 2**40]) if steps[1] > 0 else ([0, -1], [-1, -(2**40)])
            inputs = [w.constant(np.int64(part)) for part in (starts, ends, axes, steps)]
        elif op == "Gather":
            attributes["axis"] = draw(w, 1, 3)
            inputs = [w.constant(w.rng.integers(-4, 4, [(), (3,), (2, 2)][draw(w, 0, 2)]).astype(np.int64))]
        elif op == "Squeeze":
            inputs = [w.constant(np.int64([0]))]
        elif op == "Unsqueeze":
            inputs = [w.constant(np.int64([draw(w, 0, 2)]))]
        elif op == "Flatten":
            attributes["axis"] = draw(w, 0, 3)
        elif op in ("SpaceToDepth", "DepthToSpace"):
            attributes["blocksize"] = 2
        elif op == "Expand":
            inputs = [w.constant(np.int64([2, 4, 6, 8]))]
        elif op == "Tile":
            inputs = [w.constant(np.int64([1, 2, 1, 2]))]
        if op == "Split":
            sizes = w.constant(np.int64([3, 5]))
            for part in w.node(op, [value, sizes], count=2, axis=3):
                same_params(w, x, part)
            return f"{shape}"
        same_params(w, x, w.node(op, [value, *inputs], **attributes))
        return f"{shape} {attributes}"

    return make


TRANSFORMS = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


def resize(mode: str, transform: str) -> Maker:
    def make(w: Writer) -> str:
        shape = image(w)
        sizes = (
            [*shape[:2], shape[2] * draw(w, 2, 3), shape[3] * 2]
            if draw(w, 0, 1)
            else [*shape[:2], draw(w, 3, 16), draw(w, 3, 16)]
        )
        attributes = {"mode": mode, "coordinate_transformation_mode": transform}
        if mode == "nearest":
            attributes["nearest_mode"] = str(w.rng.choice(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]))
        x = w.quantized(shape)
        same_params(w, x, w.node("Resize", [w.real(x), "", "", w.constant(np.int64(sizes))], **attributes))
        return f"{shape} to {sizes} {attributes}"

    return make


def softmax(w: Writer) -> str:
    shape = shape_of(w)
    axis = -1 if draw(w, 0, 3) else 1
    x = w.quantized(shape, scale=float(2.0 ** w.rng.uniform(-6, -3)) / (256 if w.activation.endswith("16") else 1))
    info = np.iinfo(w.activation)
    params = [w.constant(np.float32(1 / (info.max - info.min + 1))), w.constant(info.min, w.activation)]
    any_step = info.bits == 8 and draw(w, 0, 1)
    w.quantize(w.node("Softmax", [w.real(x)], axis=axis), None if any_step else params)
    return f"{shape} axis {axis}{' any step' if any_step else ''}"


def requantize(w: Writer) -> str:
    shape = (1, 16, 16)
    x = w.quantized(shape)
    target = w.activation if draw(w, 0, 1) else {"int8": "uint8", "uint8": "int8"}.get(w.activation, w.activation)
    w.quantize(w.real(x), dtype=target)
    return f"{w.activation} to {target}"


def quantize(w: Writer) -> str:
    shape = shape_of(w)
    w.quantize(w.feed(w.rng.normal(size=shape).astype(np.float32)))
    return f"float32 {shape}"


def dequantize(w: Writer) -> str:
    shape = shape_of(w)
    w.output(w.real(w.quantized(shape)), "float32")
    return f"{shape}"


def batch_norm(w: Writer) -> str:
    """Not behind a convolution; its factor and shift may be quantized, as quantize_static leaves them."""
    shape = image(w)
    statistics = [w.constant(w.rng.uniform(0.3, 2, shape[1]).astype(np.float32)) for _ in range(4)]
    if w.rng.random() < 0.5:
        for place, dtype in enumerate((np.int8, np.int32)):
            values = [w.rng.integers(1, 128, shape[1]).astype(dtype), np.float32(0.02), dtype(0)]
            statistics[place] = w.node("DequantizeLinear", [w.constant(value) for value in values])
    w.quantize(activated(w, w.node("BatchNormalization", [w.real(w.quantized(shape)), *statistics])))
    return f"{shape}"
