"""What `export_onnx` writes is the model that was quantized: the same bytes once loaded, and a step at most in ONNX Runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import octavo
from apply_steps import with_steps
from exported import compared
from octavo.errors import ModelError
from octavo.export.onnx.onnx_export import onnx_model
from octavo.export.onnx.onnx_graph import OnnxGraph
from octavo.ir.identity import TensorId
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.quantizer.choices import Choices
from octavo.quantizer.plan import QuantizedModel
from octavo.quantizer.quantize_graph import quantize_graph
from octavo.quantizer.referee.referee import score_of
from octavo.quantizer.steps.equalize import Equalize
from random_networks import random_network
from reference_sessions import reference_session

SHAPE = (1, 6, 8, 8)


def network(nodes: list[Any], constants: dict[str, Any], outputs: dict[str, tuple[int, ...]]) -> Any:
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def split(rng: np.random.Generator) -> Any:
    """A part of what a Split reads goes into a product, the other is an output and stays float."""
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("Split", ["a", "sizes"], ["kept", "read"], axis=3),
        helper.make_node("MatMul", ["read", "w"], ["y"]),
    ]
    constants = {"sizes": np.array([5, 3]), "w": rng.standard_normal((3, 4)).astype(np.float32)}
    return network(nodes, constants, {"kept": (1, 6, 8, 5), "y": (1, 6, 8, 4)})


def functions(rng: np.random.Generator) -> Any:
    """Functions of one tensor that become one table, the first in steps, behind a convolution and beside it."""
    nodes = [
        helper.make_node("HardSigmoid", ["x"], ["gate"]),
        helper.make_node("LeakyRelu", ["gate"], ["leaky"]),
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Floor", ["c"], ["floor"]),
        helper.make_node("Relu", ["floor"], ["y"]),
    ]
    constants = {"w": rng.standard_normal((6, 6, 1, 1)).astype(np.float32)}
    return network(nodes, constants, {"leaky": SHAPE, "y": SHAPE})


def resized(rng: np.random.Generator) -> Any:
    """Means of pixels between convolutions, by Resize and by AveragePool, and a sum."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Resize", ["c", "", "", "sizes"], ["r"], mode="linear"),
        helper.make_node("AveragePool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Add", ["p", "c"], ["s"]),
        helper.make_node("Softmax", ["s"], ["t"], axis=-1),
        helper.make_node("Conv", ["t", "v"], ["y"]),
    ]
    constants = {f"{name}": rng.standard_normal((6, 6, 1, 1)).astype(np.float32) for name in "wv"}
    return network(nodes, constants | {"sizes": np.array([1, 6, 16, 16])}, {"y": SHAPE})


def resized_to_itself(rng: np.random.Generator) -> Any:
    """A convolution whose result a Resize leaves as it is: the module knows one tensor for both."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Resize", ["c", "", "", "sizes"], ["r"], mode="nearest"),
        helper.make_node("Min", ["c", "most"], ["y"]),
    ]
    constants = {"w": rng.standard_normal((6, 6, 1, 1)).astype(np.float32), "most": np.float32(1), "sizes": np.array(SHAPE)}
    return network(nodes, constants, {"y": SHAPE, "r": SHAPE})


def chosen(rng: np.random.Generator) -> Any:
    """Choices between two convolutions by what is fed and by a constant; places; a product by a constant on the left."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Conv", ["x", "v"], ["d"]),
        helper.make_node("Greater", ["x", "zero"], ["fed"]),
        helper.make_node("Where", ["fed", "c", "d"], ["m"]),
        helper.make_node("Where", ["held", "m", "c"], ["n"]),
        helper.make_node("ArgMax", ["n"], ["places"], axis=1),
        helper.make_node("Cast", ["places"], ["p"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["left", "n"], ["y"]),
    ]
    weights = {"w": (6, 6, 1, 1), "v": (6, 6, 1, 1), "left": (5, 8)}
    constants = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in weights.items()}
    held = rng.random((1, 6, 1, 8)) < 0.5
    return network(nodes, constants | {"zero": np.float32(0), "held": held}, {"p": (1, 1, 8, 8), "y": (1, 6, 5, 8)})


