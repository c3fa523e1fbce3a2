"""ONNX nodes at the edges of what numbers hold: division by 0, shifts and powers of integers, infinities, indices out of range.

Each case is one model of several nodes of a kind. What is expected is NumPy's, or is written out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import octavo

Array = np.ndarray
Nodes = Sequence[tuple[str, str, Mapping[str, Any]]]
"""Op, its inputs in one string ("-" for an absent one), attributes."""


def model_of(nodes: Nodes, fed: Mapping[str, Array], constants: Mapping[str, Array], opset: int = 21) -> onnx.ModelProto:
    made = [
        helper.make_node(op, [name.strip("-") for name in inputs.split()], attrs.get("to_names", [f"y{at}"]), **_own(attrs))
        for at, (op, inputs, attrs) in enumerate(nodes)
    ]
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in fed.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for node in made for name in node.output]
    inits = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(made, "edges", infos, outputs, inits)
    plain = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return onnx.shape_inference.infer_shapes(plain)


def _own(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attrs.items() if name != "to_names"}


def results(nodes: Nodes, fed: Mapping[str, Array], opset: int = 21, **constants: Array) -> list[Array]:
    executable = octavo.compile(octavo.load(model_of(nodes, fed, constants, opset)))
    return list(executable(dict(fed)).values())


def compare(got: Sequence[Array], wanted: Sequence[Array]) -> None:
    assert len(got) == len(wanted)
    for have, want in zip(got, wanted, strict=True):
        assert have.dtype == want.dtype
        np.testing.assert_array_equal(have, want)


def test_booleans_are_compared():
    a, b, yes = np.array([True, False, True, False]), np.array([True, True, False, False]), np.array(True)
    nodes = [("Equal", "a b", {}), ("Equal", "a yes", {}), ("Equal", "yes no", {}), ("Not", "y0", {}), ("Xor", "a b", {})]
    wanted = [a == b, a, np.array(False), a != b, a ^ b]
    compare(results(nodes, {"a": a, "b": b}, yes=yes, no=~yes), wanted)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint32"])
def test_integers_are_divided_by_nothing_that_ends_the_process(dtype):
    is_signed = dtype.startswith("int")
    least = np.iinfo(dtype).min
    a = np.array([7, least, 100, 9, least], dtype)
    b = np.array([0, -1 if is_signed else 3, 7, 0, 3], dtype)
    got = results(
        [("Div", "a b", {}), ("Mod", "a b", {}), ("Mod", "a b", {"fmod": 1}), ("Mod", "a c", {})], {"a": a, "b": b}, c=b
    )
    pairs = [(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    quotient = [0 if not y else abs(x) // abs(y) * (1 if x * y >= 0 else -1) for x, y in pairs]
    truncated = [x - y * q if y else 0 for (x, y), q in zip(pairs, quotient, strict=True)]
    rest = np.array([x % y if y else 0 for x, y in pairs], dtype)
    wrapped = np.array([least if q > np.iinfo(dtype).max else q for q in quotient], dtype)
    compare(got, [wrapped, rest, np.array(truncated, dtype), rest])


def test_casts_to_narrow_integers_keep_the_lowest_bits():
    x = np.array([-9, -8, 7, 8, 15, 16, 300], np.float32)
    types = [TensorProto.INT4, TensorProto.UINT4]
    got = results(
        [("Cast", "x", {"to": to}) for to in types] + [("Cast", "i", {"to": types[0]})], {"x": x, "i": x.astype(np.int64)}
    )
    bits = x.astype(np.int64) & 15
    signed = np.where(bits > 7, bits - 16, bits).astype(np.int8)
    compare(got, [signed, bits.astype(np.uint8), signed])


@pytest.mark.parametrize("dtype", ["uint8", "uint32", "uint64", "int8", "int32"])
def test_shifts_by_the_width_and_beyond(dtype):
    x = np.array([1, 77, np.iinfo(dtype).max, np.iinfo(dtype).min, 3], dtype)
    width = np.iinfo(dtype).bits
    n = np.array([0, 1, width - 1, width, 127 if dtype == "int8" else width + 1], dtype)
    got = results([("BitShift", "x n", {"direction": way}) for way in ("LEFT", "RIGHT")], {"x": x, "n": n})
    compare(got, [np.left_shift(x, n), np.right_shift(x, n)])


def test_powers_of_integers():
    x, n = np.array([2, 3, -3, 1, -1, 0, 5], np.int64), np.array([62, 0, 3, -2, -3, 5, -1], np.int64)
    fed = {"x": x, "n": n, "f": x.astype(np.float32)}
    nodes: Nodes = [
        ("Pow", "x n", {}),
        ("Pow", "x five", {}),
        ("Pow", "x none", {}),
        ("Pow", "x two", {}),
        ("Pow", "f three", {}),
    ]
    constants = {"five": np.int64(5), "none": np.int64(0), "two": np.float32(2), "three": np.int64(3)}
    got = results(nodes, fed, **{name: np.asarray(value) for name, value in constants.items()})
    wanted = np.array([2**62, 1, -27, 1, -1, 0, 0], np.int64)
    compare(got, [wanted, x**5, np.ones_like(x), x * x, (x**3).astype(np.float32)])


@pytest.mark.parametrize("dtype", ["int64", "int32", "float32"])
def test_one_hot(dtype):
    x = np.array([[0, -1, 3], [-4, 4, -5]], dtype)
    nodes: Nodes = [
        ("OneHot", "x depth values", {}),
        ("OneHot", "x depth whole", {"axis": 0}),
        ("OneHot", "x depth pair", {"axis": 1}),
    ]
    got = results(
        nodes,
        {"x": x, "pair": np.array([2, 7], np.int32)},
        depth=np.array([4], np.float32),
        values=np.array([0.5, 1], np.float32),
        whole=np.array([0, 1], np.int64),
    )
    place = np.where(x < 0, x + 4, x)
    last = place[..., None] == np.arange(4)
    wanted = [np.where(last, np.float32(1), np.float32(0.5)), np.moveaxis(last, -1, 0).astype(np.int64)]
    compare(got, [*wanted, np.where(np.moveaxis(last, -1, 1), 7, 2).astype(np.int32)])


def test_elements_are_gathered_from_within_the_tensor():
    """Indices out of range are undefined in ONNX; memory beside the tensor must not be read."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    i = np.array([[-1, 0, 2**40, 1], [-(2**40), 3, 2, -4]], np.int64)
    got = results([("GatherElements", "x i", {"axis": 1}), ("GatherND", "x j", {})], {"x": x, "i": i, "j": i[:, :2]})
    assert got[0].tolist() == [[3, 0, 3, 1], [4, 7, 6, 4]]
    assert got[1].tolist() == [8, 3]


