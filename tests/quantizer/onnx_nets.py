"""Small ONNX files with the forms that exporting has to repeat."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class OnnxWriter:
    """Collects nodes and random constants into a checked onnx.ModelProto."""

    def __init__(self, seed: int = 0) -> None:
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._rng = np.random.default_rng(seed)

    def constant(self, name: str, *shape: int, positive: bool = False) -> str:
        values = self._rng.random(shape) + 0.5 if positive else self._rng.standard_normal(shape)
        fan_in = float(np.prod(shape[1:])) if len(shape) > 1 else 1.0
        return self.value(name, (values / np.sqrt(fan_in)).astype(np.float32))

    def value(self, name: str, values: np.ndarray) -> str:
        self.initializers.append(numpy_helper.from_array(values, name))
        return name

    def node(self, op: str, inputs: list[str], output: str, **attrs: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], name=f"node/{output}", **attrs))
        return output

    def model(
        self,
        inputs: dict[str, list[Any]],
        outputs: dict[str, list[Any]],
        opset: int = 17,
        integers: tuple[str, ...] = (),
    ) -> Any:
        """Return the model of these shapes; tensors are float32, `integers` int64."""
        types = {name: TensorProto.INT64 if name in integers else TensorProto.FLOAT for name in (*inputs, *outputs)}
        infos = [
            [helper.make_tensor_value_info(name, types[name], shape) for name, shape in values.items()]
            for values in (inputs, outputs)
        ]
        graph = helper.make_graph(self.nodes, "net", infos[0], infos[1], self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        onnx.checker.check_model(model)
        return model


def convolutional(opset: int = 17) -> Any:
    """Conv + BatchNorm + Relu, depthwise with bias + BatchNorm + Clip, residual Add, Pad, pools, Concat, Gemm, MatMul + Add."""
    net = OnnxWriter()

    def norm(data: str, output: str, channels: int) -> str:
        values = [net.constant(f"{output}.{part}", channels, positive=part == "var") for part in ("scale", "bias", "mean", "var")]
        return net.node("BatchNormalization", [data, *values], output)

    c = net.node("Conv", ["image", net.constant("conv1.weight", 8, 3, 3, 3)], "conv1", pads=[1, 1, 1, 1], strides=[2, 2])
    r = net.node("Relu", [norm(c, "bn1", 8)], "relu1")
    weights = [net.constant("conv2.weight", 8, 1, 3, 3), net.constant("conv2.bias", 8)]
    c = net.node("Conv", [r, *weights], "conv2", pads=[1, 1, 1, 1], group=8)
    six = [net.value("zero", np.float32(0)), net.value("six", np.float32(6))]
    data, bounds = norm(c, "bn2", 8), {} if opset >= 11 else {"min": 0.0, "max": 6.0}
    r2 = net.node("Clip", [data, *(six if opset >= 11 else [])], "clip2", **bounds)
    c = net.node("Conv", [r2, net.constant("conv3.weight", 8, 8, 1, 1), net.constant("conv3.bias", 8)], "conv3")
    s = net.node("Add", [r, c], "sum")
    s = net.node("Identity", [s], "sum_again")
    if opset >= 11:
        pads = net.value("pads", np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64))
        p = net.node("Pad", [s, pads], "padded")
    else:
        p = net.node("Pad", [s], "padded", pads=[0, 0, 1, 1, 0, 0, 1, 1])
    c = net.node("Conv", [p, net.constant("conv4.weight", 4, 8, 3, 3)], "conv4_raw")
    c = net.node("Add", [c, net.constant("conv4.bias", 1, 4, 1, 1)], "conv4")
    m = net.node("MaxPool", [s], "pool", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    k = net.node("Concat", [c, m], "both", axis=1)
    a = net.node("AveragePool", [k], "average", kernel_shape=[2, 2], strides=[2, 2])
    g = net.node("GlobalAveragePool", [a], "global")
    f = net.node("Flatten", [g], "flat")
    h = net.node("Gemm", [f, net.constant("fc1.weight", 16, 12), net.constant("fc1.bias", 16)], "fc1", transB=1)
    h = net.node("Relu", [h], "fc1_relu")
    h = net.node("MatMul", [h, net.constant("fc2.weight", 16, 10)], "fc2_product")
    h = net.node("Add", [net.constant("fc2.bias", 10), h], "logits")
    net.node("Softmax", [h], "probabilities", axis=1)
    return net.model({"image": [1, 3, 8, 8]}, {"probabilities": [1, 10], "logits": [1, 10]}, opset)


def attention() -> Any:
    """softmax(q k^T / 2) v, where q, k and v are products of the input with constants, and a dense layer behind it."""
    net = OnnxWriter()
    q, k, v = (net.node("MatMul", ["tokens", net.constant(f"{name}.weight", 8, 8)], name) for name in "qkv")
    turned = net.node("Transpose", [k], "turned", perm=[0, 2, 1])
    products = net.node("MatMul", [q, turned], "products")
    scores = net.node("Div", [products, net.value("two", np.float32(2))], "scores")
    shares = net.node("Softmax", [scores], "shares", axis=-1)
    mixed = net.node("MatMul", [shares, v], "mixed")
    net.node("MatMul", [mixed, net.constant("out.weight", 8, 8)], "y")
    return net.model({"tokens": [1, 5, 8]}, {"y": [1, 5, 8]})


def shared_and_float() -> Any:
    """A bias and a weight that two layers share, an input that a float op reads too, a float op between."""
    net = OnnxWriter(1)
    w, b = net.constant("w", 3, 3, 1, 1), net.constant("b", 3)
    c = net.node("Conv", ["x", w, b], "c")
    g = net.node("Exp", ["x"], "e")
    m = net.node("Mul", [c, g], "scaled")
    net.node("Conv", [m, w, b], "y")
    return net.model({"x": [1, 3, 5, 5]}, {"y": [1, 3, 5, 5]})


def rows() -> Any:
    """Convolutions of rows, which the frontend gives a dimension for a while, around what takes one row out of several."""
    net = OnnxWriter(2)
    c = net.node("Conv", ["x", net.constant("c.weight", 6, 3, 3), net.constant("c.bias", 6)], "c", pads=[1, 1])
    r = net.node("Relu", [c], "r")
    d = net.node("Conv", [r, net.constant("d.weight", 6, 1, 3)], "d", group=6, strides=[2])
    first = net.node("Gather", [d, net.value("third", np.int64(2))], "first", axis=2)
    net.node("Gemm", [first, net.constant("g.weight", 6, 4)], "y")
    return net.model({"x": [1, 3, 16]}, {"y": [1, 4]})


def upsampling() -> Any:
    """Transposed convolutions: one with a normalization, one of each channel alone, one of two groups."""
    net = OnnxWriter(3)
    c = net.node("ConvTranspose", ["x", net.constant("c.weight", 6, 8, 4, 4)], "c", strides=[2, 2], pads=[1, 1, 1, 1])
    values = [net.constant(f"n.{part}", 8, positive=part == "var") for part in ("scale", "bias", "mean", "var")]
    r = net.node("Relu", [net.node("BatchNormalization", [c, *values], "n")], "r")
    d = net.node(
        "ConvTranspose", [r, net.constant("d.weight", 8, 1, 2, 2), net.constant("d.bias", 8)], "d", strides=[2, 2], group=8
    )
    net.node("ConvTranspose", [d, net.constant("y.weight", 8, 3, 3, 3), net.constant("y.bias", 6)], "y", group=2)
    return net.model({"x": [1, 6, 5, 4]}, {"y": [1, 6, 22, 18]})


def normalized_first() -> Any:
    """Normalizations before convolutions, parametric relus, a gate of halves, constants added, multiplied and joined."""
    net = OnnxWriter(4)

    def norm(data: str, output: str, channels: int) -> str:
        values = [net.constant(f"{output}.{part}", channels, positive=part == "var") for part in ("scale", "bias", "mean", "var")]
        return net.node("BatchNormalization", [data, *values], output)

    c = net.node("Conv", ["x", net.constant("c.weight", 8, 3, 3, 3)], "c", pads=[1, 1, 1, 1])
    r = net.node("Relu", [norm(c, "n", 8)], "r")
    d = net.node("Conv", [r, net.constant("d.weight", 8, 8, 1, 1)], "d_sums")
    d = net.node("PRelu", [d, net.constant("d.slopes", 8, 1, 1)], "d")
    s = net.node("PRelu", [net.node("Add", [c, d], "s"), net.constant("slopes", 8, 1, 1)], "p")
    net.nodes.append(helper.make_node("Split", [s, net.value("halves", np.array([4, 4]))], ["a", "b"], axis=1))
    g = net.node("Mul", ["a", net.node("Sigmoid", ["b"], "gate")], "g")
    k = net.node("Concat", [g, net.constant("joined", 1, 2, 24, 32)], "k", axis=1)
    m = net.node("Mul", [k, net.constant("factors", 6, 1, 1)], "m")
    o = net.node("Add", [m, net.constant("places", 1, 6, 24, 32)], "o")
    h = net.node("ReduceMean", [net.node("Relu", [norm(o, "last", 6)], "l")], "h", axes=[1], keepdims=1)
    net.node("Conv", [h, net.constant("e.weight", 2, 1, 3, 3)], "y", pads=[1, 1, 1, 1])
    return net.model({"x": [1, 3, 24, 32]}, {"y": [1, 2, 24, 32]})


def normalized_rows() -> Any:
    """Products of rows around a layer normalization in plain ops, one as an op, one by the mean square, and one at the end."""
    net = OnnxWriter(5)

    def product(data: str, name: str) -> str:
        return net.node("MatMul", [data, net.constant(f"{name}.weight", 24, 24)], name)

    def mean(data: str, name: str) -> str:
        return net.node("ReduceMean", [data], name, axes=[-1], keepdims=1)

    def ends(name: str) -> list[str]:
        return [net.constant(f"{name}.gamma", 24, positive=True), net.constant(f"{name}.beta", 24)]

    two, little = net.value("two", np.float32(2)), net.value("little", np.float32(1e-5))
    a = product("x", "a")
    d = net.node("Sub", [a, mean(a, "middle")], "d")
    v = net.node("Add", [mean(net.node("Pow", [d, two], "square"), "variance"), little], "v")
    q = net.node("Div", [d, net.node("Sqrt", [v], "root")], "q")
    n = net.node("Add", [net.node("Mul", [q, ends("plain")[0]], "scaled"), net.constant("plain.shift", 24)], "plain")
    b = net.node("LayerNormalization", [product(n, "b"), *ends("whole")], "whole", axis=-1)
    c = product(b, "c")
    s = net.node("Sqrt", [net.node("Add", [mean(net.node("Mul", [c, c], "power"), "rms"), little], "raised")], "size")
    e = product(net.node("Div", [c, s], "ratio"), "e")
    net.node("LayerNormalization", [e, *ends("last")], "y", axis=-1)
    return net.model({"x": [1, 5, 24]}, {"y": [1, 5, 24]})


def normalized_groups() -> Any:
    """Groups normalized as PyTorch's exporter writes it, and instances, between convolutions and before a sum."""
    net = OnnxWriter()
    c = net.node("Conv", ["x", net.constant("w1", 12, 3, 3, 3)], "c1", pads=[1, 1, 1, 1])
    rows = net.node("Reshape", [c, net.value("rows.shape", np.int64([0, 3, -1]))], "rows")
    ones, zeros = net.value("ones", np.ones(3, np.float32)), net.value("zeros", np.zeros(3, np.float32))
    n = net.node("InstanceNormalization", [rows, ones, zeros], "by_group", epsilon=0.01)
    n = net.node("Reshape", [n, net.value("image.shape", np.int64([1, 12, 6, 7]))], "back")
    n = net.node("Mul", [n, net.constant("gamma", 12, 1, 1, positive=True)], "scaled")
    n = net.node("Relu", [net.node("Add", [n, net.constant("beta", 12, 1, 1)], "shifted")], "groups")
    c = net.node("Conv", [n, net.constant("w2", 12, 12, 1, 1)], "c2")
    i = net.node("InstanceNormalization", [c, net.constant("g2", 12), net.constant("b2", 12)], "instances")
    net.node("Conv", [net.node("Add", [i, n], "sum"), net.constant("w3", 4, 12, 3, 3)], "y")
    return net.model({"x": [1, 3, 6, 7]}, {"y": [1, 4, 4, 5]})