def embedded(rng: np.random.Generator) -> Any:
    """Rows of two tables, joined with what a convolution makes, into a product; rows of a third that float ops read, too."""
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("Cast", ["a"], ["i"], to=TensorProto.INT64),
        helper.make_node("Gather", ["first", "i"], ["e"]),
        helper.make_node("Gather", ["second", "i"], ["f"]),
        helper.make_node("Gather", ["third", "i"], ["g"]),
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Unsqueeze", ["c", "axes"], ["d"]),
        helper.make_node("Concat", ["e", "f", "d"], ["j"], axis=4),
        helper.make_node("MatMul", ["j", "v"], ["y"]),
        helper.make_node("MatMul", ["g", "u"], ["z"]),
    ]
    shapes = {"first": (8, 5), "second": (8, 3), "third": (8, 4), "w": (6, 6, 1, 1), "v": (9, 4), "u": (4, 2)}
    constants = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    outputs = {"y": (*SHAPE, 4), "z": (*SHAPE, 2), "g": (*SHAPE, 4)}
    return network(nodes, constants | {"axes": np.array([4])}, outputs)


def tied(rng: np.random.Generator) -> Any:
    """An embedding, a projection onto it, a float and an integer product by the same matrix: GPT-2's and more."""
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("Cast", ["a"], ["i"], to=TensorProto.INT64),
        helper.make_node("Gather", ["w", "i"], ["e"]),
        helper.make_node("LayerNormalization", ["e", "g"], ["n"], axis=-1),
        helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["n", "t"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "w"], ["excluded_y"]),
        helper.make_node("MatMul", ["excluded_y", "t"], ["excluded_z"]),
    ]
    constants = {"w": rng.standard_normal((8, 16)).astype(np.float32), "g": rng.random(16).astype(np.float32)}
    return network(nodes, constants, {"logits": (*SHAPE, 8), "excluded_y": (*SHAPE, 16), "excluded_z": (*SHAPE, 8), "t": (16, 8)})


