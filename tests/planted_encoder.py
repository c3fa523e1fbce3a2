"""A small vision transformer with weights as training leaves them, and outlier channels planted into its normalizations."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

TOKENS, WIDTH, HEADS, CLASSES = 33, 64, 2, 10


class Encoder:
    """Builds the ONNX graph.

    Parameters
    ----------
    plant
        Which channels of each normalization are made wide, and how much: what reads them makes up for it.
    stream
        Which channels of the residual stream are, from its start: another network.
    """

    def __init__(self, blocks: int, plant: dict[int, float], stream: dict[int, float] | None = None) -> None:
        self.rng, self.nodes, self.values = np.random.default_rng(7), [], []
        self.plant, self.blocks, self.count, self.stream = plant, blocks, 0, stream or {}

    def constant(self, values: np.ndarray) -> str:
        name = f"c{len(self.values)}"
        self.values.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def node(self, op: str, *inputs: str, **attrs: object) -> str:
        self.count += 1
        self.nodes.append(helper.make_node(op, list(inputs), [f"t{self.count}"], **attrs))
        return f"t{self.count}"

    def norm(self, x: str) -> tuple[str, np.ndarray]:
        """Return a normalization and what those who read it divide their weights by."""
        gamma = self.rng.uniform(0.6, 1.4, WIDTH)
        beta = self.rng.normal(0, 0.2, WIDTH)
        factors = np.ones(WIDTH)
        for channel, factor in self.plant.items():
            factors[(channel + 11 * self.count) % WIDTH] = factor
        scale, shift = (self.constant((each * factors).astype(np.float32)) for each in (gamma, beta))
        return self.node("LayerNormalization", x, scale, shift, axis=-1, epsilon=1e-6), factors

    def dense(self, x: str, inputs: int, outputs: int, factors: np.ndarray | None = None) -> str:
        weight = self.rng.standard_t(5, (inputs, outputs)) / np.sqrt(1.6 * inputs)
        weight = weight if factors is None else weight / factors[:, None]
        for channel, factor in self.stream.items() if x == "x" else ():
            weight[:, channel] *= factor
        product = self.node("MatMul", x, self.constant(weight.astype(np.float32)))
        return self.node("Add", product, self.constant(self.rng.normal(0, 0.1, outputs).astype(np.float32)))

    def split_features(self, x: str, perm: list[int]) -> str:
        shape = self.constant(np.array([1, TOKENS, HEADS, WIDTH // HEADS], np.int64))
        return self.node("Transpose", self.node("Reshape", x, shape), perm=perm)

    def attention(self, x: str, factors: np.ndarray) -> str:
        query, key, value = (self.dense(x, WIDTH, WIDTH, factors) for _ in range(3))
        scores = self.node("MatMul", self.split_features(query, [0, 2, 1, 3]), self.split_features(key, [0, 2, 3, 1]))
        scores = self.node("Mul", scores, self.constant(np.float32((WIDTH // HEADS) ** -0.5)))
        mixed = self.node("MatMul", self.node("Softmax", scores, axis=-1), self.split_features(value, [0, 2, 1, 3]))
        flat = self.node("Transpose", mixed, perm=[0, 2, 1, 3])
        flat = self.node("Reshape", flat, self.constant(np.array([1, TOKENS, WIDTH], np.int64)))
        return self.dense(flat, WIDTH, WIDTH)

    def mlp(self, x: str, factors: np.ndarray) -> str:
        hidden = self.dense(x, WIDTH, 4 * WIDTH, factors)
        erf = self.node("Erf", self.node("Mul", hidden, self.constant(np.float32(0.5**0.5))))
        half = self.node("Mul", hidden, self.constant(np.float32(0.5)))
        return self.dense(self.node("Mul", half, self.node("Add", erf, self.constant(np.float32(1)))), 4 * WIDTH, WIDTH)

    def model(self) -> object:
        x = self.dense("x", WIDTH, WIDTH)
        for _ in range(self.blocks):
            for part in (self.attention, self.mlp):
                x = self.node("Add", x, part(*self.norm(x)))
        x, factors = self.norm(x)
        pooled = self.node("ReduceMean", x, axes=[1], keepdims=0)
        logits = self.dense(pooled, WIDTH, CLASSES, factors)
        shapes = {"x": [1, TOKENS, WIDTH], logits: [1, CLASSES]}
        ends = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
        graph = helper.make_graph(self.nodes, "encoder", [ends["x"]], [ends[logits]], self.values)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def samples(count: int, seed: int) -> list[np.ndarray]:
    """Return inputs of a few directions and noise, as patches of pictures are."""
    rng = np.random.default_rng(seed)
    directions = np.random.default_rng(3).normal(0, 1, (6, WIDTH))
    rows = rng.normal(0, 1, (count, TOKENS, 6)) @ directions + rng.normal(0, 0.5, (count, TOKENS, WIDTH))
    return [each[None].astype(np.float32) for each in rows]
