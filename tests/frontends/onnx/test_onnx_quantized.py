"""Each QOperator op, imported and compiled, against ONNX Runtime: integer, and the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.helper import make_node

import octavo
from octavo.errors import UnsupportedOpError
from prequantized import faults, random_file
from reference_sessions import reference_session

Build = Callable[["Graph"], None]
DTYPES = {"u8": np.uint8, "s8": np.int8}


class Graph:
    """Writes one quantized op: float input x -> QuantizeLinear -> op -> DequantizeLinear -> y, or integers in and out.

    Integers in and out say more: no value hides behind a float.
    """

    def __init__(self, seed: int, dtype: type[Any], weight_dtype: type[Any], opset: int = 17) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype, self.weight_dtype, self.opset = dtype, weight_dtype, opset
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.inputs: dict[str, tuple[int, ...]] = {}
        self.outputs: dict[str, int] = {}
        self.per_axis = False

    def constant(self, values: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(values)
        return name

    def params(self, dtype: type[Any] | None = None, size: int | None = None, *, symmetric: bool = False) -> list[str]:
        """Scale and zero point of a tensor."""
        dtype = self.dtype if dtype is None else dtype
        shape = () if size is None else (size,)
        scale = self.rng.uniform(0.005, 0.1, shape).astype(np.float32)
        middle = 128 if dtype is np.uint8 else 0
        zero = np.full(shape, middle) if symmetric else self.rng.integers(middle - 20, middle + 20, shape)
        return [self.constant(scale), self.constant(zero.astype(dtype))]

    def input(self, *shape: int) -> list[str]:
        """A quantized input with its parameters."""
        name = f"x{len(self.inputs)}"
        self.inputs[name] = shape
        return [name, *self.params()]

    def weight(self, *shape: int, axis: int = 0) -> list[str]:
        limits = np.iinfo(self.weight_dtype)
        # No more than 7 bits: ONNX Runtime's kernels for CPUs without VNNI saturate sums of two products.
        values = self.rng.integers(limits.min // 2, limits.max // 2 + 1, shape).astype(self.weight_dtype)
        symmetric = self.weight_dtype is np.int8
        return [
            self.constant(values),
            *self.params(self.weight_dtype, shape[axis] if self.per_axis else None, symmetric=symmetric),
        ]

    def result_params(self, reals: float) -> list[str]:
        """Parameters of the output that cover about -reals..reals."""
        middle = 128 if self.dtype is np.uint8 else 0
        return [self.constant(np.float32(reals / 127)), self.constant(self.dtype(middle + 3))]

    def op(self, op_type: str, inputs: list[str], rank: int, domain: str = "", **attrs: Any) -> None:
        self.nodes.append(make_node(op_type, inputs, ["y"], "the_op", domain=domain, **attrs))
        self.outputs["y"] = rank

    def model(self, output_type: int | None = None) -> onnx.ModelProto:
        elem = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        out = elem if output_type is None else output_type
        graph = onnx.helper.make_graph(
            self.nodes,
            "graph",
            [onnx.helper.make_tensor_value_info(name, elem, shape) for name, shape in self.inputs.items()],
            [onnx.helper.make_tensor_value_info(name, out, [None] * rank) for name, rank in self.outputs.items()],
            [onnx.numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        opsets = [onnx.helper.make_opsetid("", self.opset), onnx.helper.make_opsetid("com.microsoft", 1)]
        return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def feeds(self) -> dict[str, np.ndarray]:
        limits = np.iinfo(self.dtype)
        draw = self.rng.integers
        return {n: draw(limits.min, limits.max + 1, shape).astype(self.dtype) for n, shape in self.inputs.items()}


MS = "com.microsoft"


def conv(**attrs: Any) -> Build:
    def build(g: Graph) -> None:
        x, w = g.input(1, 8, 9, 11), g.weight(12, 8 // attrs.get("group", 1), 3, 3)
        bias = g.constant(g.rng.integers(-2000, 2000, 12).astype(np.int32))
        g.op("QLinearConv", [*x, *w, *g.result_params(12.0), bias], 4, **attrs)

    return build


def conv_without_bias(g: Graph) -> None:
    g.op("QLinearConv", [*g.input(2, 3, 7, 7), *g.weight(5, 3, 1, 1), *g.result_params(6.0)], 4)


def matmul(g: Graph) -> None:
    g.op("QLinearMatMul", [*g.input(5, 24), *g.weight(24, 17, axis=1), *g.result_params(12.0)], 2)


def gemm(**attrs: Any) -> Build:
    def build(g: Graph) -> None:
        w = g.weight(17, 24) if attrs.get("transB") else g.weight(24, 17, axis=1)
        bias = g.constant(g.rng.integers(-2000, 2000, 17).astype(np.int32))
        g.op("QGemm", [*g.input(5, 24), *w, bias, *g.result_params(12.0)], 2, MS, **attrs)

    return build


def binary(op: str, b: tuple[int, ...] = (1, 8, 5, 6)) -> Build:
    return lambda g: g.op(op, [*g.input(1, 8, 5, 6), *g.input(*b), *g.result_params(6.0)], 4, MS)


def with_constant(op: str) -> Build:
    def build(g: Graph) -> None:
        values = g.constant(g.rng.integers(0, 100, (12,)).astype(g.dtype))
        g.op(op, [*g.input(3, 12), values, *g.params(), *g.result_params(6.0)], 2, MS)

    return build


def unary(op: str, shape: tuple[int, ...] = (1, 8, 5, 6), rank: int | None = None, reals: float = 6.0, **attrs: Any) -> Build:
    return lambda g: g.op(op, [*g.input(*shape), *g.result_params(reals)], rank or len(shape), MS, **attrs)


def concat(g: Graph) -> None:
    parts = [*g.input(1, 3, 5, 6), *g.input(1, 8, 5, 6), *g.input(1, 1, 5, 6)]
    g.op("QLinearConcat", [*g.result_params(6.0), *parts], 4, MS, axis=1)


# name -> (how the op is built, whether it must be integer)
OPS: dict[str, tuple[Build, bool]] = {
    "conv": (conv(pads=[1, 1, 1, 1], strides=[2, 1]), True),
    "conv_same": (conv(auto_pad="SAME_UPPER", strides=[2, 2]), True),
    "conv_dilated": (conv(dilations=[2, 2]), True),
    "conv_no_bias": (conv_without_bias, True),
    "matmul": (matmul, True),
    "gemm": (gemm(transB=1), True),
    "gemm_alpha": (gemm(alpha=0.5), True),
    "add": (binary("QLinearAdd"), True),
    "add_constant": (with_constant("QLinearAdd"), True),
    "add_broadcast": (binary("QLinearAdd", (1, 8, 1, 1)), False),
    "mul": (binary("QLinearMul"), True),
    "mul_constant": (with_constant("QLinearMul"), True),
    "global_average_pool": (unary("QLinearGlobalAveragePool", channels_last=0), True),
    "global_average_pool_nhwc": (unary("QLinearGlobalAveragePool", channels_last=1), True),
    "average_pool": (unary("QLinearAveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), True),
    "average_pool_nhwc": (unary("QLinearAveragePool", kernel_shape=[2, 2], channels_last=1), True),
    "concat": (concat, True),
    "sigmoid": (unary("QLinearSigmoid", reals=1.0), True),
    "leaky_relu": (unary("QLinearLeakyRelu", alpha=0.2), True),
    "softmax": (unary("QLinearSoftmax", (3, 12), reals=1.0, axis=-1, opset=17), False),
    "softmax_opset_12": (unary("QLinearSoftmax", (3, 4, 5), reals=1.0, axis=1, opset=12), False),
}


def run_ort(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(reference_session(model).run(None, feeds)[0])


def compare(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> tuple[octavo.Explanation, np.ndarray]:
    """Return what became of the ops, and the differences in quantization steps."""
    executable = octavo.compile(octavo.load(model))
    (got,) = executable(feeds).values()
    want = run_ort(model, feeds)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    return octavo.explain(executable), np.abs(got.astype(np.int64) - want.astype(np.int64))


def variants() -> list[Any]:
    """Each op in each pair of dtypes of activations and weights, those with weights per tensor and per axis."""
    found: list[Any] = []
    for name in OPS:
        has_weights = name.split("_")[0] in ("conv", "matmul", "gemm")
        for dtypes in ("u8s8", "s8s8", "u8u8") if has_weights else ("u8", "s8"):
            for granularity in ("per_tensor", "per_axis") if has_weights else ("per_tensor",):
                found.append(pytest.param(name, dtypes, granularity, id=f"{name}-{dtypes}-{granularity}"))
    return found


@pytest.mark.parametrize(("name", "dtypes", "granularity"), variants())
def test_op_against_onnx_runtime(name, dtypes, granularity):
    build, must_be_integer = OPS[name]
    graph = Graph(11, DTYPES[dtypes[:2]], DTYPES[dtypes[-2:]])
    graph.per_axis = granularity == "per_axis"
    build(graph)
    explained, difference = compare(graph.model(), graph.feeds())
    assert difference.max() <= 1
    assert np.mean(difference > 0) <= 0.001 * max(1, 1000 // difference.size), "one value of a small tensor may differ"
    if must_be_integer:
        assert [op.reason for op in explained.counted if not op.integer] == []


@pytest.mark.parametrize("dtype", ["u8", "s8"])
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_ties_round_as_onnx_runtime_rounds_them(op, dtype):
    """Scales that are powers of two of each other: one value in four is a tie."""
    graph = Graph(9, DTYPES[dtype], np.int8)
    shape = (1, 16, 24, 24)
    graph.inputs = {"x0": shape, "x1": shape}
    zeros = graph.rng.integers(0, 20, 3)
    a, b, y = (
        [graph.constant(np.float32(s)), graph.constant(graph.dtype(z))] for s, z in zip((0.25, 0.5, 0.5), zeros, strict=True)
    )
    graph.op(op, ["x0", *a, "x1", *b, *y], 4, MS)
    explained, difference = compare(graph.model(), graph.feeds())
    assert difference.max() == 0
    assert all(record.integer for record in explained.counted)


def test_reduce_mean_against_its_qdq_form():
    """ONNX Runtime has no kernel for QLinearReduceMean; it has for the same in QDQ form."""
    graph = Graph(3, np.uint8, np.int8)
    x, y = graph.input(1, 8, 5, 6), graph.result_params(2.0)
    graph.op("QLinearReduceMean", [*x, *y], 2, MS, axes=[2, 3], keepdims=0)
    model, feeds = graph.model(), graph.feeds()
    del graph.nodes[:]
    graph.nodes.append(make_node("DequantizeLinear", x, ["x_f"]))
    graph.nodes.append(make_node("ReduceMean", ["x_f"], ["y_f"], axes=[2, 3], keepdims=0))
    graph.nodes.append(make_node("QuantizeLinear", ["y_f", *y], ["y"]))
    executable = octavo.compile(octavo.load(model))
    (got,) = executable(feeds).values()
    np.testing.assert_array_equal(got, run_ort(graph.model(), feeds))
    assert all(op.integer for op in octavo.explain(executable).counted)


def test_where():
    graph = Graph(4, np.uint8, np.int8)
    condition = graph.constant(graph.rng.integers(0, 2, (4, 6)).astype(bool))
    graph.op("QLinearWhere", [condition, *graph.input(4, 6), *graph.input(4, 6), *graph.result_params(5.0)], 2, MS)
    _, difference = compare(graph.model(), graph.feeds())
    assert difference.max() == 0


def test_every_source_tensor_keeps_its_name():
    graph = Graph(5, np.uint8, np.int8)
    conv(pads=[1, 1, 1, 1])(graph)
    model = octavo.load(graph.model())
    weight, bias = graph.nodes[0].input[3], graph.nodes[0].input[8]
    assert {"x0", "y", weight, bias} <= {entry.source_name for entry in model.tensors.values()}
    assert sorted(model.params) == sorted([weight, bias])
    assert model.params[weight].dtype == np.int8
    assert model.params[bias].dtype == np.int32
    assert model.tensors["y"].op == "QLinearConv"
    assert [binding.var.name for binding in model.module["main"].body.blocks[0].bindings][-1] == "y"


def test_symbolic_batch_with_a_shape_computing_tail(shared):
    model = octavo.load(shared / "models/onnx/mobilenet_v2_1.0_224_qoperator.onnx")
    explained = octavo.explain(model)
    assert explained.summary == "65/65 ops integer, 100.0% of MACs"
    names = {binding.var.name for block in model.module["main"].body.blocks for binding in block.bindings}
    assert {"input_quantized", "t472_quantized", "output_MatMul_quantized", "output"} <= names


def test_a_missing_scale_is_named():
    graph = Graph(6, np.uint8, np.int8)
    x = graph.input(1, 4)
    graph.op("QLinearSigmoid", [*x, "", ""], 2, MS)
    with pytest.raises(UnsupportedOpError, match=r"op com.microsoft.QLinearSigmoid .*y_scale \(input 3\) is missing"):
        octavo.load(graph.model())


OF_FLOAT_OPS = {
    "softmax": ("Softmax", [], {"axis": -1}, (0.0037, 3)),
    "average beyond the padding": (
        "AveragePool",
        [],
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4, "ceil_mode": 1, "count_include_pad": 1},
        (0.0213, 117),
    ),
    "average that ends with the padding": (
        "AveragePool",
        [],
        {"kernel_shape": [2, 2], "strides": [1, 1], "ceil_mode": 1, "count_include_pad": 1},
        (0.0213, 117),
    ),
    "resize": ("Resize", ["", "", np.array([1, 3, 13, 18])], {"mode": "linear"}, (0.0213, 117)),
    "pad": ("Pad", [np.array([0, 0, 1, 1, 0, 0, 0, 2]), "value"], {}, (0.0213, 117)),
}
AS_FUSED = ("average that ends with the padding",)
"""Whose ties fall as in the QLinear op that ONNX Runtime makes of them: float sums put every fifth of them elsewhere."""


@pytest.mark.parametrize("name", OF_FLOAT_OPS)
def test_a_float_op_between_q_and_dq_gives_what_it_gives_alone(name, rng, tmp_path):
    op, operands, attrs, result = OF_FLOAT_OPS[name]
    parameters = {"s": 0.0213, "so": result[0], "z": 117, "zo": result[1]}
    constants = {key: np.asarray(each, np.float32 if key[0] == "s" else np.uint8) for key, each in parameters.items()}
    constants |= {f"c{place}": each for place, each in enumerate(operands) if isinstance(each, np.ndarray)}
    nodes = [make_node("DequantizeLinear", ["x", "s", "z"], ["real"])]
    if op == "Pad":
        constants["v"] = np.uint8(140)
        nodes.append(make_node("DequantizeLinear", ["v", "s", "z"], ["value"]))
    read = [f"c{place}" if isinstance(each, np.ndarray) else each for place, each in enumerate(operands)]
    nodes += [make_node(op, ["real", *read], ["made"], **attrs), make_node("QuantizeLinear", ["made", "so", "zo"], ["y"])]
    integers = onnx.TensorProto.UINT8
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [onnx.helper.make_tensor_value_info("x", integers, (1, 3, 8, 9))],
        [onnx.helper.make_tensor_value_info("y", integers, None)],
        [onnx.numpy_helper.from_array(np.asarray(each), key) for key, each in constants.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    feed = {"x": rng.integers(0, 256, (1, 3, 8, 9)).astype(np.uint8)}
    onnx.save(model, tmp_path / "m.onnx")
    [got] = octavo.compile(octavo.load(tmp_path / "m.onnx"))(feed).values()
    np.testing.assert_array_equal(got, reference_session(model, optimized=name in AS_FUSED).run(None, feed)[0])


BLOCKS = {
    "scales of integers by channel": """
        ws = DequantizeLinear <axis = 0> (steps, channels)
        wd = DequantizeLinear <axis = 1, block_size = 16> (wq, ws)""",
    "quantized from float": """
        wi = QuantizeLinear <axis = 1, block_size = 16, output_dtype = 22> (w, scales)
        wd = DequantizeLinear <axis = 1, block_size = 16> (wi, scales)""",
}
"""As AIMET writes weights of 4 bits in blocks: with QuantizeLinear, or with scales that are themselves dequantized."""


@pytest.mark.parametrize("form", BLOCKS)
def test_blocks_whose_parameters_are_computed_of_constants(form, rng):
    graph = onnx.parser.parse_graph(
        f"""g (float[2, 64] x) => (float[2, 24] y) {{ q = QuantizeLinear (x, s, z) a = DequantizeLinear (q, s, z) {BLOCKS[form]}
        c = Gemm <transB = 1> (a, wd) yq = QuantizeLinear (c, so, z) y = DequantizeLinear (yq, so, z) }}"""
    )
    constants = {
        "s": np.float32(0.03),
        "so": np.float32(0.3),
        "z": np.uint8(120),
        "w": rng.normal(size=(24, 64)).astype(np.float32),
    }
    constants |= {
        "steps": rng.integers(1, 16, (24, 4)).astype(np.uint8),
        "channels": rng.uniform(0.01, 0.02, 24).astype(np.float32),
    }
    constants["scales"] = rng.uniform(0.3, 0.4, (24, 4)).astype(np.float32)
    read = {name for node in graph.node for name in node.input}
    graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items() if name in read)
    if "wq" in read:
        graph.initializer.append(onnx.helper.make_tensor("wq", onnx.TensorProto.INT4, (24, 64), rng.integers(-8, 8, 24 * 64)))
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    feed = {"x": rng.normal(size=(2, 64)).astype(np.float32)}
    loaded = octavo.load(model)
    assert "100.0% of MACs" in str(octavo.explain(loaded))
    [got] = octavo.compile(loaded)(feed).values()
    np.testing.assert_array_equal(got, reference_session(model, optimized=False).run(None, feed)[0])


RESIZED = [("uint8", (13, 18), "half_pixel"), ("int8", (5, 31), "asymmetric"), ("int8", (16, 27), "align_corners")]
"""To whole multiples and other sizes: many means are whole numbers but for the last bit of a float sum."""


@pytest.mark.parametrize(("dtype", "size", "transform"), RESIZED)
def test_integers_are_resized_as_onnx_runtime_does(dtype, size, transform, rng):
    """By a Resize that reads integers, as its quantizer writes one among QLinear ops."""
    graph = onnx.parser.parse_graph(
        f"""g ({dtype}[2, 3, 8, 9] x) => ({dtype}[2, 3, {size[0]}, {size[1]}] y) <int64[4] t = {{2, 3, {size[0]}, {size[1]}}}>
        {{ y = Resize <mode = "linear", coordinate_transformation_mode = "{transform}"> (x, , , t) }}"""
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    limits = np.iinfo(dtype)
    feed = {"x": rng.integers(limits.min, limits.max + 1, (2, 3, 8, 9)).astype(dtype)}
    executable = octavo.compile(octavo.load(model))
    [got] = executable(feed).values()
    np.testing.assert_array_equal(got, reference_session(model, optimized=False).run(None, feed)[0])


def test_padding_with_a_constant_that_is_dequantized():
    """As ONNX Runtime's quantizer writes what a Pad puts around integers."""
    constants = {"s": np.float32(0.03), "z": np.uint8(120), "v": np.uint8(150), "p": np.int64([0, 0, 1, 1, 0, 0, 1, 0])}
    nodes = [
        onnx.helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        onnx.helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        onnx.helper.make_node("DequantizeLinear", ["v", "s", "z"], ["vd"]),
        onnx.helper.make_node("Pad", ["xd", "p", "vd"], ["padded"]),
        onnx.helper.make_node("QuantizeLinear", ["padded", "s", "z"], ["yq"]),
        onnx.helper.make_node("DequantizeLinear", ["yq", "s", "z"], ["y"]),
    ]
    values = [
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)]
        for name, shape in (("x", (1, 2, 5, 5)), ("y", None))
    ]
    tensors = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = onnx.helper.make_graph(nodes, "padding", *values, tensors)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    x = np.random.default_rng(0).normal(size=(1, 2, 5, 5)).astype(np.float32)
    executable = octavo.compile(octavo.load(model))
    np.testing.assert_array_equal(executable(x)["y"], run_ort(model, {"x": x}))
    assert all(op.integer for op in octavo.explain(executable).ops)


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_random_networks_that_onnx_runtime_quantized(shared, monkeypatch, first):
    monkeypatch.setenv("OCTAVO_SHARED", str(shared))
    for seed in range(first, first + 20):
        drawn = random_file(seed, ops=4)
        if drawn is not None:
            proto, feeds = drawn
            assert faults(proto, feeds[:1], with_results=False) == [], f"seed {seed}"