def shared_weight(rng: np.random.Generator) -> Any:
    """A kernel of an integer and a float convolution that is a result, too."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "w"], ["excluded_c"]),
        helper.make_node("Conv", ["excluded_c", "w"], ["y"]),
    ]
    constants = {"w": rng.standard_normal((6, 6, 1, 1)).astype(np.float32)}
    return network(nodes, constants, {"y": SHAPE, "w": (6, 6, 1, 1)})


def volumes(rng: np.random.Generator) -> Any:
    """A Resize of volumes between convolutions, whose first step is a product in integers, and no node of the file."""
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axes"], ["u"]),
        helper.make_node("Conv", ["u", "w"], ["c"], pads=[1] * 6),
        helper.make_node("Resize", ["c", "", "", "sizes"], ["r"], mode="linear"),
        helper.make_node("Conv", ["r", "v"], ["y"]),
    ]
    constants = {name: rng.standard_normal((3, count, 3, 3, 3)).astype(np.float32) for name, count in (("w", 1), ("v", 3))}
    return network(nodes, constants | {"axes": np.array([1]), "sizes": np.array([1, 3, 9, 12, 16])}, {"y": (1, 3, 7, 10, 14)})


def waves(rng: np.random.Generator) -> Any:
    """Rows resized by a product, and a discrete Fourier transform by two, that stand behind other products of the file."""
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["u"]),
        helper.make_node("Conv", ["u", "w"], ["c"], pads=[1, 1]),
        helper.make_node("Resize", ["c", "", "", "sizes"], ["r"], mode="linear"),
        helper.make_node("Conv", ["r", "v"], ["d"]),
        helper.make_node("Unsqueeze", ["d", "axes"], ["e"]),
        helper.make_node("DFT", ["e"], ["f"], axis=2),
        helper.make_node("ReduceSum", ["f", "axes"], ["s"], keepdims=0),
        helper.make_node("MatMul", ["s", "m"], ["y"]),
    ]
    shapes = {"w": (4, 6, 3), "v": (4, 4, 3), "m": (21, 5)}
    constants: dict[str, Any] = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    constants |= {"shape": np.array([1, 6, 64]), "sizes": np.array([1, 4, 23]), "axes": np.array([3])}
    return network(nodes, constants, {"y": (1, 4, 5)})


def frames(rng: np.random.Generator) -> Any:
    """A Fourier transform of frames: they are gathered first, and multiplied by constants that no node of the file has."""
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["u"]),
        helper.make_node("MatMul", ["u", "w"], ["c"]),
        helper.make_node("STFT", ["c", "step", "", "length"], ["y"]),
    ]
    constants = {"shape": np.array([6, 64]), "w": rng.standard_normal((64, 24)).astype(np.float32)}
    constants |= {"step": np.array(5), "length": np.array(8)}
    return network(nodes, constants, {"y": (6, 4, 5, 2)})


def returned_rows(rng: np.random.Generator) -> Any:
    """Rows that are results, of convolutions whose images others read."""
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["u"]),
        helper.make_node("Conv", ["u", "w", "b"], ["c"], pads=[1, 1]),
        helper.make_node("LeakyRelu", ["c"], ["r"]),
        helper.make_node("ConvTranspose", ["r", "v"], ["t"], strides=[2]),
        helper.make_node("Conv", ["t", "v"], ["y"]),
        helper.make_node("MatMul", ["c", "m"], ["z"]),
    ]
    shapes = {"w": (6, 6, 3), "b": (6,), "v": (6, 6, 3), "m": (64, 5)}
    constants: dict[str, Any] = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    outputs = {"c": (1, 6, 64), "t": (1, 6, 129), "y": (1, 6, 127), "z": (1, 6, 5)}
    return network(nodes, constants | {"shape": np.array([1, 6, 64])}, outputs)


def greatest(rng: np.random.Generator) -> Any:
    """The greatest values of a convolution's rows, and where they are, before another convolution."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("TopK", ["c", "k"], ["t", "places"], axis=-1),
        helper.make_node("Cast", ["places"], ["p"], to=TensorProto.FLOAT),
        helper.make_node("Conv", ["t", "w"], ["y"]),
    ]
    constants = {"w": rng.standard_normal((6, 6, 1, 1)).astype(np.float32), "k": np.array([3])}
    return network(nodes, constants, {"p": (1, 6, 8, 3), "y": (1, 6, 8, 3)})


def bounded(rng: np.random.Generator) -> Any:
    """Functions that differ by rows, and by channels in other ways than slopes and factors, behind convolutions."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Max", ["c", "most"], ["m"]),
        helper.make_node("Conv", ["m", "v"], ["d"]),
        helper.make_node("Relu", ["d"], ["e"]),
        helper.make_node("Mul", ["e", "rows"], ["f"]),
        helper.make_node("Conv", ["f", "v"], ["y"]),
    ]
    weights = {"w": (6, 6, 1, 1), "v": (6, 6, 1, 1), "most": (1, 6, 1, 1), "rows": (8, 1)}
    return network(nodes, {name: rng.standard_normal(shape).astype(np.float32) for name, shape in weights.items()}, {"y": SHAPE})


def quantized(proto: Any, rng: np.random.Generator) -> tuple[Any, list[dict[str, np.ndarray]]]:
    feeds = [{"x": rng.standard_normal(SHAPE).astype(np.float32)} for _ in range(12)]
    model = octavo.load(proto)
    return quantize_graph(model, octavo.profile(model, feeds[:8])), feeds[8:]


def test_a_node_stands_behind_what_it_reads() -> None:
    """A node that an edit lets read a later one's result, the nodes of another name of its own input say."""
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Abs", ["x"], ["b"]), helper.make_node("Neg", ["b"], ["c"])]
    proto = network(nodes, {}, dict.fromkeys("ac", SHAPE))
    graph = OnnxGraph(proto)
    graph.set_input(graph.nodes[0], 0, "c")
    graph.finish()
    assert [node.output[0] for node in proto.graph.node] == ["b", "c", "a"]
    onnx.checker.check_model(proto)


