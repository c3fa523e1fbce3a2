"""Which channels may be divided by factors: random networks compute the same whatever the factors of their groups are."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import octavo
from octavo.ir.identity import TensorId
from octavo.quantizer.equalization.channel_groups import find_groups
from octavo.quantizer.equalization.scaling import scaled
from octavo.quantizer.equalization.sites import find_sites
from octavo.quantizer.simplify import simplify

KINDS = ["conv", "depthwise", "grouped", "relu", "clip", "prelu", "pool", "add", "gate", "concat", "pad"]
DEPTH = 8


class Chain:
    """A random convolutional network whose channels may be scaled here and there."""

    def __init__(self, seed: int) -> None:
        self.rng, self.nodes, self.values, self.count = np.random.default_rng(seed), [], [], 0

    def constant(self, values: Any) -> str:
        name = f"c{len(self.values)}"
        self.values.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def normal(self, *shape: int) -> str:
        return self.constant((self.rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]) or 1)).astype(np.float32))

    def node(self, op: str, *inputs: str, **attrs: Any) -> str:
        self.count += 1
        self.nodes.append(helper.make_node(op, list(inputs), [f"t{self.count}"], **attrs))
        return f"t{self.count}"

    def conv(self, x: str, inputs: int, outputs: int, groups: int = 1) -> str:
        weight, bias = self.normal(outputs, inputs // groups, 3, 3), self.normal(outputs)
        return self.node("Conv", x, weight, bias, pads=[1, 1, 1, 1], group=groups)

    def step(self, kind: str, x: str, channels: int) -> str:
        """Return one layer of the same channels as it reads."""
        zero, six, alpha = np.float32(0), np.float32(0.6), np.full((channels, 1, 1), 0.3, np.float32)
        if kind in ("conv", "depthwise", "grouped"):
            return self.conv(x, channels, channels, {"conv": 1, "depthwise": channels, "grouped": 2}[kind])
        if kind == "clip":
            return self.node("Clip", x, self.constant(zero), self.constant(six))
        if kind == "prelu":
            return self.node("PRelu", x, self.constant(alpha))
        if kind == "pool":
            op = str(self.rng.choice(["MaxPool", "AveragePool"]))
            return self.node(op, x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        if kind == "add":
            return self.node("Add", x, self.conv(self.node("Relu", x), channels, channels))
        if kind == "gate":
            mean = self.node("GlobalAveragePool", x)
            return self.node("Mul", x, self.node("Sigmoid", self.node("Conv", mean, self.normal(channels, channels, 1, 1))))
        if kind == "concat":
            both = self.node("Concat", x, self.conv(x, channels, 2), axis=1)
            return self.conv(both, channels + 2, channels)
        if kind == "pad":
            padded = self.node("Pad", x, self.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64)))
            return self.node("Conv", padded, self.normal(channels, channels, 3, 3))
        return self.node("Relu", x)

    def model(self, kinds: list[str]) -> Any:
        x = self.conv("x", 3, 6)
        for kind in kinds:
            x = self.step(kind, x, 6)
        flat = self.node("Flatten", self.node("Relu", self.conv(x, 6, 6)))
        y = self.node("Gemm", flat, self.normal(6 * 49, 5), self.normal(5))
        shapes = {"x": [1, 3, 7, 7], y: [1, 5]}
        ends = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
        graph = helper.make_graph(self.nodes, "chain", [ends["x"]], [ends[y]], self.values)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        return model


@pytest.mark.parametrize("seed", range(4))
def test_any_factors_leave_the_results(seed: int, rng: np.random.Generator) -> None:
    """All kinds of layers in turn, three shuffles of them cut into networks: each kind stands beside several others."""
    order = [str(kind) for shuffle in range(3) for kind in np.random.default_rng(shuffle).permutation(KINDS)]
    model = octavo.load(Chain(seed).model(order[DEPTH * seed : DEPTH * (seed + 1)]))
    simple, _ = simplify(model)
    found = find_groups(simple)
    assert find_sites(found)
    by_group = np.exp2(rng.uniform(-4, 4, 1 + max(int(groups.max()) for groups in found.of.values()))).astype(np.float32)
    by_group[0] = 1
    factors = {TensorId(var.name): by_group[groups] for var, groups in found.of.items()}
    equalized = octavo.compile(scaled(simple, factors, exact=True))
    plain = octavo.compile(simple)
    for x in rng.normal(size=(3, 1, 3, 7, 7)).astype(np.float32):
        before, now = (next(iter(run(x).values())) for run in (plain, equalized))
        assert np.abs(now - before).max() <= 1e-5 * np.abs(before).max()
