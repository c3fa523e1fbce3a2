"""A float model call by call: the values of its tensors, and of those of models that differ in constants alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from tvm import relax

import octavo
from nets import model_of, residual_net
from octavo.compiler import float_program, replaceable_constants
from octavo.compiler.float_program import FloatProgram
from octavo.compiler.replaceable_constants import Deferred, _Walk
from octavo.compiler.target_choice import resolve_target
from octavo.ir.graph import Model
from octavo.ir.graph import model as model_module
from octavo.ir.graph.dataflow import BodyWriter
from octavo.ir.graph.results import with_results
from tvm_alone import tvm_alone

NAMES = ("r1", "c2", "s", "m", "y")
HERE = resolve_target(None)


def draws(count: int) -> list[list[np.ndarray]]:
    rng = np.random.default_rng(0)
    return [[rng.normal(size=(1, 3, 8, 8)).astype(np.float32)] for _ in range(count)]


def all_of(program: FloatProgram, samples: list[Any], names: tuple[str, ...] = NAMES) -> list[np.ndarray]:
    return [value for results, values in program.on(samples, names) for value in (*results, *values)]


def test_values_have_the_layout_of_the_model() -> None:
    model, samples = residual_net(), draws(2)
    plain = tvm_alone(with_results(model.bound(), NAMES, keep=True))
    for (results, found), (x,) in zip(FloatProgram(model, NAMES, HERE).on(samples, NAMES), samples, strict=True):
        for got, expected in zip([*results, *found], plain(x), strict=True):
            assert got.shape == expected.shape
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_other_constants_compile_nothing_and_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, samples = residual_net(), draws(2)
    other = replace(model, params={name: value * 1.5 for name, value in model.params.items()})
    expected = all_of(FloatProgram(other, NAMES, HERE), samples)
    base = FloatProgram(model, NAMES, HERE, {*model.params})
    before = all_of(base, samples)
    monkeypatch.setattr(float_program, "partition_module", None)
    found = base.of(other, NAMES)
    assert found is not None
    for got, wanted in zip(all_of(found, samples), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)
    for got, wanted in zip(all_of(base, samples), before, strict=True):  # it stays as it is
        np.testing.assert_array_equal(got, wanted)


def test_what_else_is_different_is_none_of_it() -> None:
    model = residual_net()
    base = FloatProgram(model, NAMES[:2], HERE, [*model.params][:1])
    first, *_, last = model.params
    assert base.of(replace(model, params={**model.params, first: model.params[first] + 1}), NAMES[:2]) is not None
    assert base.of(replace(model, params={**model.params, last: model.params[last] + 1}), NAMES[:2]) is None, "may be no other"
    assert base.of(model, NAMES) is None, "a name has no variable"
    assert base.of(shared(1), ()) is None, "another model"


def shared(own: int) -> Model:
    """Return a model whose sums read one vector, but for some at the end, which have vectors of their own."""
    vectors = {f"b{number}": np.full(4, number, np.float32) for number in range(own + 1)}

    def body(writer: BodyWriter, **v: Any) -> Any:
        value = v["x"]
        for number in range(3):
            value = writer.emit(f"t{number}", relax.op.nn.relu(value))
            read = v[f"b{max(0, number - 2 + own)}"]
            value = writer.emit(f"s{number}", relax.op.add(value, read), is_output=number == 2)
        return value

    return model_of({"x": ((2, 4), "float32")}, vectors, body, ("s2",))


@pytest.mark.parametrize("own", [0, 1, 2])
def test_vectors_that_were_shared_may_be_several(own: int) -> None:
    names, samples = ("s0", "s1", "s2"), [[np.float32([[1, -2, 3, -4], [0, 1, 0, 2]])]]
    base, other = FloatProgram(shared(0), names, HERE, {*shared(0).params}), shared(own)
    found = base.of(other, names)
    assert found is not None
    for got, wanted in zip(all_of(found, samples, names), all_of(FloatProgram(other, names, HERE), samples, names), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("axes", [False, True])
@pytest.mark.parametrize("name", ["r1", "y"])
def test_gains_multiply_what_is_read_behind(name: str, *, axes: bool) -> None:
    model, samples = residual_net(), draws(1)
    base = FloatProgram(model, NAMES, HERE, {*model.params})
    channels = all_of(base, samples, (name,))[-1].shape
    gain = np.linspace(0.5, 2, channels[1], dtype=np.float32).reshape([-1 if axis == 1 else 1 for axis in range(len(channels))])
    gain = gain if axes else np.float32(0.5).reshape(())
    found = base.of(model, (name,), {name: gain})
    assert found is not None
    np.testing.assert_allclose(all_of(found, samples, (name,))[-1], all_of(base, samples, (name,))[-1] * gain, rtol=1e-6)
    if name == "r1":
        assert not np.allclose(all_of(found, samples, ("c2",))[-1], all_of(base, samples, ("c2",))[-1])


@pytest.mark.parametrize(("size", "is_walk"), [(40, False), (64, True)])
def test_layers_of_one_shape_share_where_their_numbers_lie(size: int, is_walk: bool) -> None:
    rng = np.random.default_rng(0)
    nodes = [onnx.helper.make_node("MatMul", ["x", "a"], ["h"]), onnx.helper.make_node("MatMul", ["h", "b"], ["y"])]
    tensors = [onnx.numpy_helper.from_array(rng.normal(size=(size, size)).astype(np.float32), name) for name in "ab"]
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3, size]) for name in "xy"]
    graph = onnx.helper.make_graph(nodes, "chain", values[:1], values[1:], tensors)
    model = octavo.load(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8))
    base = FloatProgram(model, ["h", "y"], HERE, {*model.params})
    first, second = (each for constants in base._constants for each in constants if each.names)
    assert isinstance(first.places, _Walk) is is_walk, "rows of 40 are padded"
    assert first.places == second.places if is_walk else first.places is second.places
    x = rng.normal(size=(3, size)).astype(np.float32)
    for name in model.params:
        other = replace(model, params={**model.params, name: model.params[name] * 2})
        found = base.of(other, ["h", "y"])
        assert found is not None
        for got, wanted in zip(
            all_of(found, [[x]], ("h", "y")), all_of(FloatProgram(other, ["h", "y"], HERE), [[x]], ("h", "y")), strict=True
        ):
            np.testing.assert_array_equal(got, wanted)


def test_large_tables_are_made_for_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_module, "_LARGE", 1)
    monkeypatch.setattr(replaceable_constants, "SHARED_BYTES", 1)
    rng = np.random.default_rng(0)
    nodes = [onnx.helper.make_node("Gather", ["table", "x"], ["h"]), onnx.helper.make_node("MatMul", ["h", "a"], ["y"])]
    shapes = {"table": (50, 16), "a": (16, 16)}
    tensors = [onnx.numpy_helper.from_array(rng.normal(size=size).astype(np.float32), name) for name, size in shapes.items()]
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.INT64, [3])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3, 16])
    graph = onnx.helper.make_graph(nodes, "table", [x], [y], tensors)
    model = octavo.load(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8))
    other = replace(model, params={name: value * 2 for name, value in model.params.items()})
    found = FloatProgram(model, ["h", "y"], HERE, {*model.params}).of(other, ["h", "y"])
    assert found is not None
    deferred = [each.shape for call in found.calls for each in call.operands if isinstance(each, Deferred)]
    assert shapes["table"] in deferred
    tokens = [[np.array([7, 0, 49])]]
    for got, wanted in zip(
        all_of(found, tokens, ("h", "y")), all_of(FloatProgram(other, ["h", "y"], HERE), tokens, ("h", "y")), strict=True
    ):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
@pytest.mark.parametrize("shape", [(4, 3, 8), (1, 5, 2), (1, 1, 1)])
def test_a_walk_reads_what_lies_there(shape: tuple[int, int, int], axes: tuple[int, int, int]) -> None:
    places = np.arange(np.prod(shape), dtype=np.int32).reshape(shape).transpose(axes)
    values = np.random.default_rng(0).normal(size=places.size).astype(np.float32)
    for each in (places, places[::-1, :, ::-1], np.repeat(places, 2, axis=1)):
        walk = _Walk.of(np.ascontiguousarray(each))
        assert walk is not None
        np.testing.assert_array_equal(walk.read(values).reshape(-1), values[each].reshape(-1))


@pytest.mark.parametrize("places", [[0, 1, 2, 4], [3, 0, 2, 1], [0, 1, -1, 2, 3, -1]])
def test_other_places_are_no_walk(places: list[int]) -> None:
    assert _Walk.of(np.int32(places)) is None