@pytest.mark.parametrize(
    "make",
    [split, functions, resized, resized_to_itself, chosen, embedded, volumes, waves, frames, returned_rows, greatest, bounded],
)
def test_a_network_comes_back_as_it_ran(make: Any, rng: np.random.Generator) -> None:
    model, feeds = quantized(make(rng), rng)
    found = compared(model, feeds)
    assert not found.reload_db, found.said
    # A sum's ties are decided by float32 there, and what reads the sum makes more of a step.
    assert make is resized or not found.runtime_steps, found.said


@pytest.mark.parametrize(("make", "weight"), [(tied, "t"), (shared_weight, "w")])
def test_float_ops_read_weights_that_integer_ones_share_as_they_are(make: Any, weight: str, rng: np.random.Generator) -> None:
    """In the module, in its file and in what the referee runs."""
    feeds = [{"x": rng.standard_normal(SHAPE).astype(np.float32)} for _ in range(12)]
    model = octavo.load(make(rng))
    names = [str(name) for name in model.tensors if str(name).startswith("excluded")]
    profile = octavo.profile(model, feeds[:8], keep_samples=8)
    quantized = quantize_graph(model, profile, recipe=octavo.Recipe(exclude=names))
    assert weight in quantized.plan.weights
    assert {weight, f"{weight}_q"} <= quantized.params.keys()
    assert {op.tensor for op in quantized.plan.float_ops} >= {*names}
    found = compared(quantized, feeds[8:])
    assert found.is_same, found.said
    floats, ours = ([run(feed) for feed in feeds[:8]] for run in map(octavo.compile, (model, quantized)))
    own = min(
        sqnr_db(*(np.concatenate([np.ravel(run[name]) for run in runs]) for runs in (floats, ours)))
        for name in quantized.output_names
        if name.startswith(("logits", "excluded", "y"))
    )
    score = score_of(model, quantized, profile)
    assert score is not None
    assert score.sqnr_db == pytest.approx(own, abs=0.05)


def equalized_as_written(proto: Any, rng: np.random.Generator) -> QuantizedModel:
    """Return a network whose channels equalization evened out, after its file was found to be what runs."""
    feeds = [{"x": rng.standard_normal(SHAPE).astype(np.float32)} for _ in range(20)]
    model = octavo.load(proto)
    made = with_steps(model, octavo.profile(model, feeds[:16], keep_samples=16), [Equalize(strength=0.5)])
    found = compared(made, feeds[16:])
    assert found.is_same, found.said
    return made