def test_types_in_which_nothing_is_computed_are_refused():
    model = model_of([("Cast", "x", {"to": TensorProto.FLOAT8E4M3FN})], {"x": np.ones(2, np.float32)}, {})
    with pytest.raises(octavo.OctavoError, match=r"op Cast \(output tensor 'y0'\): its tensor 'y0' is of float8_e4m3fn"):
        octavo.load(model)


def test_extremes_of_infinities():
    """Infinities arise within a model: what is fed is finite."""
    signs = np.array([[1, -1, 0], [-1, -1, -1], [1, 1, 1]], np.float32)
    ops = ("ReduceMax", "ReduceMin", "ReduceLogSumExp")
    nodes: Nodes = [
        ("Mul", "x most", {"to_names": ["large"]}),
        ("Mul", "large most", {"to_names": ["inf"]}),
        *((op, "inf axis", {"keepdims": 0}) for op in ops),
        *((op, "inf", {"axis": 1, "keepdims": 0, "select_last_index": last}) for op in ("ArgMax", "ArgMin") for last in (0, 1)),
        ("MaxPool", "image", {"kernel_shape": [2], "to_names": ["pooled"]}),
        ("Unsqueeze", "inf zero", {"to_names": ["image"]}),
    ]
    nodes = [*nodes[:-2], nodes[-1], nodes[-2]]
    got = results(nodes, {"x": signs}, most=np.float32(3e38), axis=np.array([1]), zero=np.array([0]))
    inf = got[1]
    assert inf.tolist() == [[np.inf, -np.inf, 0], [-np.inf] * 3, [np.inf] * 3]
    wanted = [inf.max(1), inf.min(1), inf.max(1)]
    places = [inf.argmax(1), np.array([0, 2, 2]), inf.argmin(1), np.array([1, 2, 2])]
    compare(got[2:9], [*wanted, *places])
    assert got[-1][0].tolist() == [[np.inf, 0], [-np.inf] * 2, [np.inf] * 2]


@pytest.mark.parametrize("dtype", ["uint64", "uint32", "int16"])
def test_the_greatest_and_least_of_integers(dtype):
    x = np.array([[3, np.iinfo(dtype).max, 1, np.iinfo(dtype).min, 7]], dtype)
    nodes: Nodes = [("TopK", "x three", {"largest": way, "to_names": [f"v{way}", f"i{way}"]}) for way in (1, 0)]
    got = results(nodes, {"x": x}, three=np.array([3]))
    down, up = np.argsort(-x.astype(object), 1)[:, :3], np.argsort(x, 1)[:, :3]
    compare(got, [np.take_along_axis(x, down, 1), down.astype(np.int64), np.take_along_axis(x, up, 1), up.astype(np.int64)])


