"""ONNX ops that are written out as others (recurrent ones, running sums, scattering): compiled, and equal to ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

import octavo
from octavo.errors import UnsupportedOpError
from reference_sessions import reference_session

STEPS, SAMPLES, FEATURES, HIDDEN = 3, 2, 5, 4
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
RNG = np.random.default_rng(12)


def draw(rng, *shape):
    return (rng.normal(size=shape) / 2).astype(np.float32)


def model(nodes, inputs, constants, outputs, opset=18):
    types = {"float32": onnx.TensorProto.FLOAT, "int64": onnx.TensorProto.INT64}
    graph = make_graph(
        nodes,
        "written_out",
        [make_tensor_value_info(name, types[str(value.dtype)], value.shape) for name, value in inputs.items()],
        [make_tensor_value_info(name, types[kind], None) for name, kind in outputs.items()],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return make_model(graph, opset_imports=[make_opsetid("", opset)], ir_version=9)


def recurrent(rng, op, name, *, count=1, everything=False, **attributes):
    """A node over x with its weights; `everything` adds each optional input."""
    gates = GATES[op]
    constants = {
        f"{name}_w": draw(rng, count, gates * HIDDEN, FEATURES),
        f"{name}_r": draw(rng, count, gates * HIDDEN, HIDDEN),
    }
    if everything:
        constants[f"{name}_b"] = draw(rng, count, 2 * gates * HIDDEN)
        constants[f"{name}_lengths"] = np.full(SAMPLES, STEPS, np.int32)
        constants[f"{name}_h"] = draw(rng, count, SAMPLES, HIDDEN)
        if op == "LSTM":
            constants[f"{name}_c"] = draw(rng, count, SAMPLES, HIDDEN)
            constants[f"{name}_p"] = draw(rng, count, 3 * HIDDEN)
    outputs = [f"{name}_all", f"{name}_last"] + ([f"{name}_cell"] if op == "LSTM" else [])
    node = make_node(op, ["x", *constants], outputs, hidden_size=HIDDEN, **attributes)
    return node, constants, dict.fromkeys(outputs, "float32")


def compiled(source, tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(source, path)
    return octavo.compile(octavo.load(path))


def check(results, expected):
    for got, want in zip(results.values(), expected, strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6)


def test_recurrent_ops(rng, tmp_path):
    parts = [
        recurrent(rng, "LSTM", "a"),
        recurrent(rng, "LSTM", "b", count=2, everything=True, direction="bidirectional", clip=0.6),
        recurrent(rng, "GRU", "c", direction="reverse"),
        recurrent(rng, "GRU", "d", everything=True, linear_before_reset=1),
        recurrent(rng, "GRU", "e", count=2, everything=True, direction="bidirectional", activations=["Sigmoid", "Relu"] * 2),
        recurrent(rng, "RNN", "f", everything=True, activations=["Relu"]),
    ]
    inputs = {"x": draw(rng, STEPS, SAMPLES, FEATURES)}
    constants = {name: value for _, own, _ in parts for name, value in own.items()}
    outputs = {name: kind for _, _, own in parts for name, kind in own.items()}
    source = model([node for node, _, _ in parts], inputs, constants, outputs)
    session = reference_session(source)
    check(compiled(source, tmp_path)(inputs), session.run(None, inputs))


def test_samples_first(rng, tmp_path):
    """ONNX Runtime has no such layout: the same op with steps first is what it must give."""
    _, constants, _ = recurrent(rng, "GRU", "a", everything=True)
    x = draw(rng, SAMPLES, STEPS, FEATURES)
    steps_first = model(
        [make_node("GRU", ["x", *constants], ["y", "last"], hidden_size=HIDDEN)],
        {"x": x.transpose(1, 0, 2)},
        constants,
        {"y": "float32", "last": "float32"},
    )
    session = reference_session(steps_first)
    expected = session.run(None, {"x": np.ascontiguousarray(x.transpose(1, 0, 2))})
    constants["a_h"] = np.ascontiguousarray(constants["a_h"].transpose(1, 0, 2))
    node = make_node("GRU", ["x", *constants], ["y", "last"], hidden_size=HIDDEN, layout=1)
    source = model([node], {"x": x}, constants, {"y": "float32", "last": "float32"})
    check(compiled(source, tmp_path)(x), [expected[0].transpose(2, 0, 1, 3), expected[1].transpose(1, 0, 2)])


def test_running_sums_and_scattering(rng, tmp_path):
    inputs = {
        "x": draw(rng, 4, 6),
        "n": rng.integers(0, 9, (4, 6)),
        "pairs": np.int64([[0, 1], [3, -1], [0, 1]]),
        "rows": rng.integers(-4, 4, (2, 6)),
        "few": draw(rng, 3),
        "some": draw(rng, 2, 6),
    }
    constants = {"first": np.int64(0), "last": np.int64(-1), "named": np.int64([[2], [-1]])}
    nodes = [
        make_node("CumSum", ["x", "last"], ["sums"]),
        make_node("CumSum", ["x", "first"], ["back"], exclusive=1, reverse=1),
        make_node("CumSum", ["n", "last"], ["whole"], exclusive=1),
        make_node("ScatterND", ["x", "named", "some"], ["put"]),
        make_node("ScatterND", ["x", "pairs", "few"], ["put_at_run_time"]),
        make_node("ScatterElements", ["x", "rows", "some"], ["each"], axis=0),
        make_node("Celu", ["x"], ["celu"], alpha=1.7),
    ]
    outputs = {node.output[0]: "int64" if node.output[0] == "whole" else "float32" for node in nodes}
    source = model(nodes, inputs, constants, outputs)
    session = reference_session(source)
    results = compiled(source, tmp_path)(inputs)
    expected = dict(zip(outputs, session.run(None, inputs), strict=True))
    # Where indices name a place twice any update may win; here the last one does.
    each = results.pop("each")
    check(results, [value for name, value in expected.items() if name != "each"])
    want = inputs["x"].copy()
    for row, column in np.ndindex(2, 6):
        want[inputs["rows"][row, column], column] = inputs["some"][row, column]
    np.testing.assert_array_equal(each, want)


REFUSED = {
    "lengths": (recurrent(RNG, "LSTM", "a", everything=True), {"a_lengths": np.int32([3, 2])}, "sequence_lens"),
    "activation": (recurrent(RNG, "RNN", "a", activations=["Softsign"]), {}, "activation 'Softsign'"),
    "places": ((make_node("NonZero", ["x"], ["y"]), {}, {"y": "int64"}), {}, "depends on values"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why(rng, name, tmp_path):
    (node, constants, outputs), changed, said = REFUSED[name]
    path = tmp_path / "m.onnx"
    onnx.save(model([node], {"x": draw(rng, STEPS, SAMPLES, FEATURES)}, constants | changed, outputs), path)
    with pytest.raises(UnsupportedOpError, match=said):
        octavo.load(path)
