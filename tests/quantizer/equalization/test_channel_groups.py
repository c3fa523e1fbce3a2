"""Which channels may be divided by factors: random networks compute the same whatever the factors of their groups are."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm.relax import Var

import octavo
from apply_steps import with_steps
from octavo.errors import QuantizationError
from octavo.ir.channels import ChannelGroups, Factors, find_groups, find_sites, scaled
from octavo.ir.identity import TensorId
from octavo.ir.simplify import simplify
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.quantizer.equalization.check import check_factors
from octavo.quantizer.referee.referee import score_of
from octavo.quantizer.steps.correct import Correct
from octavo.quantizer.steps.equalize import Equalize

KINDS = ["conv", "depthwise", "grouped", "relu", "clip", "prelu", "pool", "add", "gate", "concat", "pad", "transposed"]
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
        if kind == "transposed":
            return self.node("ConvTranspose", x, self.normal(channels, 1, 1, 1), group=channels)
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


class Attention(Chain):
    """Attention behind a normalization, its projections with one bias of zeros, and a gated dense layer behind another."""

    def __init__(self, seed: int, norm: str, *, rotates: bool, shares_heads: bool) -> None:
        super().__init__(seed)
        self.norm, self.rotates, self.heads = norm, rotates, 1 if shares_heads else 2
        self.zeros = self.constant(np.zeros(8, np.float32))

    def normed(self, x: str) -> str:
        gamma = self.constant(self.rng.uniform(0.5, 2, 8).astype(np.float32))
        if self.norm == "layer":
            return self.node("LayerNormalization", x, gamma, self.zeros, axis=-1)
        square = self.node("ReduceMean", self.node("Mul", x, x), axes=[-1], keepdims=1)
        root = self.node("Sqrt", self.node("Add", square, self.constant(np.float32(1e-5))))
        return self.node("Mul", self.node("Div", x, root), gamma)

    def dense(self, x: str, outputs: int = 8) -> str:
        product = self.node("MatMul", x, self.normal(8, outputs))
        return self.node("Add", product, self.zeros) if outputs == 8 else product

    def split(self, x: str, heads: int, perm: list[int]) -> str:
        shape = self.constant(np.array([1, 5, heads, 4], np.int64))
        return self.node("Transpose", self.node("Reshape", x, shape), perm=perm)

    def rotated(self, x: str) -> str:
        """Return the two halves of each head, rotated by angles of the positions."""
        one, zero, two, four, axis = (self.constant(np.array([number], np.int64)) for number in (1, 0, 2, 4, 3))
        first, second = self.node("Slice", x, zero, two, axis, one), self.node("Slice", x, two, four, axis, one)
        cosine, sine = (self.node(op, "angles") for op in ("Cos", "Sin"))
        turned = [self.node("Mul", part, by) for part in (first, second) for by in (cosine, sine)]
        return self.node("Concat", self.node("Sub", turned[0], turned[3]), self.node("Add", turned[2], turned[1]), axis=3)

    def model(self) -> Any:
        x = self.normed("x")
        query = self.split(self.dense(x), 2, [0, 2, 1, 3])
        key, value = (self.split(self.dense(x, 4 * self.heads), self.heads, [0, 2, 1, 3]) for _ in range(2))
        if self.rotates:
            query, key = self.rotated(query), self.rotated(key)
        scores = self.node("MatMul", query, self.node("Transpose", key, perm=[0, 1, 3, 2]))
        if self.heads == 1:
            value = self.node("Tile", value, self.constant(np.array([1, 2, 1, 1], np.int64)))
        mixed = self.node("MatMul", self.node("Softmax", scores, axis=-1), value)
        flat = self.node(
            "Reshape", self.node("Transpose", mixed, perm=[0, 2, 1, 3]), self.constant(np.array([1, 5, 8], np.int64))
        )
        x = self.normed(self.node("Add", "x", self.dense(flat)))
        y = self.dense(self.node("Mul", self.node("Sigmoid", self.dense(x)), self.dense(x)))
        shapes = {"x": [1, 5, 8], "angles": [1, 1, 5, 2], y: [1, 5, 8]}
        ends = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
        inputs = [ends["x"], *([ends["angles"]] if self.rotates else [])]
        graph = helper.make_graph(self.nodes, "attention", inputs, [ends[y]], self.values)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        return model


@pytest.mark.parametrize("norm", ["layer", "root mean square"])
@pytest.mark.parametrize("rotates", [False, True])
@pytest.mark.parametrize("shares_heads", [False, True])
def test_any_factors_leave_attention(norm: str, rotates: bool, shares_heads: bool, rng: np.random.Generator) -> None:
    """Channels of queries and keys have inverse factors, the same for heads that share keys and for pairs that rotate."""
    model = octavo.load(Attention(3, norm, rotates=rotates, shares_heads=shares_heads).model())
    simple, _ = simplify(model)
    found = find_groups(simple)
    met = len(found.opposites) // 2
    assert met == (4 if shares_heads else 8) // (2 if rotates else 1)
    sizes = sorted(len(site.groups) for site in find_sites(found))
    assert sizes == sorted([8, 8, 2 * met, 4 if shares_heads else 8, 8]), "norms, queries and keys, values, the gated layer"
    by_group = np.exp2(rng.uniform(-4, 4, 1 + max(int(groups.max()) for groups in found.of.values())))
    by_group[0] = 1
    for group, other in found.opposites.items():
        by_group[max(group, other)] = 1 / by_group[min(group, other)]
    factors = {TensorId(var.name): by_group[groups].astype(np.float32) for var, groups in found.of.items()}
    check_factors(simple, factors)
    plain, equalized = octavo.compile(simple), octavo.compile(scaled(simple, factors, exact=True))
    given = {"x": rng.normal(size=(1, 5, 8)).astype(np.float32), "angles": rng.normal(size=(1, 1, 5, 2)).astype(np.float32)}
    given = {str(name): given[str(name)] for name in model.input_ids}
    before, now = (next(iter(run(given).values())) for run in (plain, equalized))
    assert np.abs(now - before).max() <= 1e-5 * np.abs(before).max()
    query = next(var for var, groups in found.of.items() if int(groups.max()) in found.opposites)
    with pytest.raises(QuantizationError, match="each other's inverse"):
        check_factors(simple, {**factors, **_of_one_side(found, query, factors)})


def _of_one_side(found: ChannelGroups, one: Var, factors: Factors) -> dict[TensorId, np.ndarray]:
    """Return twice the factors of all tensors that have the groups of one."""
    mine = set(np.unique(found.of[one]).tolist())
    return {
        TensorId(var.name): np.where(np.isin(groups, list(mine)), 2, 1).astype(np.float32) * factors[TensorId(var.name)]
        for var, groups in found.of.items()
    }


@pytest.mark.parametrize("corrects", [False, True])
def test_a_strength_is_exact_to_plan_and_referee(corrects: bool, rng: np.random.Generator, tmp_path: Path) -> None:
    """One bias of zeros is that of all projections, and each is divided by factors of its own, and corrected."""
    model = octavo.load(Attention(5, "root mean square", rotates=False, shares_heads=False).model())
    given = [rng.normal(size=(1, 5, 8)).astype(np.float32) for _ in range(12)]
    profile = octavo.profile(model, given, keep_samples=12)
    recipe = octavo.Recipe(min_sqnr=None)
    quantized = with_steps(model, profile, [Equalize(strength=0.75), *([Correct()] if corrects else [])], recipe=recipe)
    plan = quantized.plan
    assert bool(plan.corrections.bias_shifts) is corrects
    assert sum(np.ptp(np.log2(each)) > 1 for each in plan.equalization.factors.values()) > 5
    plan.save(tmp_path / "plan.json")
    assert octavo.quantize(model, plan=tmp_path / "plan.json").fingerprint == quantized.fingerprint
    runs = [octavo.compile(each) for each in (model, quantized)]
    exact, rounded = (np.concatenate([next(iter(run(x).values())) for x in given]) for run in runs)
    found = score_of(model, quantized, profile)
    assert found is not None
    assert found.sqnr_db == pytest.approx(sqnr_db(exact, rounded), abs=0.1)
    assert found.sqnr_db > 25
