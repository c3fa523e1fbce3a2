"""Cases of every TFLite op: random shapes and quantization from fixed seeds. Values only, no test and no Octavo."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from tflite_case import Case, Value
from tflite_draws import (
    NONE,
    RANGE,
    SAME,
    VALID,
    Maker,
    Rng,
    activation,
    case,
    feed,
    image,
    options,
    params,
    shape_of,
)
from tflite_function_cases import FUNCTIONS, GATHERS, NEW_AXES, interpolated
from tflite_moving_cases import MOVES, moving
from tflite_place_cases import PLACES, WITHOUT_KERNEL, stored_concatenation
from tflite_weighted_cases import (
    batch_matmul,
    conv,
    conv_size,
    fully_connected,
    half_weights,
    hybrid,
    hybrid_batch_matmul,
    transpose_conv,
)


def binary(op: str, table: str, *, same: bool = False, product: bool = False) -> Maker:
    def make(rng: Rng, dtype: str) -> Case:
        shape = shape_of(rng)
        kind = int(rng.integers(0, 4))
        other = shape if kind < 2 else (*(1 for _ in shape[:-1]), shape[-1]) if kind == 2 else (1,) * len(shape)
        a_params = params(rng, dtype)
        scale = a_params.get("scale", (1.0,))[0]
        b_params = a_params if same else params(rng, dtype, scale * float(rng.uniform(0.3, 3)))
        a = Value(shape=shape, **a_params)
        b = Value(shape=other, **b_params)
        if kind == 1 or (kind == 3 and rng.integers(0, 2)):
            b = Value.constant(feed(rng, b), scale=b.scale, zero_point=b.zero_point)
        if dtype == "float32" or same:
            y_params = a_params
        elif product:
            unit = 60.0 if dtype != "int16" else 12000.0
            y_params = params(rng, dtype, a.scale[0] * b.scale[0] * unit * float(rng.uniform(0.5, 2)))
        else:
            y_params = params(rng, dtype, (a.scale[0] + b.scale[0]) * float(rng.uniform(0.3, 1)))
        inputs = [b, a] if rng.integers(0, 4) == 0 else [a, b]
        fields = {"fusedActivationFunction": activation(rng)} if table in ("AddOptions", "SubOptions", "MulOptions") else {}
        return case(
            rng, op, f"{inputs[0].shape} {inputs[1].shape}", inputs, [Value(shape=shape, **y_params)], options(table, **fields)
        )

    return make


def unary(
    op: str,
    table: str = "",
    out: dict[str, tuple[float, int]] | None = None,
    *,
    same: bool = False,
    image_like: bool = False,
    **fields: Any,
) -> Maker:
    """Make an op of one tensor; `out` fixes scale and zero point by dtype, `same` takes those of the input."""

    def make(rng: Rng, dtype: str) -> Case:
        shape = image(rng) if image_like else shape_of(rng)
        x = Value(
            shape=shape,
            **params(
                rng, dtype, None if dtype == "float32" else float(2.0 ** rng.uniform(-6, -3)) / (256 if dtype == "int16" else 1)
            ),
        )
        if dtype == "float32":
            y_params = {"dtype": dtype}
        elif out is not None:
            y_params = params(rng, dtype, *out[dtype])
        else:
            y_params = (
                params(rng, dtype, x.scale[0], x.zero_point[0])
                if same
                else params(rng, dtype, x.scale[0] * float(rng.uniform(0.5, 1.5)))
            )
        drawn = {key: value(rng) if callable(value) else value for key, value in fields.items()}
        return case(
            rng, op, f"{shape} {drawn or ''}", [x], [Value(shape=shape, **y_params)], options(table, **drawn) if table else None
        )

    return make


def rsqrt(rng: Rng, dtype: str) -> Case:
    """Draw an input without negative values: LiteRT stops at the first one."""
    shape, zero_point = shape_of(rng), RANGE[dtype][0]
    x = Value(shape=shape, **params(rng, dtype, None, zero_point))
    return case(rng, "RSQRT", f"{shape}", [x], [Value(shape=shape, **params(rng, dtype, 0.05, zero_point))])


def pool(op: str) -> Maker:
    def make(rng: Rng, dtype: str) -> Case:
        shape, padding = image(rng), int(rng.choice([SAME, VALID]))
        kernel, strides = [int(k) for k in rng.integers(1, 5, 2)], [int(s) for s in rng.integers(1, 4, 2)]
        x = Value(shape=shape, **params(rng, dtype))
        out = tuple(conv_size(*axis, 1, padding) for axis in zip(shape[1:3], kernel, strides, strict=True))
        y = Value(shape=(1, *out, shape[3]), dtype=dtype, scale=x.scale, zero_point=x.zero_point)
        fields = {"filterHeight": kernel[0], "filterWidth": kernel[1], "strideH": strides[0], "strideW": strides[1]}
        table = options("Pool2DOptions", padding=padding, fusedActivationFunction=activation(rng), **fields)
        return case(rng, op, f"{shape} window {kernel}", [x], [y], table)

    return make


def reduce(op: str, *, same: bool = False, images: bool = True) -> Maker:
    def make(rng: Rng, dtype: str) -> Case:
        shape = image(rng)
        axes = (
            (1, 2)
            if images and rng.integers(0, 4)
            else tuple(sorted(rng.choice([1, 2, 3], int(rng.integers(1, 3)), replace=False).tolist()))
        )
        keep = bool(rng.integers(0, 2))
        x = Value(shape=shape, **params(rng, dtype))
        out = tuple(1 if axis in axes else size for axis, size in enumerate(shape) if keep or axis not in axes)
        count = float(np.prod([shape[axis] for axis in axes]))
        if dtype == "float32" or same:
            y = Value(shape=out, dtype=dtype, scale=x.scale, zero_point=x.zero_point)
        else:
            factor = float(rng.uniform(0.3, 1.2)) * (np.sqrt(count) if op == "SUM" else 1.0)
            y = Value(shape=out, **params(rng, dtype, x.scale[0] * factor))
        return case(
            rng, op, f"{shape} axes {axes}", [x, Value.constant(np.int32(axes))], [y], options("ReducerOptions", keepDims=keep)
        )

    return make


def concatenation(rng: Rng, dtype: str) -> Case:
    shape, count = list(shape_of(rng)), int(rng.integers(2, 5))
    axis = int(rng.integers(1, len(shape)))
    common = params(rng, dtype)
    inputs = []
    for _ in range(count):
        shape[axis] = int(rng.integers(1, 6))
        # LiteRT's uint8 kernel alone takes inputs of different parameters.
        own = (
            params(rng, dtype, common["scale"][0] * float(rng.uniform(0.5, 1.5)))
            if dtype == "uint8" and rng.integers(0, 2)
            else common
        )
        inputs.append(Value(shape=tuple(shape), **own))
    shape[axis] = sum(value.shape[axis] for value in inputs)
    table = options("ConcatenationOptions", axis=axis if rng.integers(0, 2) else axis - len(shape), fusedActivationFunction=NONE)
    return case(rng, "CONCATENATION", f"{shape} axis {axis}", inputs, [Value(shape=tuple(shape), **common)], table)


def pad(op: str) -> Maker:
    def make(rng: Rng, dtype: str) -> Case:
        shape = image(rng) if rng.integers(0, 2) else shape_of(rng)
        widths = rng.integers(0, 3, (len(shape), 2)).astype(np.int32)
        widths[0] = 0
        table = options({"PAD": "PadOptions", "PADV2": "PadV2Options", "MIRROR_PAD": "MirrorPadOptions"}[op])
        if op == "MIRROR_PAD":
            widths = np.minimum(widths, np.array(shape)[:, None] - 1).astype(np.int32)
            table.mode = int(rng.integers(0, 2))
        x = Value(shape=shape, **params(rng, dtype))
        y = Value(
            shape=tuple(n + int(w.sum()) for n, w in zip(shape, widths, strict=True)),
            dtype=dtype,
            scale=x.scale,
            zero_point=x.zero_point,
        )
        inputs = [x, Value.constant(widths)]
        if op == "PADV2":
            fill = feed(rng, Value(shape=(1,), dtype=dtype))
            inputs.append(Value.constant(fill, scale=x.scale, zero_point=x.zero_point))
        return case(rng, op, f"{shape} by {widths.tolist()}", inputs, [y], table)

    return make


def pack(rng: Rng, dtype: str) -> Case:
    shape, count = shape_of(rng, 3), int(rng.integers(2, 4))
    axis, common = int(rng.integers(0, 4)), params(rng, dtype)
    out = list(shape)
    out.insert(axis, count)
    inputs = [Value(shape=shape, **common) for _ in range(count)]
    return case(
        rng,
        "PACK",
        f"{shape} axis {axis}",
        inputs,
        [Value(shape=tuple(out), **common)],
        options("PackOptions", axis=axis, valuesCount=count),
    )


def resize(op: str, table: str) -> Maker:
    def make(rng: Rng, dtype: str) -> Case:
        shape, size = image(rng), [int(n) for n in rng.integers(4, 20, 2)]
        mode = int(rng.integers(0, 3))
        x = Value(shape=shape, **params(rng, dtype))
        y = Value(shape=(1, *size, shape[3]), dtype=dtype, scale=x.scale, zero_point=x.zero_point)
        fields = options(table, alignCorners=mode == 1, halfPixelCenters=mode == 2)
        return case(rng, op, f"{shape} to {size} mode {mode}", [x, Value.constant(np.int32(size))], [y], fields)

    return make


def prelu(rng: Rng, dtype: str) -> Case:
    shape = image(rng)
    x = Value(shape=shape, **params(rng, dtype))
    slope_shape = (1, 1, shape[3]) if rng.integers(0, 2) else shape[1:]
    # 16-bit activations come with slopes of 8 bits: LiteRT reads them so.
    slope_params = params(rng, "int8", 0.01, 0) if dtype == "int16" else params(rng, dtype, 0.01)
    slope = Value.constant(
        feed(rng, Value(shape=slope_shape, **slope_params)),
        scale=slope_params.get("scale", ()),
        zero_point=slope_params.get("zero_point", ()),
    )
    y_params = params(rng, dtype, None if dtype == "float32" else x.scale[0] * float(rng.uniform(0.7, 1.3)))
    return case(rng, "PRELU", f"{shape} slope {slope_shape}", [x, slope], [Value(shape=shape, **y_params)])


def place(op: str) -> Maker:
    def make(rng: Rng, dtype: str) -> Case:
        shape = shape_of(rng, 3)
        axis = int(rng.integers(-3, 3))
        out = Value(shape=tuple(n for i, n in enumerate(shape) if i != axis % 3), dtype=str(rng.choice(["int32", "int64"])))
        kind = {"int32": schema.TensorType.INT32, "int64": schema.TensorType.INT64}[out.dtype]
        table = options("ArgMaxOptions" if op == "ARG_MAX" else "ArgMinOptions", outputType=kind)
        x = Value(shape=shape, **params(rng, dtype))
        return case(rng, op, f"{shape} axis {axis}", [x, Value.constant(np.int32(axis))], [out], table)

    return make


def quantize(rng: Rng, dtype: str) -> Case:
    shape = shape_of(rng)
    return case(
        rng,
        "QUANTIZE",
        f"float32 {shape}",
        [Value(shape=shape)],
        [Value(shape=shape, **params(rng, dtype))],
        options("QuantizeOptions"),
    )


def requantize(rng: Rng, dtype: str) -> Case:
    shape = (1, 16, 16)
    x = Value(shape=shape, **params(rng, dtype))
    target = dtype if dtype == "int16" or rng.integers(0, 2) else {"int8": "uint8", "uint8": "int8"}[dtype]
    y = Value(shape=shape, **params(rng, target, x.scale[0] * float(2.0 ** rng.uniform(-2, 2))))
    return case(rng, "QUANTIZE", f"{dtype} to {target}", [x], [y], options("QuantizeOptions"))


def dequantize(rng: Rng, dtype: str) -> Case:
    shape = shape_of(rng)
    return case(
        rng,
        "DEQUANTIZE",
        f"{shape}",
        [Value(shape=shape, **params(rng, dtype))],
        [Value(shape=shape)],
        options("DequantizeOptions"),
    )


FIXED = {
    "LOGISTIC": {"int8": (1 / 256, -128), "uint8": (1 / 256, 0), "int16": (1 / 32768, 0)},
    "TANH": {"int8": (1 / 128, 0), "uint8": (1 / 128, 128), "int16": (1 / 32768, 0)},
    "SOFTMAX": {"int8": (1 / 256, -128), "uint8": (1 / 256, 0), "int16": (1 / 32768, 0)},
    "LOG_SOFTMAX": {"int8": (16 / 256, 127), "uint8": (16 / 256, 255)},
    "L2_NORMALIZATION": {"int8": (1 / 128, 0), "uint8": (1 / 128, 128)},
}
I8, U8, I16, F32 = "int8", "uint8", "int16", "float32"
EIGHT = (I8, U8)
ALL = (I8, U8, I16)

SUITE: dict[str, list[tuple[Maker, tuple[str, ...], int]]] = {
    "CONV_2D": [(conv, EIGHT, 6), (conv, (I16,), 3), (hybrid("CONV_2D"), (F32,), 5), (half_weights("CONV_2D"), (F32,), 2)],
    "DEPTHWISE_CONV_2D": [
        (lambda r, d: conv(r, d, depthwise=True), EIGHT, 5),
        (lambda r, d: conv(r, d, depthwise=True), (I16,), 2),
        (hybrid("DEPTHWISE_CONV_2D"), (F32,), 4),
        (half_weights("DEPTHWISE_CONV_2D"), (F32,), 2),
    ],
    "TRANSPOSE_CONV": [(transpose_conv, EIGHT, 4), (transpose_conv, (I16,), 2)],
    "FULLY_CONNECTED": [
        (fully_connected, EIGHT, 5),
        (fully_connected, (I16,), 2),
        (hybrid("FULLY_CONNECTED"), (F32,), 5),
        (half_weights("FULLY_CONNECTED"), (F32,), 2),
    ],
    "ADD": [(binary("ADD", "AddOptions"), EIGHT, 5), (binary("ADD", "AddOptions"), (I16, F32), 2)],
    "SUB": [(binary("SUB", "SubOptions"), EIGHT, 4), (binary("SUB", "SubOptions"), (I16, F32), 2)],
    "MUL": [(binary("MUL", "MulOptions", product=True), EIGHT, 4), (binary("MUL", "MulOptions", product=True), (I16, F32), 2)],
    "MAXIMUM": [(binary("MAXIMUM", "MaximumMinimumOptions", same=True), (I8, U8, I16, F32), 2)],
    "MINIMUM": [(binary("MINIMUM", "MaximumMinimumOptions", same=True), (I8, U8, I16, F32), 2)],
    "SQUARED_DIFFERENCE": [(binary("SQUARED_DIFFERENCE", "SquaredDifferenceOptions", product=True), (I8, F32), 3)],
    "AVERAGE_POOL_2D": [(pool("AVERAGE_POOL_2D"), EIGHT, 5), (pool("AVERAGE_POOL_2D"), (I16, F32), 2)],
    "MAX_POOL_2D": [(pool("MAX_POOL_2D"), EIGHT, 3), (pool("MAX_POOL_2D"), (I16, F32), 2)],
    "MEAN": [(reduce("MEAN"), EIGHT, 5), (reduce("MEAN"), (I16, F32), 2)],
    "SUM": [(reduce("SUM", images=False), (I8, U8, I16, F32), 3)],
    "REDUCE_MAX": [(reduce("REDUCE_MAX", same=True, images=False), (I8, U8, I16, F32), 2)],
    "REDUCE_MIN": [(reduce("REDUCE_MIN", same=True, images=False), (I8, U8, I16, F32), 2)],
    "CONCATENATION": [(concatenation, EIGHT, 4), (concatenation, (I16,), 1), (stored_concatenation, (I16,), 2)],
    "PAD": [(pad("PAD"), (I8, U8, I16, F32), 2)],
    "PADV2": [(pad("PADV2"), (I8, U8, I16, F32), 2)],
    "MIRROR_PAD": [(pad("MIRROR_PAD"), (I8, U8, I16, F32), 2)],
    **{
        op: [(moving(op), (I8, U8, I16), 2 if op in ("STRIDED_SLICE", "TRANSPOSE") else 1), (moving(op), (F32,), 1)]
        for op in MOVES
        if op not in ("TILE", "SPACE_TO_DEPTH", "DEPTH_TO_SPACE", "SPLIT_V")
    },
    **{op: [(moving(op), (I8, U8, F32), 1)] for op in ("SPACE_TO_DEPTH", "DEPTH_TO_SPACE")},
    **{op: [(moving(op), (I8, U8, I16, F32), 1)] for op in ("TILE", "SPLIT_V")},
    "PACK": [(pack, (I8, U8, I16, F32), 1)],
    "RESIZE_NEAREST_NEIGHBOR": [(resize("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions"), (I8, U8, I16, F32), 4)],
    "RESIZE_BILINEAR": [(resize("RESIZE_BILINEAR", "ResizeBilinearOptions"), (I8, U8, I16, F32), 4)],
    "SOFTMAX": [
        (
            unary("SOFTMAX", "SoftmaxOptions", FIXED["SOFTMAX"], beta=lambda rng: float(rng.choice([1.0, 1.0, 0.5]))),
            (I8, U8, I16, F32),
            3,
        )
    ],
    "LOG_SOFTMAX": [(unary("LOG_SOFTMAX", "LogSoftmaxOptions", FIXED["LOG_SOFTMAX"]), (I8, U8, F32), 2)],
    "LOGISTIC": [(unary("LOGISTIC", "", FIXED["LOGISTIC"]), (I8, U8, I16, F32), 2)],
    "TANH": [(unary("TANH", "", FIXED["TANH"]), (I8, U8, I16, F32), 2)],
    "RELU": [(unary("RELU"), (I8, U8, I16, F32), 2)],
    "RELU6": [(unary("RELU6"), (I8, U8, I16, F32), 2)],
    "RELU_N1_TO_1": [(unary("RELU_N1_TO_1"), (I8, U8, F32), 2)],
    "LEAKY_RELU": [
        (unary("LEAKY_RELU", "LeakyReluOptions", alpha=lambda rng: float(rng.uniform(0.01, 0.5))), (I8, U8, I16, F32), 2)
    ],
    "PRELU": [(prelu, (I8, U8, I16, F32), 3)],
    "ELU": [(unary("ELU"), (I8, F32), 2)],
    "HARD_SWISH": [(unary("HARD_SWISH", "HardSwishOptions"), (I8, U8, F32), 2)],
    "GELU": [(unary("GELU", "GeluOptions", approximate=lambda rng: bool(rng.integers(0, 2))), (I8, U8, I16, F32), 2)],
    "ABS": [(unary("ABS", "AbsOptions"), (I8, I16, F32), 2)],
    "RSQRT": [(rsqrt, (I8,), 2), (interpolated("RSQRT"), (I16,), 2)],
    "L2_NORMALIZATION": [
        (unary("L2_NORMALIZATION", "L2NormOptions", FIXED["L2_NORMALIZATION"], image_like=True), (I8, U8, F32), 2)
    ],
    "BATCH_MATMUL": [(batch_matmul, (I8, I16, F32), 4), (hybrid_batch_matmul, (F32,), 4)],
    "ARG_MAX": [(place("ARG_MAX"), (I8, U8, F32), 2)],
    "ARG_MIN": [(place("ARG_MIN"), (I8, U8, F32), 2)],
    "QUANTIZE": [(quantize, EIGHT, 2), (quantize, (I16,), 1), (requantize, EIGHT, 5), (requantize, (I16,), 1)],
    "DEQUANTIZE": [(dequantize, ALL, 2)],
    **FUNCTIONS,
    **PLACES,
}
"""op -> (maker, dtypes, cases of each)."""
SUITE["GATHER"] += GATHERS
SUITE["STRIDED_SLICE"].append(NEW_AXES)


def is_integer(op: str, kind: str) -> bool:
    """Whether cases of a kind run as integer kernels, all of them."""
    return kind in (I8, U8, I16, "dynamic range") and (op, kind) not in WITHOUT_KERNEL


def cases(op: str, *, share: int = 1) -> Iterator[Case]:
    """Yield the cases of an op, or the first part of those of each maker and dtype: a half, a third ...; the same every time."""
    for row, (maker, dtypes, count) in enumerate(SUITE[op]):
        for dtype in dtypes:
            for number in range(-(-count // share)):
                seed = [ord(letter) for letter in op + dtype] + [row, number]
                yield maker(np.random.default_rng(seed), dtype)
