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