@pytest.mark.parametrize("reduction", ["add", "mul"])
def test_constants_of_steps_that_equalization_divides_are_written(reduction: str, rng: np.random.Generator) -> None:
    """A ScatterND between products, whose values are spread over all of what they are added to, and divided there."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("ScatterND", ["a", "places", "values"], ["s"], reduction=reduction),
        helper.make_node("MatMul", ["s", "v"], ["y"]),
    ]
    constants: dict[str, Any] = {name: rng.standard_normal((8, 8)).astype(np.float32) for name in ("w", "v")}
    constants["w"] *= np.geomspace(1, 1e-3, 8).astype(np.float32)
    constants["v"] *= np.geomspace(1, 1e3, 8).astype(np.float32)[:, None]
    constants |= {"places": np.array([[0, 1, 2, 3], [0, 0, 0, 6]]), "values": np.array([0.3, 1e-3], np.float32)}
    proto = network(nodes, constants, {"y": SHAPE})
    proto.opset_import[0].version = 18
    made = equalized_as_written(proto, rng)
    assert any(name not in made.tensors for name in made.plan.equalization.factors), "a step's result is divided"


def test_constants_that_shapes_give_and_steps_that_move_may_be_divided(rng: np.random.Generator) -> None:
    """As exporters write the scale of attention, by the root of a Shape; and one row taken by a number, as of a class token."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Shape", ["a"], ["shape"]),
        helper.make_node("Gather", ["shape", "last"], ["size"]),
        helper.make_node("Cast", ["size"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Sqrt", ["real"], ["root"]),
        helper.make_node("Mul", ["a", "root"], ["m"]),
        helper.make_node("Gather", ["m", "last"], ["row"], axis=2),
        helper.make_node("MatMul", ["row", "v"], ["y"]),
    ]
    constants: dict[str, Any] = {name: rng.standard_normal((8, 8)).astype(np.float32) for name in ("w", "v")}
    constants["v"] *= np.geomspace(1, 1e3, 8).astype(np.float32)[:, None]
    proto = network(nodes, constants | {"last": np.array(-1)}, {"y": (1, 6, 8)})
    made = equalized_as_written(proto, rng)
    assert any(name not in made.tensors for name in made.plan.equalization.factors), "a step's result is divided"


def test_norms_that_share_a_weight_are_divided_each_by_its_own_factors(rng: np.random.Generator) -> None:
    """As exporters write equal weights once: of a network that was not trained, those of all norms."""
    nodes = [
        helper.make_node("LayerNormalization", ["x", "ones", "zeros"], ["n"]),
        helper.make_node("MatMul", ["n", "w"], ["a"]),
        helper.make_node("LayerNormalization", ["a", "ones", "zeros"], ["m"]),
        helper.make_node("MatMul", ["m", "v"], ["y"]),
    ]
    constants: dict[str, Any] = {name: rng.standard_normal((8, 8)).astype(np.float32) for name in ("w", "v")}
    constants["w"] *= np.geomspace(1, 1e2, 8).astype(np.float32)[:, None]
    constants["v"] *= np.geomspace(1e2, 1, 8).astype(np.float32)[:, None]
    proto = network(nodes, constants | {"ones": np.ones(8, np.float32), "zeros": np.zeros(8, np.float32)}, {"y": SHAPE})
    made = equalized_as_written(proto, rng)
    assert {*made.plan.equalization.factors} == {"n", "m"}


def test_a_result_may_be_an_initializer(rng: np.random.Generator) -> None:
    constants = {"w": rng.standard_normal((6, 6, 1, 1)).astype(np.float32)}
    proto = network([helper.make_node("Conv", ["x", "w"], ["y"])], constants, {"y": SHAPE, "w": (6, 6, 1, 1)})
    feeds = [{"x": rng.standard_normal(SHAPE).astype(np.float32)} for _ in range(5)]
    model = octavo.load(proto)
    found = compared(octavo.quantize(model, octavo.profile(model, feeds[:4])), feeds[4:])
    assert found.is_same, found.said


def recurrent(rng: np.random.Generator, kind: str, direction: str, steps: int | str) -> Any:
    """A recurrent op between two products, all of whose results are outputs."""
    gates, ways = {"LSTM": 4, "GRU": 3}[kind], 2 if direction == "bidirectional" else 1
    results = ["all", "hidden", "cell"][: 3 if kind == "LSTM" else 2]
    nodes = [
        helper.make_node("MatMul", ["x", "p"], ["a"]),
        helper.make_node(kind, ["a", "w", "r", "b"], results, hidden_size=5, direction=direction),
        helper.make_node("ReduceMax", ["all"], ["m"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["m", "v"], ["y"]),
    ]
    shapes = {"p": (7, 6), "w": (ways, gates * 5, 6), "r": (ways, gates * 5, 5), "b": (ways, gates * 10), "v": (5, 4)}
    constants = {name: rng.standard_normal(shape).astype(np.float32) * 0.5 for name, shape in shapes.items()}
    proto = network(nodes, constants, {"y": (steps, 2, 4)} | dict.fromkeys(results[1:], (ways, 2, 5)))
    proto.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, (steps, 2, 7)))
    return proto


@pytest.mark.parametrize(
    ("kind", "direction", "steps"), [("LSTM", "forward", 3), ("GRU", "bidirectional", 2), ("LSTM", "reverse", "T")]
)
def test_recurrent_ops_are_written_as_they_ran(rng: np.random.Generator, kind: str, direction: str, steps: int | str) -> None:
    feeds = [{"x": rng.standard_normal((3 if steps == "T" else steps, 2, 7)).astype(np.float32)} for _ in range(6)]
    model = octavo.load(recurrent(rng, kind, direction, steps))
    profile = octavo.profile(model, feeds[:4])
    for each in (quantize_graph(model, profile), octavo.quantize(model, profile)):
        found = compared(each, feeds[4:])
        assert found.is_same, found.said
        assert any(node.op_type == kind for node in onnx_model(each).graph.node)


