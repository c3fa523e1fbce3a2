"""Transformers of few blocks, in ONNX: residual streams behind norms, whose channels can be rotated."""

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

TOKENS = 6


class Net:
    """A transformer, in ONNX."""

    def __init__(self, width: int, heads: int, *, groups: int = 1, seed: int = 0) -> None:
        self.rng, self.nodes, self.values = np.random.default_rng(seed), [], []
        self.width, self.heads, self.groups = width, heads, groups

    def constant(self, values: Any) -> str:
        name = f"c{len(self.values)}"
        self.values.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def normal(self, *shape: int) -> str:
        return self.constant((self.rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32))

    def node(self, op: str, *inputs: str, **attrs: Any) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [f"t{len(self.nodes)}"], **attrs))
        return self.nodes[-1].output[0]

    def dense(self, x: str, inputs: int, outputs: int, *, bias: bool = True) -> str:
        made = self.node("MatMul", x, self.normal(inputs, outputs))
        return self.node("Add", made, self.normal(outputs)) if bias else made

    def gains(self) -> str:
        values = self.rng.uniform(0.5, 1.5, self.width)
        values[1] *= 12
        return self.constant(values.astype(np.float32))

    def layer_norm(self, x: str) -> str:
        return self.node("LayerNormalization", x, self.gains(), self.normal(self.width), axis=-1)

    def rms_norm(self, x: str) -> str:
        mean = self.node("ReduceMean", self.node("Mul", x, x), axes=[-1], keepdims=1)
        root = self.node("Sqrt", self.node("Add", mean, self.constant(np.float32(1e-5))))
        return self.node("Mul", self.node("Div", x, root), self.gains())

    def head(self, x: str, heads: int, perm: list[int]) -> str:
        shape = np.array([1, TOKENS, heads, self.width // self.heads], np.int64)
        return self.node("Transpose", self.node("Reshape", x, self.constant(shape)), perm=perm)

    def attention(self, x: str, *, bias: bool = True) -> str:
        kept = self.heads // self.groups
        size = self.width // self.heads
        query = self.head(self.dense(x, self.width, self.width, bias=bias), self.heads, [0, 2, 1, 3])
        key = self.head(self.dense(x, self.width, kept * size, bias=bias), kept, [0, 2, 3, 1])
        value = self.head(self.dense(x, self.width, kept * size, bias=bias), kept, [0, 2, 1, 3])
        if self.groups > 1:
            order = self.constant(np.repeat(np.arange(kept), self.groups))
            key, value = (self.node("Gather", each, order, axis=1) for each in (key, value))
        weights = self.node("Softmax", self.node("MatMul", query, key), axis=-1)
        mixed = self.node("Transpose", self.node("MatMul", weights, value), perm=[0, 2, 1, 3])
        flat = self.node("Reshape", mixed, self.constant(np.array([1, TOKENS, self.width], np.int64)))
        return self.dense(flat, self.width, self.width, bias=bias)

    def block(self, x: str, norm: Callable[[str], str], *, bias: bool = True) -> str:
        x = self.node("Add", x, self.attention(norm(x), bias=bias))
        inner = self.node("Relu", self.dense(norm(x), self.width, 2 * self.width, bias=bias))
        return self.node("Add", x, self.dense(inner, 2 * self.width, self.width, bias=bias))

    def model(self, result: str) -> Any:
        self.nodes[-1].output[0] = "y"
        assert result
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, TOKENS, self.width])]
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, "net", inputs, outputs, self.values)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def transformer(width: int = 32, heads: int = 4, *, groups: int = 1, kind: str = "layer", seed: int = 0, blocks: int = 2) -> Any:
    """Return one whose residual stream begins behind a dense layer."""
    net = Net(width, heads, groups=groups, seed=seed)
    norm, bias = (net.layer_norm, True) if kind == "layer" else (net.rms_norm, False)
    x = net.dense("x", width, width)
    if kind == "layer":
        # As exporters write what every sample of a batch gets.
        places = net.constant(net.rng.normal(size=(TOKENS, width)).astype(np.float32))
        x = net.node("Add", x, net.node("Expand", places, net.constant(np.array([1, TOKENS, width]))))
    elif kind != "bare":
        x = net.node("Add", x, net.normal(1, TOKENS, width))
    for _ in range(blocks):
        x = net.block(x, norm, bias=bias)
    return net.model(net.dense(norm(x), width, 5))


def draws(width: int, count: int, seed: int = 1) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(1, TOKENS, width)).astype(np.float32) for _ in range(count)]
