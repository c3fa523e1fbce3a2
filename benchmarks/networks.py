"""Full-size float32 networks as ONNX files, with seeded weights: speed depends on shapes, not on what was learned.

    python benchmarks/networks.py FOLDER                       writes all of them, 0.8 GB
    python benchmarks/networks.py FOLDER --only resnet50

MobileNetV1 and V2, ResNet50, InceptionV3, InceptionV4 and the encoder of BERT-base over 128 tokens, batch 1, written as exporters
write them. Weights are drawn so that every layer keeps the spread of its input: activations neither vanish nor explode, and a
quantizer finds ranges as wide as in a trained network. A file depends on nothing but this script.
"""

from __future__ import annotations

import argparse
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CLASSES = 1000
SEQUENCE, HIDDEN, HEADS, BLOCKS = 128, 768, 12, 12
RESIDUAL = 0.5  # spread of a residual branch beside 1 of what it is added to: sums of many branches stay within bounds


class Network:
    """A graph under construction. A value is a name; its shape is known, and whether a ReLU made it."""

    def __init__(self, name: str, shape: Sequence[int], *, with_batch_norm: bool = False) -> None:
        """Start with one input; with `with_batch_norm`, convolutions have no bias but a batch normalization behind them."""
        self.name = name
        self.with_batch_norm = with_batch_norm
        self.shapes: dict[str, tuple[int, ...]] = {"input": tuple(shape)}
        self.rectified: set[str] = set()
        self._rng = np.random.default_rng(zlib.crc32(name.encode()))
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def constant(self, name: str, value: np.ndarray) -> str:
        """Add an initializer."""
        self._constants.append(numpy_helper.from_array(value, name))
        return name

    def normal(self, name: str, shape: Sequence[int], spread: float, mean: float = 0.0) -> str:
        """Add a float32 initializer of normal numbers."""
        return self.constant(name, (mean + spread * self._rng.standard_normal(shape, np.float32)).astype(np.float32))

    def node(self, op: str, inputs: Sequence[str], shape: Sequence[int], **attributes: object) -> str:
        """Add a node and return the name of its result."""
        name = f"{op.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, list(inputs), [name], name=f"{name}_node", **attributes))
        self.shapes[name] = tuple(shape)
        return name

    def conv(
        self,
        x: str,
        channels: int,
        kernel: int | tuple[int, int] = 1,
        *,
        stride: int = 1,
        valid: bool = False,
        depthwise: bool = False,
        spread: float = 1.0,
        activation: str = "Relu",
    ) -> str:
        """Add a convolution, padded to keep the size unless `valid`, and its activation: Relu, Relu6 or ""."""
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        batch, inputs, *size = self.shapes[x]
        group = inputs if depthwise else 1
        fan_in = height * width * inputs // group
        # A ReLU halves the mean square of what it gets; the weights make up for that.
        deviation = spread * ((2.0 if x in self.rectified else 1.0) / fan_in) ** 0.5
        number = len(self._nodes)
        operands = [x, self.normal(f"conv_{number}.weight", (channels, inputs // group, height, width), deviation)]
        if not self.with_batch_norm:
            operands.append(self.normal(f"conv_{number}.bias", (channels,), 0.1 * spread))
        above, left = (0, 0) if valid else ((height - 1) // 2, (width - 1) // 2)
        out = [(extent + 2 * pad - k) // stride + 1 for extent, pad, k in zip(size, (above, left), (height, width), strict=True)]
        y = self.node(
            "Conv",
            operands,
            (batch, channels, *out),
            kernel_shape=[height, width],
            strides=[stride, stride],
            pads=[above, left, above, left],
            dilations=[1, 1],
            group=group,
        )
        y = self._batch_norm(y) if self.with_batch_norm else y
        return self.activation(y, activation) if activation else y

    def _batch_norm(self, x: str) -> str:
        channels, number = self.shapes[x][1], len(self._nodes)
        operands = [
            self.normal(f"bn_{number}.scale", (channels,), 0.1, 1.0),
            self.normal(f"bn_{number}.bias", (channels,), 0.1),
            self.normal(f"bn_{number}.mean", (channels,), 0.1),
            self.constant(f"bn_{number}.var", self._rng.uniform(0.8, 1.2, channels).astype(np.float32)),
        ]
        return self.node("BatchNormalization", [x, *operands], self.shapes[x], epsilon=1e-3)

    def activation(self, x: str, kind: str) -> str:
        """Add a Relu or Relu6."""
        if kind == "Relu":
            y = self.node("Relu", [x], self.shapes[x])
        else:
            bounds = [self.scalar(0.0), self.scalar(6.0)]
            y = self.node("Clip", [x, *bounds], self.shapes[x])
        self.rectified.add(y)
        return y

    def scalar(self, value: float) -> str:
        """Add a float32 scalar."""
        return self.constant(f"scalar_{len(self._constants)}", np.array(value, np.float32))

    def pool(self, x: str, kind: str, stride: int) -> str:
        """Add a 3x3 pooling: of stride 2 without padding, of stride 1 with."""
        pad = 1 if stride == 1 else 0
        batch, channels, *size = self.shapes[x]
        out = [(extent + 2 * pad - 3) // stride + 1 for extent in size]
        attributes: dict[str, object] = {"kernel_shape": [3, 3], "strides": [stride, stride], "pads": [pad] * 4}
        if kind == "AveragePool":
            attributes["count_include_pad"] = 0
        y = self.node(kind, [x], (batch, channels, *out), **attributes)
        if x in self.rectified:
            self.rectified.add(y)
        return y

    def concat(self, *values: str) -> str:
        """Join values along their channels."""
        batch, _, *size = self.shapes[values[0]]
        y = self.node("Concat", values, (batch, sum(self.shapes[value][1] for value in values), *size), axis=1)
        if all(value in self.rectified for value in values):
            self.rectified.add(y)
        return y

    def classify(self, x: str) -> onnx.ModelProto:
        """Add the mean over the image and the last layer, and return the model."""
        batch, channels = self.shapes[x][:2]
        pooled = self.node("GlobalAveragePool", [x], (batch, channels, 1, 1))
        flat = self.node("Flatten", [pooled], (batch, channels), axis=1)
        weight = self.normal("classifier.weight", (CLASSES, channels), (2.0 / channels) ** 0.5)
        bias = self.normal("classifier.bias", (CLASSES,), 0.1)
        return self.finish(self.node("Gemm", [flat, weight, bias], (batch, CLASSES), transB=1))

    def finish(self, output: str) -> onnx.ModelProto:
        """Return the model."""
        inputs = [helper.make_tensor_value_info("input", TensorProto.FLOAT, self.shapes["input"])]
        self._nodes.append(helper.make_node("Identity", [output], ["output"], name="output_node"))
        outputs = [helper.make_tensor_value_info("output", TensorProto.FLOAT, self.shapes[output])]
        graph = helper.make_graph(self._nodes, self.name, inputs, outputs, self._constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="octavo")
        onnx.checker.check_model(model)
        return model


def mobilenet_v1() -> onnx.ModelProto:
    """MobileNetV1 1.0 over 224 x 224, batch normalizations not folded."""
    net = Network("mobilenet_v1", (1, 3, 224, 224), with_batch_norm=True)
    x = net.conv("input", 32, 3, stride=2, activation="Relu6")
    for channels, stride in (
        *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
        *((512, 1),) * 5,
        *((1024, 2), (1024, 1)),
    ):
        x = net.conv(x, net.shapes[x][1], 3, stride=stride, depthwise=True, activation="Relu6")
        x = net.conv(x, channels, activation="Relu6")
    return net.classify(x)


def mobilenet_v2() -> onnx.ModelProto:
    """MobileNetV2 1.0 over 224 x 224."""
    net = Network("mobilenet_v2", (1, 3, 224, 224))
    x = net.conv("input", 32, 3, stride=2, activation="Relu6")
    for expansion, channels, count, first in (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    ):
        for index in range(count):
            stride, inputs = first if index == 0 else 1, net.shapes[x][1]
            adds = stride == 1 and inputs == channels
            y = net.conv(x, expansion * inputs, activation="Relu6") if expansion > 1 else x
            y = net.conv(y, expansion * inputs, 3, stride=stride, depthwise=True, activation="Relu6")
            y = net.conv(y, channels, spread=RESIDUAL if adds else 1.0, activation="")
            x = net.node("Add", [x, y], net.shapes[y]) if adds else y
    return net.classify(net.conv(x, 1280, activation="Relu6"))


def resnet50() -> onnx.ModelProto:
    """ResNet50 over 224 x 224, the stride in the 3 x 3 layers."""
    net = Network("resnet50", (1, 3, 224, 224))
    x = net.conv("input", 64, 7, stride=2)
    batch, channels, height, width = net.shapes[x]
    size = (batch, channels, height // 2, width // 2)
    x = net.node("MaxPool", [x], size, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    net.rectified.add(x)
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for index in range(blocks):
            stride = 2 if index == 0 and width > 64 else 1
            y = net.conv(net.conv(x, width), width, 3, stride=stride)
            y = net.conv(y, 4 * width, spread=RESIDUAL, activation="")
            shortcut = net.conv(x, 4 * width, stride=stride, activation="") if index == 0 else x
            x = net.activation(net.node("Add", [y, shortcut], net.shapes[y]), "Relu")
    return net.classify(x)


def _chain(net: Network, x: str, *layers: tuple[int, int | tuple[int, int]]) -> str:
    """Add convolutions of stride 1 after each other, (channels, kernel) each."""
    for channels, kernel in layers:
        x = net.conv(x, channels, kernel)
    return x


def _fork(net: Network, x: str, channels: int) -> list[str]:
    return [net.conv(x, channels, (1, 3)), net.conv(x, channels, (3, 1))]


def inception_v3() -> onnx.ModelProto:
    """InceptionV3 over 299 x 299."""
    net = Network("inception_v3", (1, 3, 299, 299))
    x = net.conv(net.conv("input", 32, 3, stride=2, valid=True), 32, 3, valid=True)
    x = net.pool(net.conv(x, 64, 3), "MaxPool", 2)
    x = net.pool(net.conv(net.conv(x, 80), 192, 3, valid=True), "MaxPool", 2)
    for pooled in (32, 64, 64):
        branches = [net.conv(x, 64), _chain(net, x, (48, 1), (64, 5)), _chain(net, x, (64, 1), (96, 3), (96, 3))]
        x = net.concat(*branches, net.conv(net.pool(x, "AveragePool", 1), pooled))
    long = net.conv(_chain(net, x, (64, 1), (96, 3)), 96, 3, stride=2, valid=True)
    x = net.concat(net.conv(x, 384, 3, stride=2, valid=True), long, net.pool(x, "MaxPool", 2))
    for inner in (128, 160, 160, 192):
        short = _chain(net, x, (inner, 1), (inner, (1, 7)), (192, (7, 1)))
        long = _chain(net, x, (inner, 1), (inner, (7, 1)), (inner, (1, 7)), (inner, (7, 1)), (192, (1, 7)))
        x = net.concat(net.conv(x, 192), short, long, net.conv(net.pool(x, "AveragePool", 1), 192))
    short = net.conv(net.conv(x, 192), 320, 3, stride=2, valid=True)
    long = net.conv(_chain(net, x, (192, 1), (192, (1, 7)), (192, (7, 1))), 192, 3, stride=2, valid=True)
    x = net.concat(short, long, net.pool(x, "MaxPool", 2))
    for _ in range(2):
        short = _fork(net, net.conv(x, 384), 384)
        long = _fork(net, _chain(net, x, (448, 1), (384, 3)), 384)
        x = net.concat(net.conv(x, 320), *short, *long, net.conv(net.pool(x, "AveragePool", 1), 192))
    return net.classify(x)


def inception_v4() -> onnx.ModelProto:
    """InceptionV4 over 299 x 299."""
    net = Network("inception_v4", (1, 3, 299, 299))
    x = net.conv(net.conv(net.conv("input", 32, 3, stride=2, valid=True), 32, 3, valid=True), 64, 3)
    x = net.concat(net.pool(x, "MaxPool", 2), net.conv(x, 96, 3, stride=2, valid=True))
    short = net.conv(net.conv(x, 64), 96, 3, valid=True)
    x = net.concat(short, net.conv(_chain(net, x, (64, 1), (64, (7, 1)), (64, (1, 7))), 96, 3, valid=True))
    x = net.concat(net.conv(x, 192, 3, stride=2, valid=True), net.pool(x, "MaxPool", 2))
    for _ in range(4):
        branches = [net.conv(x, 96), _chain(net, x, (64, 1), (96, 3)), _chain(net, x, (64, 1), (96, 3), (96, 3))]
        x = net.concat(*branches, net.conv(net.pool(x, "AveragePool", 1), 96))
    long = net.conv(_chain(net, x, (192, 1), (224, 3)), 256, 3, stride=2, valid=True)
    x = net.concat(net.conv(x, 384, 3, stride=2, valid=True), long, net.pool(x, "MaxPool", 2))
    for _ in range(7):
        short = _chain(net, x, (192, 1), (224, (1, 7)), (256, (7, 1)))
        long = _chain(net, x, (192, 1), (192, (7, 1)), (224, (1, 7)), (224, (7, 1)), (256, (1, 7)))
        x = net.concat(net.conv(x, 384), short, long, net.conv(net.pool(x, "AveragePool", 1), 128))
    short = net.conv(net.conv(x, 192), 192, 3, stride=2, valid=True)
    long = net.conv(_chain(net, x, (256, 1), (256, (1, 7)), (320, (7, 1))), 320, 3, stride=2, valid=True)
    x = net.concat(short, long, net.pool(x, "MaxPool", 2))
    for _ in range(3):
        short = _fork(net, net.conv(x, 384), 256)
        long = _fork(net, _chain(net, x, (384, 1), (448, (1, 3)), (512, (3, 1))), 256)
        x = net.concat(net.conv(x, 256), *short, *long, net.conv(net.pool(x, "AveragePool", 1), 256))
    return net.classify(x)


class Encoder(Network):
    """A transformer encoder under construction."""

    def dense(self, x: str, features: int, spread: float = 1.0) -> str:
        """Add a matmul with a weight and its bias."""
        *outer, inputs = self.shapes[x]
        number = len(self._nodes)
        weight = self.normal(f"dense_{number}.weight", (inputs, features), spread / inputs**0.5)
        product = self.node("MatMul", [x, weight], (*outer, features))
        bias = self.normal(f"dense_{number}.bias", (features,), 0.1 * spread)
        return self.node("Add", [bias, product], (*outer, features))

    def split_features(self, x: str, order: Sequence[int]) -> str:
        """Split the features among the heads, with the axes batch, token, head, feature in `order`."""
        batch, tokens, features = self.shapes[x]
        split = (batch, tokens, HEADS, features // HEADS)
        shape = self.constant(f"shape_{len(self._nodes)}", np.array(split, np.int64))
        value = self.node("Reshape", [x, shape], split)
        return self.node("Transpose", [value], [split[axis] for axis in order], perm=list(order))

    def attend(self, x: str) -> str:
        """Add the attention of all tokens to all."""
        batch, tokens, features = self.shapes[x]
        queries, values = (self.split_features(self.dense(x, features), (0, 2, 1, 3)) for _ in range(2))
        keys = self.split_features(self.dense(x, features), (0, 2, 3, 1))
        square = (batch, HEADS, tokens, tokens)
        scores = self.node("MatMul", [queries, keys], square)
        scores = self.node("Div", [scores, self.scalar((features / HEADS) ** 0.5)], square)
        mixed = self.node("MatMul", [self.node("Softmax", [scores], square, axis=-1), values], self.shapes[values])
        back = self.node("Transpose", [mixed], (batch, tokens, HEADS, features // HEADS), perm=[0, 2, 1, 3])
        shape = self.constant(f"shape_{len(self._nodes)}", np.array((batch, tokens, features), np.int64))
        return self.dense(self.node("Reshape", [back, shape], (batch, tokens, features)), features)

    def gelu(self, x: str) -> str:
        """Add x * (1 + erf(x / sqrt 2)) / 2, op by op."""
        shape = self.shapes[x]
        bell = self.node("Erf", [self.node("Div", [x, self.scalar(2.0**0.5)], shape)], shape)
        product = self.node("Mul", [x, self.node("Add", [bell, self.scalar(1.0)], shape)], shape)
        return self.node("Mul", [product, self.scalar(0.5)], shape)

    def norm(self, x: str) -> str:
        """Add a layer normalization."""
        features, number = self.shapes[x][-1], len(self._nodes)
        operands = [
            self.normal(f"norm_{number}.weight", (features,), 0.1, 1.0),
            self.normal(f"norm_{number}.bias", (features,), 0.1),
        ]
        return self.node("LayerNormalization", [x, *operands], self.shapes[x], axis=-1, epsilon=1e-12)


def bert_base() -> onnx.ModelProto:
    """The 12 blocks of BERT-base over 128 embedded tokens, all of them attended to."""
    net = Encoder("bert_base", (1, SEQUENCE, HIDDEN))
    x = "input"
    for _ in range(BLOCKS):
        y = net.attend(x)
        x = net.norm(net.node("Add", [y, x], net.shapes[x]))
        y = net.dense(net.gelu(net.dense(x, 4 * HIDDEN)), HIDDEN)
        x = net.norm(net.node("Add", [y, x], net.shapes[x]))
    return net.finish(x)


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "mobilenet_v1": mobilenet_v1,
    "mobilenet_v2": mobilenet_v2,
    "resnet50": resnet50,
    "inception_v3": inception_v3,
    "inception_v4": inception_v4,
    "bert_base": bert_base,
}


def network_file(name: str, folder: Path) -> Path:
    """Return the network's file in `folder`, written first if it is not there."""
    path = folder / f"{name}_fp32.onnx"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        partial.write_bytes(NETWORKS[name]().SerializeToString(deterministic=True))
        partial.replace(path)
    return path


def sample(name: str, number: int) -> np.ndarray:
    """Return an input of a network: normal numbers, smoothed over neighbouring pixels as images are; each number another."""
    rng = np.random.default_rng((zlib.crc32(name.encode()), number))
    if name == "bert_base":
        return rng.standard_normal((1, SEQUENCE, HIDDEN), np.float32)
    size = 299 if name.startswith("inception") else 224
    coarse = rng.standard_normal((1, 3, -(-size // 8), -(-size // 8)), np.float32)
    fine = np.kron(coarse, np.ones((8, 8), np.float32))[:, :, :size, :size]
    return (0.9 * fine + 0.4 * rng.standard_normal((1, 3, size, size), np.float32)).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", help=f"comma-separated names of {', '.join(NETWORKS)}")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else list(NETWORKS)
    unknown = [name for name in wanted if name not in NETWORKS]
    if unknown:
        parser.error(f"unknown network {unknown[0]}: there are {', '.join(NETWORKS)}")
    for name in wanted:
        path = network_file(name, options.folder)
        print(f"{path} {path.stat().st_size / 1e6:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
