"""Cases of the TFLite ops that have weights: convolutions and dense layers, in integers, of float activations or float16 weights;
and products of two activations. Values only, no test and no Octavo."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tflite_case import Case, Value
from tflite_draws import NONE, SAME, VALID, Maker, Rng, activation, case, image, options, params


def weight(rng: Rng, shape: tuple[int, ...], axis: int, dtype: str, *, per_axis: bool) -> Value:
    """Draw weights: int8 symmetric, or the asymmetric uint8 of older files."""
    if dtype == "uint8":
        data = rng.integers(0, 256, shape).astype(np.uint8)
        return Value.constant(data, scale=(float(rng.uniform(0.001, 0.02)),), zero_point=(int(rng.integers(100, 160)),))
    count = shape[axis] if per_axis else 1
    scale = tuple(float(s) for s in rng.uniform(0.001, 0.02, count).astype(np.float32))
    data = rng.integers(-127, 128, shape).astype(np.int8)
    return Value.constant(data, scale=scale, zero_point=(0,) * count, axis=axis if count > 1 else 0)


def bias(rng: Rng, x: Value, w: Value, channels: int) -> Value:
    dtype = np.int64 if x.dtype == "int16" else np.int32
    scale = tuple(float(np.float32(x.scale[0]) * np.float32(s)) for s in w.scale)
    data = rng.integers(-3000, 3000, channels).astype(dtype)
    return Value.constant(data, scale=scale, zero_point=(0,) * len(scale))


def result_scale(x: Value, w_scale: float, terms: int) -> float:
    """Choose an output scale that a sum of `terms` products fills without saturating much."""
    span = {"int8": 74.0, "uint8": 74.0, "int16": 19000.0}[x.dtype]
    return float(np.float32(x.scale[0] * span * w_scale * 74 * np.sqrt(terms) / (span / 1.6)))


def conv_size(size: int, kernel: int, stride: int, dilation: int, padding: int) -> int:
    return -(-size // stride) if padding == SAME else -(-(size - dilation * (kernel - 1)) // stride)


def conv(rng: Rng, dtype: str, *, depthwise: bool = False) -> Case:
    shape = image(rng)
    channels = shape[3]
    kernel = [int(k) for k in rng.integers(1, 4, 2)]
    strides = [int(s) for s in rng.integers(1, 3, 2)] if not depthwise else [int(rng.integers(1, 3))] * 2
    dilation = [1, 1] if max(strides) > 1 else [int(d) for d in rng.integers(1, 3, 2)]
    padding = int(rng.choice([SAME, VALID]))
    multiplier = int(rng.integers(1, 4))
    out_channels = channels * multiplier if depthwise else int(rng.choice([1, 4, 16, 19]))
    w_shape = (1, *kernel, out_channels) if depthwise else (out_channels, *kernel, channels)
    x = Value(shape=shape, **params(rng, dtype))
    w = weight(rng, w_shape, 3 if depthwise else 0, "uint8" if dtype == "uint8" else "int8", per_axis=bool(rng.integers(0, 2)))
    # LiteRT's convolutions want a bias.
    b = bias(rng, x, w, out_channels)
    out_shape = (
        1,
        *(conv_size(*axis, padding) for axis in zip(shape[1:3], kernel, strides, dilation, strict=True)),
        out_channels,
    )
    terms = kernel[0] * kernel[1] * (1 if depthwise else channels)
    y = Value(shape=out_shape, **params(rng, dtype, result_scale(x, float(np.mean(w.scale)), terms)))
    fields = {"padding": padding, "strideH": strides[0], "strideW": strides[1], "fusedActivationFunction": activation(rng)}
    fields |= {"dilationHFactor": dilation[0], "dilationWFactor": dilation[1]}
    if depthwise:
        table = options("DepthwiseConv2DOptions", depthMultiplier=multiplier, **fields)
    else:
        table = options("Conv2DOptions", **fields)
    label = f"{shape}{w_shape}"
    return case(rng, "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D", label, [x, w, b], [y], table)


def transpose_conv(rng: Rng, dtype: str) -> Case:
    shape, stride, size = image(rng), int(rng.integers(1, 4)), int(rng.integers(2, 5))
    out_channels, padding = int(rng.choice([1, 4, 17])), int(rng.choice([SAME, VALID]))
    out = [n * stride if padding == SAME else n * stride + max(size - stride, 0) for n in shape[1:3]]
    out_shape = (1, *out, out_channels)
    x = Value(shape=shape, **params(rng, dtype))
    w = weight(rng, (out_channels, size, size, shape[3]), 0, "uint8" if dtype == "uint8" else "int8", per_axis=dtype != "uint8")
    y = Value(shape=out_shape, **params(rng, dtype, result_scale(x, float(np.mean(w.scale)), size * size * shape[3])))
    inputs = [Value.constant(np.int32(out_shape)), w, x] + ([bias(rng, x, w, out_channels)] if rng.integers(0, 2) else [])
    table = options("TransposeConvOptions", padding=padding, strideH=stride, strideW=stride, fusedActivationFunction=NONE)
    return case(rng, "TRANSPOSE_CONV", f"{shape} stride {stride} size {size}", inputs, [y], table)


def fully_connected(rng: Rng, dtype: str) -> Case:
    rank, units = int(rng.integers(1, 4)), int(rng.choice([1, 8, 21]))
    shape = (*(int(size) for size in rng.integers(1, 5, rank)), int(rng.choice([5, 16, 33])))
    keep = bool(rng.integers(0, 2))
    x = Value(shape=shape, **params(rng, dtype))
    w = weight(
        rng, (units, shape[-1]), 0, "uint8" if dtype == "uint8" else "int8", per_axis=dtype == "int8" and bool(rng.integers(0, 2))
    )
    out_shape = (*shape[:-1], units) if keep else (int(np.prod(shape[:-1])), units)
    y = Value(shape=out_shape, **params(rng, dtype, result_scale(x, float(np.mean(w.scale)), shape[-1])))
    inputs = [x, w] + ([bias(rng, x, w, units)] if rng.integers(0, 3) else [None])
    table = options("FullyConnectedOptions", fusedActivationFunction=activation(rng), keepNumDims=keep)
    return case(rng, "FULLY_CONNECTED", f"{shape} units {units} keep {keep}", inputs, [y], table)


def batch_matmul(rng: Rng, dtype: str) -> Case:
    batch = int(rng.integers(1, 4))
    m, k, n = (int(size) for size in rng.integers(2, 20, 3))
    adj_x, adj_y = bool(rng.integers(0, 2)) and dtype == "float32", bool(rng.integers(0, 2))
    a = Value(shape=(batch, k, m) if adj_x else (batch, m, k), **params(rng, dtype))
    b = Value(shape=(batch, n, k) if adj_y else (batch, k, n), **params(rng, dtype))
    y_params = (
        params(rng, dtype)
        if dtype == "float32"
        else params(rng, dtype, result_scale(a, b.scale[0] * (256 if dtype == "int16" else 1), k))
    )
    table = options("BatchMatMulOptions", adjX=adj_x, adjY=adj_y)
    return case(rng, "BATCH_MATMUL", f"{a.shape} {b.shape}", [a, b], [Value(shape=(batch, m, n), **y_params)], table)


def hybrid(op: str) -> Maker:
    """Make an op of float activations whose weights are int8: "dynamic range" quantization."""

    def make(rng: Rng, dtype: str) -> Case:
        base = _WEIGHTED[op](rng, "int8")
        x, w, *rest = base.inputs
        assert x is not None
        assert w is not None
        if op == "DEPTHWISE_CONV_2D" and len(w.scale) == 1:
            # LiteRT reads one scale for each channel, whether there are as many or not.
            channels = w.shape[3]
            w = replace(w, scale=w.scale * channels, zero_point=(0,) * channels, axis=3)
        biases = [None if b is None else Value.constant(rng.normal(size=b.shape).astype(np.float32)) for b in rest]
        y = Value(shape=base.outputs[0].shape)
        return case(rng, op, f"{base.label} dynamic range", [Value(shape=x.shape), w, *biases], [y], base.options)

    return make


def hybrid_batch_matmul(rng: Rng, dtype: str) -> Case:
    """Make a product of float activations and an int8 constant, whose batches are 1."""
    base = batch_matmul(rng, dtype)
    x, y = base.inputs
    assert x is not None
    assert y is not None
    rows = x.shape[1:] if not base.options.adjX else x.shape[:0:-1]
    shape = (1, *y.shape[1:]) if rng.integers(0, 2) else y.shape[1:]
    w = weight(rng, shape, 0, "int8", per_axis=False)
    base.options.adjX = False
    x = Value(shape=(x.shape[0], *rows))
    return case(rng, "BATCH_MATMUL", f"{x.shape} {shape} dynamic range", [x, w], list(base.outputs), base.options)


def half_weights(op: str) -> Maker:
    """Make a float op whose weights are float16 constants, which `write` puts a DEQUANTIZE behind."""

    def make(rng: Rng, dtype: str) -> Case:
        base = hybrid(op)(rng, dtype)
        x, w, *rest = base.inputs
        assert w is not None
        half = Value.constant(rng.normal(size=w.shape).astype(np.float16))
        return case(
            rng,
            op,
            f"{base.label.removesuffix('dynamic range')}float16 weights",
            [x, half, *rest],
            list(base.outputs),
            base.options,
        )

    return make


_WEIGHTED: dict[str, Maker] = {
    "CONV_2D": conv,
    "DEPTHWISE_CONV_2D": lambda rng, dtype: conv(rng, dtype, depthwise=True),
    "FULLY_CONNECTED": fully_connected,
}
