"""Which cases there are of each ONNX op, from fixed seeds. Values only, no test and no Octavo."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from onnx_case import Case, Writer
from onnx_function_cases import FUNCTIONS
from onnx_operator_cases import (
    conv_integer,
    dynamic_quantize,
    matmul_integer,
    q_gemm,
    qlinear_binary,
    qlinear_concat,
    qlinear_conv,
    qlinear_matmul,
    qlinear_pool,
    qlinear_product,
    qlinear_softmax,
    qlinear_unary,
    scaled_sums,
)
from onnx_qdq_cases import (
    CONVOLUTIONS,
    TRANSFORMS,
    Maker,
    batch_norm,
    binary,
    clip,
    concat,
    conv,
    conv_transpose,
    dequantize,
    gemm,
    global_pool,
    matmul,
    moving,
    narrow_weights,
    pad,
    pool,
    prelu,
    product,
    quantize,
    reduce_mean,
    requantize,
    resize,
    softmax,
    stacked_matmul,
    unary,
)

WEIGHTED = ("u8s8", "s8s8", "u8u8")
EIGHT, WITH_16 = ("u8", "s8"), ("u8", "s8", "u16", "s16")
DTYPES = {"u4": "uint4", "s4": "int4", "u8": "uint8", "s8": "int8", "u16": "uint16", "s16": "int16"}

SUITE: dict[str, list[tuple[Maker, tuple[str, ...], int]]] = {
    "Conv": [
        *((conv(form), WEIGHTED, 1) for form in CONVOLUTIONS),
        *((conv(form, rank=1), WEIGHTED, 1) for form in ("plain", "depthwise")),
        (conv("plain"), ("s16s8", "u16u8"), 1),
    ],
    "ConvTranspose": [(conv_transpose, WEIGHTED, 3)],
    "MatMul": [(matmul, WEIGHTED, 4), (matmul, ("s16s8", "u16u8"), 1)],
    "MatMul of experts": [(stacked_matmul, WEIGHTED, 5)],
    "MatMul of activations": [
        (product(quantized=True), ("u8u8", "s8s8"), 6),
        (product(quantized=False), ("u8u8 to f32", "s8s8 to f32"), 3),
    ],
    **{f"{op} of 4 bits": [(narrow_weights(op), ("u8s4", "s8s4", "u8u4"), 3)] for op in ("Conv", "MatMul", "Gemm")},
    "Gemm": [(gemm, WEIGHTED, 6)],
    **{op: [(binary(op), EIGHT, 5), (binary(op), ("u16", "s16"), 2)] for op in ("Add", "Sub", "Mul")},
    "Div": [(binary("Div"), EIGHT, 3)],
    "MaxPool": [(pool("MaxPool"), EIGHT, 4)],
    "AveragePool": [(pool("AveragePool"), EIGHT, 5), (pool("AveragePool"), ("s16",), 2)],
    "GlobalAveragePool": [(global_pool("GlobalAveragePool"), WITH_16, 1)],
    "GlobalMaxPool": [(global_pool("GlobalMaxPool"), EIGHT, 1)],
    "ReduceMean": [(reduce_mean, EIGHT, 3), (reduce_mean, ("s16",), 2)],
    "BatchNormalization": [(batch_norm, EIGHT, 2)],
    "Concat": [(concat, EIGHT, 3), (concat, ("u16", "s16"), 2)],
    "Pad": [(pad, EIGHT, 3)],
    **{
        op: [(moving(op), EIGHT, 2)]
        for op in ("Reshape", "Transpose", "Slice", "Split", "Gather", "Squeeze", "Unsqueeze", "Flatten")
    },
    **{op: [(moving(op), EIGHT, 1)] for op in ("SpaceToDepth", "DepthToSpace", "Expand", "Tile")},
    "Resize": [(resize(mode, transform), EIGHT, 1) for mode in ("nearest", "linear") for transform in TRANSFORMS],
    "Softmax": [(softmax, WITH_16, 2)],
    "Sigmoid": [(unary("Sigmoid"), WITH_16, 1)],
    "Tanh": [(unary("Tanh"), WITH_16, 1)],
    "Relu": [(unary("Relu"), EIGHT, 1)],
    "LeakyRelu": [(unary("LeakyRelu", alpha=lambda w: float(w.rng.uniform(0.01, 0.5))), EIGHT, 2)],
    "PRelu": [(prelu, EIGHT, 2)],
    "HardSwish": [(unary("HardSwish"), EIGHT, 1)],
    "HardSigmoid": [(unary("HardSigmoid", alpha=0.15, beta=0.45), EIGHT, 1)],
    "Clip": [(clip, EIGHT, 2)],
    "Erf": [(unary("Erf"), EIGHT, 1)],
    "Elu": [(unary("Elu", alpha=0.7), EIGHT, 1)],
    "QuantizeLinear": [(quantize, WITH_16, 1), (requantize, EIGHT, 4), (requantize, ("u16", "s16"), 1)],
    "DequantizeLinear": [(dequantize, WITH_16, 1)],
    "QLinearConv": [(qlinear_conv(form), WEIGHTED, 1) for form in CONVOLUTIONS],
    "QLinearMatMul": [(qlinear_matmul, WEIGHTED, 2), (qlinear_product, ("u8u8", "s8s8"), 4)],
    "QGemm": [(q_gemm, WEIGHTED, 3)],
    "QLinearAdd": [(qlinear_binary("Add"), EIGHT, 4)],
    "QLinearMul": [(qlinear_binary("Mul"), EIGHT, 4)],
    "QLinearGlobalAveragePool": [(qlinear_pool("GlobalAveragePool"), EIGHT, 2)],
    "QLinearAveragePool": [(qlinear_pool("AveragePool"), EIGHT, 3)],
    "QLinearConcat": [(qlinear_concat, EIGHT, 2)],
    "QLinearSigmoid": [(qlinear_unary("Sigmoid"), EIGHT, 2)],
    "QLinearLeakyRelu": [(qlinear_unary("LeakyRelu", alpha=lambda w: float(w.rng.uniform(0.01, 0.5))), EIGHT, 2)],
    "QLinearSoftmax": [
        (qlinear_softmax(any_scale=False), EIGHT, 2),
        (qlinear_softmax(any_scale=True), ("u8 any step", "s8 any step"), 2),
    ],
    "ConvInteger": [
        *((conv_integer(form), ("u8u8",), 1) for form in CONVOLUTIONS),
        *((conv_integer(form, rank=1), ("u8u8",), 1) for form in ("plain", "depthwise")),
        (scaled_sums("ConvInteger"), ("u8u8",), 4),
    ],
    "MatMulInteger": [(matmul_integer, WEIGHTED, 3), (scaled_sums("MatMulInteger"), WEIGHTED, 3)],
    "DynamicQuantizeLinear": [(dynamic_quantize, ("f32",), 3)],
    **FUNCTIONS,
}
"""op -> (maker, kinds of tensors, cases of each); u8s8 are uint8 activations and int8 weights."""


INTEGER_OPS = frozenset(SUITE) - {
    # Its results are integers and the parameters that they have, which TVM's ops compute in float.
    "DynamicQuantizeLinear",
    # A bias for each row, not for each column, is added in float.
    "Gemm",
    # Sums over blocks of inputs, each with a scale of its own, are added in float.
    *(f"{op} of 4 bits" for op in ("Conv", "MatMul", "Gemm")),
}
"""Ops whose cases run as integer kernels, all of them, but for those of FLOAT_KINDS."""

FLOAT_KINDS = frozenset({("AveragePool", "s16")})


def dtypes(kind: str) -> tuple[str, str]:
    """Return the dtypes of activations and weights: "u8s8" -> uint8, int8; "s16" -> int16, and int8 where there are weights."""
    found = re.findall(r"[us]\d+", kind)
    activation = DTYPES[found[0]] if found else "uint8"
    return activation, DTYPES[found[1]] if len(found) > 1 else "int8"


def cases(op: str) -> Iterator[Case]:
    """Yield the cases of an op; the same every time."""
    for row, (maker, kinds, count) in enumerate(SUITE[op]):
        for kind in kinds:
            activation, weight = dtypes(kind)
            for number in range(count):
                seed = [ord(letter) for letter in op + kind] + [row, number]
                writer = Writer(rng=np.random.default_rng(seed), activation=activation, weight=weight)
                label = maker(writer)
                yield writer.case(op, label, kind)
