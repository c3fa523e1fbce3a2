"""stories260K, a trained LLaMA of 260,000 parameters in llama2.c's format, as an ONNX model of whole windows of tokens.

It must not know who quantizes, or runs it.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

HEADER = struct.Struct("<7i")
FIRST_TOKEN, EPSILON, BASE, MASKED = 1, 1e-5, 10000.0, -1e9


class _Decoder:
    """Nodes and weights of the graph, as they are added."""

    def __init__(self, file: Path, tokens: int) -> None:
        raw = file.read_bytes()
        self.dim, self.hidden, self.layers, self.heads, self.kv_heads, vocabulary, _ = HEADER.unpack_from(raw)
        self.vocabulary, self.tokens, self.head = abs(vocabulary), tokens, self.dim // self.heads
        self.weights, self.nodes = dict[str, np.ndarray](), list[onnx.NodeProto]()
        data, at = np.frombuffer(raw, np.float32, offset=HEADER.size), 0
        kv = self.head * self.kv_heads
        shapes = {
            "norm1": (self.dim,),
            "q": (self.dim, self.dim),
            "k": (kv, self.dim),
            "v": (kv, self.dim),
            "o": (self.dim, self.dim),
        }
        shapes |= {
            "norm2": (self.dim,),
            "gate": (self.hidden, self.dim),
            "down": (self.dim, self.hidden),
            "up": (self.hidden, self.dim),
        }
        for name, shape, count in (
            ("embed", (self.vocabulary, self.dim), 1),
            *((*each, self.layers) for each in shapes.items()),
            ("norm", (self.dim,), 1),
        ):
            for layer in range(count):
                size = math.prod(shape)
                value = data[at : at + size].reshape(shape)
                self.weights[name if count == 1 else f"{name}{layer}"] = value if len(shape) == 1 or name == "embed" else value.T
                at += size

    def node(self, op: str, *inputs: str | np.ndarray, **attributes: object) -> str:
        """Add a node of one result; return that."""
        names = [each if isinstance(each, str) else self.constant(each) for each in inputs]
        result = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, names, [result], **attributes))
        return result

    def constant(self, value: np.ndarray) -> str:
        """Add a constant; return its name."""
        name = f"constant_{len(self.weights)}"
        self.weights[name] = value
        return name

    def normalized(self, x: str, gain: str) -> str:
        """RMSNorm."""
        mean = self.node("ReduceMean", self.node("Mul", x, x), axes=[-1], keepdims=1)
        root = self.node("Sqrt", self.node("Add", mean, np.float32(EPSILON)))
        return self.node("Mul", self.node("Div", x, root), gain)

    def by_head(self, x: str, weight: str, count: int) -> str:
        """A dense layer's results, [1, heads, tokens, size of a head]."""
        split = self.node("Reshape", self.node("MatMul", x, weight), np.array([1, self.tokens, count, self.head]))
        return self.node("Transpose", split, perm=[0, 2, 1, 3])

    def turned(self, x: str, count: int) -> str:
        """Rotary positions, of neighbours."""
        angles = np.arange(self.tokens)[:, None] * BASE ** (-np.arange(0, self.head, 2) / self.head)
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        even, odd = (self.node("Slice", x, np.array([k]), np.array([self.head]), np.array([3]), np.array([2])) for k in (0, 1))
        first = self.node("Sub", self.node("Mul", even, cos), self.node("Mul", odd, sin))
        second = self.node("Add", self.node("Mul", even, sin), self.node("Mul", odd, cos))
        pairs = [self.node("Unsqueeze", each, np.array([4])) for each in (first, second)]
        return self.node("Reshape", self.node("Concat", *pairs, axis=4), np.array([1, count, self.tokens, self.head]))

    def shared(self, x: str) -> str:
        """Keys or values for each head that reads them."""
        times = self.heads // self.kv_heads
        wide = self.node(
            "Expand", self.node("Unsqueeze", x, np.array([2])), np.array([1, self.kv_heads, times, self.tokens, self.head])
        )
        return self.node("Reshape", wide, np.array([1, self.heads, self.tokens, self.head]))

    def attended(self, x: str, layer: int) -> str:
        """Causal attention."""
        q = self.turned(self.by_head(x, f"q{layer}", self.heads), self.heads)
        k = self.shared(self.turned(self.by_head(x, f"k{layer}", self.kv_heads), self.kv_heads))
        v = self.shared(self.by_head(x, f"v{layer}", self.kv_heads))
        scores = self.node("MatMul", q, self.node("Transpose", k, perm=[0, 1, 3, 2]))
        masked = np.triu(np.full((self.tokens, self.tokens), MASKED, np.float32), 1)
        scores = self.node("Add", self.node("Div", scores, np.float32(math.sqrt(self.head))), masked)
        mixed = self.node("Transpose", self.node("MatMul", self.node("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
        return self.node("MatMul", self.node("Reshape", mixed, np.array([1, self.tokens, self.dim])), f"o{layer}")

    def model(self) -> onnx.ModelProto:
        """All of it."""
        x = self.node("Gather", "embed", "ids", axis=0)
        for layer in range(self.layers):
            x = self.node("Add", x, self.attended(self.normalized(x, f"norm1{layer}"), layer))
            y = self.normalized(x, f"norm2{layer}")
            gate = self.node("MatMul", y, f"gate{layer}")
            gated = self.node("Mul", self.node("Mul", gate, self.node("Sigmoid", gate)), self.node("MatMul", y, f"up{layer}"))
            x = self.node("Add", x, self.node("MatMul", gated, f"down{layer}"))
        logits = self.node("MatMul", self.normalized(x, "norm"), np.ascontiguousarray(self.weights["embed"].T))
        ids = helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [1, self.tokens])
        result = helper.make_tensor_value_info(logits, onnx.TensorProto.FLOAT, [1, self.tokens, self.vocabulary])
        weights = [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in self.weights.items()]
        graph = helper.make_graph(self.nodes, "stories260k", [ids], [result], weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def decoder(file: Path, tokens: int) -> onnx.ModelProto:
    """Return a decoder: ids int64 [1, tokens] to logits float32 [1, tokens, vocabulary]."""
    return _Decoder(file, tokens).model()