@pytest.mark.parametrize("first", range(0, 40, 8))
def test_random_networks_come_back_as_they_ran(shared: Path, monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    monkeypatch.setenv("OCTAVO_SHARED", str(shared))
    for seed in range(first, first + 8):
        drawn, rng = random_network(seed, ops=4), np.random.default_rng(seed)
        if drawn is None or not drawn[1]:
            continue
        proto, shapes = drawn
        feeds = [{name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()} for _ in range(5)]
        if all(np.isfinite(each).all() for each in reference_session(proto).run(None, feeds[0])):
            model = octavo.load(proto)
            found = compared(quantize_graph(model, octavo.profile(model, feeds[:4])), feeds[4:])
            assert not found.reload_db, f"seed {seed}: {found.said}"


def test_roundings_that_files_do_not_mean_are_in_their_metadata(rng: np.random.Generator, tmp_path: Path) -> None:
    proto = onnx_model(quantized(resized(rng), rng)[0])
    [entry] = proto.metadata_props
    assert json.loads(entry.value) == {"p_quantized": "half_even", "s_quantized": "half_even"}
    for text, said in (("{", "is no JSON"), ('["p"]', "must map"), ('{"p": "up"}', "says 'up' of 'p'")):
        entry.value = text
        onnx.save(proto, tmp_path / "m.onnx")
        with pytest.raises(ModelError, match=said):
            octavo.load(tmp_path / "m.onnx")


def test_choices_places_and_products_by_a_constant_on_the_left_are_integer(rng: np.random.Generator) -> None:
    found = {op.tensor: (op.integer, op.kernel) for op in octavo.explain(quantized(chosen(rng), rng)[0]).ops}
    kernels = {"m": "select", "n": "select", "places": "reduce_argmax", "y": "batch_matmul"}
    assert all(found[name][0] and found[name][1].startswith(kernel) for name, kernel in kernels.items())


def test_functions_that_no_kernel_of_a_product_has_are_tables(rng: np.random.Generator) -> None:
    ops = octavo.explain(quantized(bounded(rng), rng)[0]).ops
    assert all(op.integer for op in ops), [op.reason for op in ops]
    assert {"pair_lookup", "affine_rows"} < {op.kernel for op in ops}


def test_products_of_rows_come_back_over_open_sizes(rng: np.random.Generator) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Transpose", ["a"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["a", "t"], ["y"]),
    ]
    proto = network(nodes, {"w": rng.standard_normal((16, 12)).astype(np.float32)}, {"y": ("N", "S", "S")})
    proto.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, ("N", "S", 16)))
    model = octavo.load(proto)
    feeds = [{"x": rng.standard_normal((count, 5, 16)).astype(np.float32)} for count in (1, 1, 2)]
    changes = Choices(per_row={TensorId(name): "it is tried" for name in "ay"})
    quantized = quantize_graph(model, octavo.profile(model, feeds[:2]), changes=changes)
    assert all(layer.per_row for layer in quantized.plan.layers)
    found = compared(quantized, feeds)
    assert found.is_same, found.said


def test_tables_of_which_integer_ops_alone_read_rows_are_integer(rng: np.random.Generator) -> None:
    plan = quantized(embedded(rng), rng)[0].plan
    assert {"first", "second"} <= plan.weights.keys()
    assert "third" not in plan.weights
    [reason] = [op.reason for op in plan.float_ops if op.op == "take"]
    assert reason == "not only integer ops read its rows, which 8 bits would make coarser for the others"


def test_greatest_values_of_integers_are_integers(rng: np.random.Generator) -> None:
    plan = quantized(greatest(rng), rng)[0].plan
    assert [layer.op for layer in plan.layers] == ["nn.conv2d", "topk", "nn.conv2d"]
    assert plan.activations[TensorId("c")] == plan.activations[TensorId("t")]
