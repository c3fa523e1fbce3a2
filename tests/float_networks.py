"""Small float .tflite files with the ops that exports are tried on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tflite import ActivationFunctionType as Activation
from tflite import Padding

from tflite_writer import Op, Tensor, write

_SPATIAL = {"StrideW": 1, "StrideH": 1, "DilationWFactor": 1, "DilationHFactor": 1}


@dataclass(kw_only=True)
class FloatNetwork:
    """A network that is written op by op; each method returns the index of its result."""

    rng: np.random.Generator
    tensors: list[Tensor] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)

    def add(self, name: str, shape: tuple[int, ...], value: np.ndarray | None = None, dtype: str = "float32") -> int:
        self.tensors.append(Tensor(name=name, shape=shape, dtype=dtype, value=value))
        return len(self.tensors) - 1

    def input(self, shape: tuple[int, ...]) -> int:
        self.inputs.append(self.add(f"x{len(self.inputs)}", shape))
        return self.inputs[-1]

    def constant(self, value: Any) -> int:
        value = np.asarray(value)
        return self.add(f"c{len(self.tensors)}", value.shape, value, str(value.dtype))

    def op(self, name: str, inputs: tuple[int, ...], shape: tuple[int, ...], options_class: str = "", **options: Any) -> int:
        made = self.add(f"{name.lower()}{len(self.tensors)}", shape)
        self.ops.append(Op(name=name, inputs=inputs, outputs=(made,), options_class=options_class, options=options))
        return made

    def shape(self, index: int) -> tuple[int, ...]:
        return self.tensors[index].shape

    def weights(self, shape: tuple[int, ...], fan_in: int) -> tuple[int, int]:
        channels = shape[-1] if shape[0] == 1 and len(shape) == 4 else shape[0]
        value = self.rng.normal(0, 1.2 / np.sqrt(fan_in), shape).astype(np.float32)
        return self.constant(value), self.constant(self.rng.normal(0, 0.2, channels).astype(np.float32))

    def conv(
        self, x: int, channels: int, taps: int = 3, *, stride: int = 1, activation: int = Activation.RELU, same: bool = True
    ) -> int:
        _, height, width, inputs = self.shape(x)
        less = 0 if same else taps - 1
        out = (1, -(-(height - less) // stride), -(-(width - less) // stride), channels)
        options = {**_SPATIAL, "StrideW": stride, "StrideH": stride, "FusedActivationFunction": activation}
        options["Padding"] = Padding.SAME if same else Padding.VALID
        operands = (x, *self.weights((channels, taps, taps, inputs), taps * taps * inputs))
        return self.op("CONV_2D", operands, out, "Conv2DOptions", **options)

    def depthwise(self, x: int, activation: int = Activation.RELU6) -> int:
        channels = self.shape(x)[3]
        options = {**_SPATIAL, "Padding": Padding.SAME, "DepthMultiplier": 1, "FusedActivationFunction": activation}
        operands = (x, *self.weights((1, 3, 3, channels), 9))
        return self.op("DEPTHWISE_CONV_2D", operands, self.shape(x), "DepthwiseConv2DOptions", **options)

    def dense(self, x: int, features: int, activation: int = Activation.NONE) -> int:
        inputs = int(np.prod(self.shape(x)[1:]))
        operands = (x, *self.weights((features, inputs), inputs))
        return self.op("FULLY_CONNECTED", operands, (1, features), "FullyConnectedOptions", FusedActivationFunction=activation)

    def transposed(self, x: int, channels: int) -> int:
        _, height, width, inputs = self.shape(x)
        out = (1, 2 * height, 2 * width, channels)
        weight, bias = self.weights((channels, 3, 3, inputs), 3 * inputs)
        options = {"Padding": Padding.SAME, "StrideW": 2, "StrideH": 2}
        operands = (self.constant(np.array(out, np.int32)), weight, x, bias)
        return self.op("TRANSPOSE_CONV", operands, out, "TransposeConvOptions", **options)

    def pad(self, x: int) -> int:
        batch, height, width, channels = self.shape(x)
        amounts = self.constant(np.array([[0, 0], [1, 1], [1, 1], [0, 0]], np.int32))
        return self.op("PAD", (x, amounts), (batch, height + 2, width + 2, channels), "PadOptions")

    def pool(self, x: int, name: str = "AVERAGE_POOL_2D") -> int:
        batch, height, width, channels = self.shape(x)
        sizes = {"FilterHeight": 2, "FilterWidth": 2, "StrideH": 2, "StrideW": 2, "Padding": Padding.VALID}
        return self.op(name, (x,), (batch, height // 2, width // 2, channels), "Pool2DOptions", **sizes)

    def mean(self, x: int) -> int:
        axes = self.constant(np.array([1, 2], np.int32))
        return self.op("MEAN", (x, axes), (1, self.shape(x)[3]), "ReducerOptions")

    def concat(self, *parts: int) -> int:
        shape = (*self.shape(parts[0])[:3], sum(self.shape(part)[3] for part in parts))
        return self.op("CONCATENATION", parts, shape, "ConcatenationOptions", Axis=3)

    def write(self, *outputs: int) -> bytes:
        return write(self.tensors, self.ops, tuple(self.inputs), outputs)


def mixed(rng: np.random.Generator) -> bytes:
    """Convolutions, a folded padding, SiLU in two ops, a branch, means, a dense layer and a softmax; one float island."""
    net = FloatNetwork(rng=rng)
    x = net.input((1, 12, 12, 3))
    stem = net.conv(net.pad(x), 8, stride=2, same=False, activation=Activation.RELU6)
    deep = net.depthwise(stem)
    silu = net.op("MUL", (deep, net.op("LOGISTIC", (deep,), net.shape(deep))), net.shape(deep), "MulOptions")
    joined = net.op("ADD", (net.conv(silu, 8, 1, activation=Activation.NONE), stem), net.shape(stem), "AddOptions")
    both = net.concat(net.pool(joined), net.pool(joined, "MAX_POOL_2D"))
    island = net.op("L2_NORMALIZATION", (both,), net.shape(both), "L2NormOptions")
    logits = net.dense(net.mean(net.conv(island, 16)), 10)
    return net.write(net.op("SOFTMAX", (logits,), (1, 10), "SoftmaxOptions", Beta=1.0))


def branches(rng: np.random.Generator, names: Sequence[str]) -> bytes:
    """Each op between two convolutions, so that what it reads and what reads it is integer; one output for each."""
    net = FloatNetwork(rng=rng)
    x = net.input((1, 8, 8, 3))
    return net.write(*(net.conv(OPS[name](net, net.conv(x, 4, activation=Activation.NONE)), 3, 1) for name in names))


def unary(name: str, options_class: str = "", **options: Any) -> Callable[[FloatNetwork, int], int]:
    return lambda net, x: net.op(name, (x,), net.shape(x), options_class, **options)


def with_constant(name: str, options_class: str, shape: tuple[int, ...]) -> Callable[[FloatNetwork, int], int]:
    """An op of a tensor and a constant."""

    def make(net: FloatNetwork, x: int) -> int:
        constant = net.constant(net.rng.normal(0, 1, shape).astype(np.float32))
        return net.op(name, (x, constant), net.shape(x), options_class)

    return make


def with_itself(name: str, options_class: str = "") -> Callable[[FloatNetwork, int], int]:
    """An op of two tensors: one, and the maximum of its neighbourhoods."""

    def make(net: FloatNetwork, x: int) -> int:
        sizes = {"FilterHeight": 3, "FilterWidth": 3, "StrideH": 1, "StrideW": 1, "Padding": Padding.SAME}
        other = net.op("MAX_POOL_2D", (x,), net.shape(x), "Pool2DOptions", **sizes)
        return net.op(name, (x, other), net.shape(x), options_class)

    return make


def _indices(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def _split(net: FloatNetwork, x: int) -> int:
    shape = (*net.shape(x)[:3], net.shape(x)[3] // 2)
    parts = tuple(net.add(f"part{number}", shape) for number in range(2))
    operands = (net.constant(_indices(3)), x)
    net.ops.append(Op(name="SPLIT", inputs=operands, outputs=parts, options_class="SplitOptions", options={"NumSplits": 2}))
    return net.op("ADD", parts, shape, "AddOptions")


def _products(net: FloatNetwork, x: int) -> int:
    rows = net.op("RESHAPE", (x, net.constant(_indices(1, 64, 4))), (1, 64, 4), "ReshapeOptions")
    scores = net.op("BATCH_MATMUL", (rows, rows), (1, 64, 64), "BatchMatMulOptions", AdjY=True)
    mixed = net.op("BATCH_MATMUL", (scores, rows), (1, 64, 4), "BatchMatMulOptions")
    return net.op("RESHAPE", (mixed, net.constant(_indices(1, 8, 8, 4))), (1, 8, 8, 4), "ReshapeOptions")


def _resized(name: str) -> Callable[[FloatNetwork, int], int]:
    def make(net: FloatNetwork, x: int) -> int:
        size = net.constant(_indices(16, 16))
        return net.op(name, (x, size), (1, 16, 16, 4), f"{name.title().replace('_', '')}Options", HalfPixelCenters=True)

    return make


OPS: dict[str, Callable[[FloatNetwork, int], int]] = {
    "TRANSPOSE_CONV": lambda net, x: net.transposed(x, 4),
    "DEPTHWISE_CONV_2D": lambda net, x: net.depthwise(x),
    "BATCH_MATMUL": _products,
    "ADD constant": with_constant("ADD", "AddOptions", (4,)),
    "SUB": with_itself("SUB", "SubOptions"),
    "MUL constant": with_constant("MUL", "MulOptions", (1, 1, 4)),
    "MUL scalar": with_constant("MUL", "MulOptions", ()),
    "MAXIMUM": with_itself("MAXIMUM", "MaximumMinimumOptions"),
    "LOGISTIC": unary("LOGISTIC"),
    "TANH": unary("TANH"),
    "HARD_SWISH": unary("HARD_SWISH"),
    "LEAKY_RELU": unary("LEAKY_RELU", "LeakyReluOptions", Alpha=0.1),
    "RELU6": unary("RELU6"),
    "EXP": unary("EXP"),
    "PRELU": with_constant("PRELU", "", (1, 1, 4)),
    "SQUARE": unary("SQUARE"),
    "AVERAGE_POOL_2D": lambda net, x: net.pool(x),
    "CONCATENATION": lambda net, x: net.concat(x, net.conv(x, 2, 1)),
    "SPLIT": _split,
    "PAD": lambda net, x: net.pad(x),
    "DEPTH_TO_SPACE": lambda net, x: net.op("DEPTH_TO_SPACE", (x,), (1, 16, 16, 1), "DepthToSpaceOptions", BlockSize=2),
    "RESIZE_BILINEAR": _resized("RESIZE_BILINEAR"),
    "MEAN": lambda net, x: net.op("MEAN", (x, net.constant(_indices(1, 2))), (1, 1, 1, 4), "ReducerOptions", KeepDims=True),
}
"""One op of the kind between two convolutions."""
