"""What an ONNX file in QDQ form states, evaluated in float64: what a runtime that made no rounding errors would choose.

Between quantized tensors runtimes compute in float32, and each rounds its sums in its own order. QuantizeLinear makes a whole
step of such a difference where a value lies at a tie, and the layers behind it make more. This evaluation says how far a runtime
is from its own file by that alone. Written for the ops of the networks in `onnx_quantizers`; any other op is a KeyError.

It must not be fast at the price of being exact, and shares no code with what it judges.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

Array = np.ndarray
Attributes = dict[str, Any]


class ExactEvaluation:
    """Evaluates a file of one float32 input; call it with that input, and it returns the first output in float64."""

    def __init__(self, path: Path) -> None:
        model = onnx.load(path)
        self._graph = model.graph
        self._constants = {tensor.name: _widened(numpy_helper.to_array(tensor)) for tensor in model.graph.initializer}
        (self._input,) = (value.name for value in model.graph.input if value.name not in self._constants)
        self._fold_weights()

    def _fold_weights(self) -> None:
        """Dequantize constants once."""
        nodes = list(self._graph.node)
        for node in nodes:
            if node.op_type == "DequantizeLinear" and node.input[0] in self._constants:
                self._constants[node.output[0]] = self._computed(node, self._constants)
                self._graph.node.remove(node)

    def __call__(self, x: Array) -> Array:
        """Return the first output of an input."""
        values = {**self._constants, self._input: _widened(x)}
        for node in self._graph.node:
            values[node.output[0]] = self._computed(node, values)
        return values[self._graph.output[0].name]

    @staticmethod
    def _computed(node: onnx.NodeProto, values: dict[str, Array]) -> Array:
        attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        return OPS[node.op_type](attributes, *(values[name] if name else None for name in node.input))


def _widened(values: Array) -> Array:
    return values.astype(np.float64) if values.dtype == np.float32 else values


def _along(attributes: Attributes, values: Array, parameter: Array | None) -> Array:
    """Return a scale or zero point in float64, shaped to meet the values."""
    if parameter is None or parameter.size == 1:
        return np.float64(0) if parameter is None else parameter.reshape(()).astype(np.float64)
    shape = np.ones(values.ndim, int)
    shape[attributes.get("axis", 1)] = parameter.size
    return parameter.reshape(shape).astype(np.float64)


def _quantize(attributes: Attributes, x: Array, scale: Array, zero_point: Array) -> Array:
    limits = np.iinfo(zero_point.dtype)
    integers = np.rint(x / _along(attributes, x, scale)) + _along(attributes, x, zero_point)
    return np.clip(integers, limits.min, limits.max).astype(zero_point.dtype)


def _dequantize(attributes: Attributes, q: Array, scale: Array, zero_point: Array | None = None) -> Array:
    return (q - _along(attributes, q, zero_point)) * _along(attributes, q, scale)


class _Windows:
    """The taps of a two-dimensional window over x [batch, channels, height, width], each a strided view."""

    def __init__(self, attributes: Attributes, x: Array, kernel: tuple[int, int], fill: float) -> None:
        self._strides = attributes.get("strides", [1, 1])
        self._dilations = attributes.get("dilations", [1, 1])
        assert not attributes.get("ceil_mode", 0)
        reach = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, self._dilations, strict=True)]
        pads = self._pads(attributes, x.shape[2:], reach)
        self.kernel = kernel
        self._x = np.pad(x, ((0, 0), (0, 0), *pads), constant_values=fill)
        self._out = [(self._x.shape[2 + i] - reach[i]) // self._strides[i] + 1 for i in range(2)]

    def _pads(self, attributes: Attributes, sizes: tuple[int, ...], reach: list[int]) -> list[tuple[int, int]]:
        how = attributes.get("auto_pad", b"NOTSET")
        if how in (b"NOTSET", b"VALID"):
            begin_end = attributes.get("pads", [0, 0, 0, 0])
            return [(begin_end[0], begin_end[2]), (begin_end[1], begin_end[3])]
        pads: list[tuple[int, int]] = []
        for size, stride, over in zip(sizes, self._strides, reach, strict=True):
            total = max((-(-size // stride) - 1) * stride + over - size, 0)
            less, more = total // 2, total - total // 2
            pads.append((less, more) if how == b"SAME_UPPER" else (more, less))
        return pads

    def tap(self, i: int, j: int) -> Array:
        """Return what the tap (i, j) of the window sees: [batch, channels, out height, out width]."""
        rows, columns = (
            slice(at * dilation, at * dilation + (out - 1) * stride + 1, stride)
            for at, dilation, out, stride in zip((i, j), self._dilations, self._out, self._strides, strict=True)
        )
        return self._x[:, :, rows, columns]

    def taps(self) -> list[tuple[int, int]]:
        """Return all taps."""
        return [(i, j) for i in range(self.kernel[0]) for j in range(self.kernel[1])]


def _conv(attributes: Attributes, x: Array, weight: Array, bias: Array | None = None) -> Array:
    groups, (channels_out, channels_in) = attributes.get("group", 1), weight.shape[:2]
    windows = _Windows(attributes, x, weight.shape[2:], 0.0)
    total: Array | float = 0.0
    for i, j in windows.taps():
        seen = windows.tap(i, j)
        batch, _, height, width = seen.shape
        if channels_in == 1 and channels_out == groups:
            total = total + seen * weight[:, 0, i, j].reshape(-1, 1, 1)
            continue
        parts = seen.reshape(batch, groups, channels_in, height * width)
        factors = weight[:, :, i, j].reshape(groups, channels_out // groups, channels_in)
        total = total + (factors @ parts).reshape(batch, channels_out, height, width)
    return np.asarray(total) if bias is None else total + bias.reshape(-1, 1, 1)


def _max_pool(attributes: Attributes, x: Array) -> Array:
    windows = _Windows(attributes, x, tuple(attributes["kernel_shape"]), -np.inf)
    return np.max([windows.tap(i, j) for i, j in windows.taps()], axis=0)


def _softmax(attributes: Attributes, x: Array) -> Array:
    powers = np.exp(x - x.max(axis=attributes.get("axis", -1), keepdims=True))
    return powers / powers.sum(axis=attributes.get("axis", -1), keepdims=True)


def _slice(_: Attributes, x: Array, starts: Array, ends: Array, axes: Array, steps: Array | None = None) -> Array:
    index = [slice(None)] * x.ndim
    for at, axis in enumerate(axes):
        index[axis] = slice(starts[at], ends[at], None if steps is None else steps[at])
    return x[tuple(index)]


def _resize(
    attributes: Attributes, x: Array, _roi: Array | None, scales: Array | None = None, sizes: Array | None = None
) -> Array:
    assert attributes["mode"] == b"nearest"
    factors = scales if sizes is None else sizes / x.shape
    assert factors is not None
    assert all(factor == int(factor) for factor in factors)
    for axis, factor in enumerate(factors):
        x = x.repeat(int(factor), axis=axis)
    return x


def _reshape(_: Attributes, x: Array, shape: Array) -> Array:
    return x.reshape([x.shape[axis] if size == 0 else size for axis, size in enumerate(shape)])


OPS: dict[str, Callable[..., Array]] = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "Conv": _conv,
    "MaxPool": _max_pool,
    "Softmax": _softmax,
    "Slice": _slice,
    "Resize": _resize,
    "Reshape": _reshape,
    "Add": lambda _, a, b: a + b,
    "Mul": lambda _, a, b: a * b,
    "Clip": lambda _, x, low, high: np.clip(x, low, high),
    "Relu": lambda _, x: np.maximum(x, 0),
    "Sigmoid": lambda _, x: 1 / (1 + np.exp(-x)),
    "GlobalAveragePool": lambda _, x: x.mean(axis=(2, 3), keepdims=True),
    "Flatten": lambda attributes, x: x.reshape(int(np.prod(x.shape[: attributes.get("axis", 1)])), -1),
    "Identity": lambda _, x: x,
    "Concat": lambda attributes, *parts: np.concatenate(parts, axis=attributes["axis"]),
    "Transpose": lambda attributes, x: x.transpose(attributes["perm"]),
}
"""The definition of each op: attributes and inputs to the one output."""