def test_normalizations_of_a_batch_and_of_the_first_axis(rng):
    x, gamma = rng.normal(size=(2, 3, 4)).astype(np.float32), rng.normal(size=(2, 3, 4)).astype(np.float32)
    channel = {name: rng.uniform(0.5, 1, 3).astype(np.float32) for name in ("g", "b", "m", "v")}
    trained = {"training_mode": 1, "to_names": ["y", "mean", "variance"]}
    nodes: Nodes = [("RMSNormalization", "x gamma", {"axis": 0}), ("BatchNormalization", "x g b m v", trained)]
    got = results(nodes, {"x": x}, opset=23, gamma=gamma, **channel)
    mean, variance = x.mean((0, 2)), x.var((0, 2))
    wide = {name: each[:, None] for name, each in {**channel, "mean": mean, "variance": variance}.items()}
    normal = (x - wide["mean"]) / np.sqrt(wide["variance"] + 1e-5) * wide["g"] + wide["b"]
    wanted = [x / np.sqrt((x * x).mean() + 1e-5) * gamma, normal]
    wanted += [channel["m"] * 0.9 + mean * 0.1, channel["v"] * 0.9 + variance * 0.1]
    for have, want in zip(got, wanted, strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_known", [True, False])
def test_updates_are_reduced_at_their_places(is_known):
    x, u = np.arange(12, dtype=np.float32).reshape(3, 4) - 5, np.arange(8, dtype=np.float32).reshape(2, 4)
    i = {"i": np.array([[0, 2, 0, 1], [0, -1, 0, 2]]), "j": np.array([[2], [-1]])}
    kinds = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
    nodes: Nodes = [
        (op, "x i u" if "El" in op else "x j u", {"reduction": kind}) for op in ("ScatterElements", "ScatterND") for kind in kinds
    ]
    got = results(nodes, {"x": x, "u": u, **({} if is_known else i)}, **(i if is_known else {}))
    wanted = [x.copy() for _ in nodes]
    for want, kind in zip(wanted[:4], kinds.values(), strict=True):
        kind.at(want, (i["i"], np.broadcast_to(np.arange(4), (2, 4))), u)
    for want, kind in zip(wanted[4:], kinds.values(), strict=True):
        kind.at(want, i["j"][:, 0], u)
    compare(got, wanted)


def test_ops_of_old_operator_sets():
    x, slope, u = -np.ones((2, 3, 4), np.float32), np.array([1, 2, 3], np.float32), np.array([[9, 8]], np.float32)
    compare(results([("PRelu", "x s", {})], {"x": x}, opset=6, s=slope), [x * slope[:, None]])
    got = results([("Scatter", "x i u", {"axis": 1})], {"x": x[0], "i": np.array([[3, 0]]), "u": u}, opset=9)
    compare(got, [np.array([[8, -1, -1, 9], [-1] * 4, [-1] * 4], np.float32)])


@pytest.mark.parametrize(
    ("op", "fed"),
    [
        ("Slice", {"x": np.ones((4, 5), np.float32), "a": np.array([1]), "b": np.array([3])}),
        ("ConstantOfShape", {"a": np.array([2, 3])}),
        ("Reshape", {"x": np.ones((4, 5), np.float32), "a": np.array([2, 10])}),
        ("Tile", {"x": np.ones((4, 5), np.float32), "a": np.array([2, 1])}),
        # LLVM's loop vectorizer writes half of this wrong where it is let
        ("Tile", {"x": np.arange(60, dtype=np.float32).reshape(3, 4, 5), "a": np.array([6, 4, 1])}),
    ],
)
def test_shapes_that_depend_on_what_is_fed(op, fed):
    model = model_of([(op, " ".join(fed), {})], fed, {})
    got = octavo.compile(octavo.load(model))(fed)
    compare(list(got.values()), ReferenceEvaluator(model).run(None, fed))


def test_inputs_without_elements_are_known():
    """An empty list of axes, and a tensor that gives its type alone; what else depends on them is computed at import."""
    x, empty = np.arange(6, dtype=np.float32).reshape(2, 3), {"axes": np.zeros(0, np.int64), "like": np.zeros((2, 0), np.int32)}
    nodes: Nodes = [
        ("ReduceSum", "x axes", {"keepdims": 0}),
        ("CastLike", "x like", {}),
        ("ReduceProd", "like one", {"keepdims": 0}),
    ]
    model = model_of(
        [*nodes, ("Concat", "i like", {"axis": 1})], {"x": x, "i": x.astype(np.int32), **empty}, {"one": np.array([1])}
    )
    fed = {"x": x, "i": x.astype(np.int32), **empty}
    executable = octavo.compile(octavo.load(model, shapes={name: array.shape for name, array in fed.items()}))
    compare(list(executable(fed).values()), [x.sum(), x.astype(np.int32), np.ones(2, np.int32), x.astype(np.int32)])


def test_ops_that_onnx_defines_by_others_that_it_defines(rng):
    x, labels = rng.normal(size=(3, 4)).astype(np.float32), np.array([1, 0, 3])
    got = results([("SoftmaxCrossEntropyLoss", "x labels", {}), ("Swish", "x", {})], {"x": x, "labels": labels}, opset=24)
    logs = x - np.log(np.exp(x).sum(1, keepdims=True))
    np.testing.assert_allclose(got[0], -logs[np.arange(3), labels].mean(), rtol=1e-5)
    np.testing.assert_allclose(got[1], x / (1 + np.exp(-x)), rtol=1e-5)


def test_ops_that_onnx_defines_by_others_read_constants(rng):
    """Definitions of older operator sets than the model's among them, which are brought to it."""
    x, known = rng.normal(size=(3, 4)).astype(np.float32), {"labels": np.array([1, 0, 3]), "size": np.array(5)}
    model = model_of([("SoftmaxCrossEntropyLoss", "x labels", {}), ("HannWindow", "size", {})], {"x": x}, known, opset=23)
    got = octavo.compile(octavo.load(model))(x)
    for have, want in zip(got.values(), ReferenceEvaluator(model).run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)


def test_a_declared_past_of_no_length():
    """A size of 0 is meant where the graph only extends the input; anywhere else it may stand for any size, and is refused."""
    x, w = np.arange(6, dtype=np.float32).reshape(1, 3, 2), np.arange(8, dtype=np.float32).reshape(2, 4)
    past = np.zeros((1, 0, 2), np.float32)
    model = model_of([("Concat", "past x", {"axis": 1}), ("MatMul", "y0 w", {})], {"past": past, "x": x}, {"w": w})
    compare(
        octavo.compile(octavo.load(model))({"past": past, "x": x}).values(),
        ReferenceEvaluator(model).run(None, {"past": past, "x": x}),
    )
    with pytest.raises(octavo.OctavoError, match=r"input 'past' .* has no elements"):
        octavo.load(model_of([("Relu", "past", {})], {"past": past}, {}))


def test_products_diagonals_and_masks():
    """CumProd in all its directions, EyeLike of a type of its own, the mask of a Dropout that drops nothing."""
    x, axis = np.array([[2, -1, 3], [0.5, 4, 1]], np.float32), {"axis": np.array(1)}
    nodes: Nodes = [("CumProd", "x axis", {"reverse": r, "exclusive": e}) for r in (0, 1) for e in (0, 1)]
    nodes.append(("EyeLike", "x", {"k": 1, "dtype": int(onnx.TensorProto.INT32)}))
    model = model_of(nodes, {"x": x}, axis, opset=26)
    compare(octavo.compile(octavo.load(model))({"x": x}).values(), ReferenceEvaluator(model).run(None, {"x": x}))
    node = onnx.helper.make_node("Dropout", ["x"], ["y", "mask"])
    values = [onnx.helper.make_tensor_value_info(name, kind, x.shape) for name, kind in (("x", 1), ("y", 1), ("mask", 9))]
    graph = onnx.helper.make_graph([node], "dropout", values[:1], values[1:])
    opsets = [onnx.helper.make_opsetid("", 13)]
    got = octavo.compile(octavo.load(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)))(x)
    compare(got.values(), [x, np.ones(x.shape, bool)])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_means_of_integers_are_of_their_type(dtype):
    x = np.array([[-1, -2, -3], [1, -2, 0]], dtype)
    all_, rows = results([("ReduceMean", "x", {"keepdims": 0}), ("ReduceMean", "x axis", {})], {"x": x}, axis=np.array([1]))
    compare([all_, rows], [np.array(-1, dtype), np.array([[-2], [0]], dtype)])


@pytest.mark.parametrize("axis", [2**62, -(2**63), 2**31, 4, -4])
@pytest.mark.parametrize("op", ["Softmax", "Concat", "LayerNormalization", "ReduceSum"])
def test_axes_that_no_tensor_has(op, axis):
    """Nor are they taken for what 32 bits leave of them, nor counted around."""
    inputs = {"Concat": "x x", "LayerNormalization": "x g", "ReduceSum": "x a"}.get(op, "x")
    graph = model_of([("Neg", "x", {})], {"x": np.ones((2, 3), np.float32)}, {"g": np.ones(3, np.float32), "a": np.array([axis])})
    attrs = {} if op == "ReduceSum" else {"axis": axis}
    graph.graph.node[0].CopyFrom(helper.make_node(op, inputs.split(), ["y0"], **attrs))
    with pytest.raises(octavo.OctavoError, match="axis"):
        octavo.load(graph)
