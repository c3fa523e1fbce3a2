"""Recurrent layers over any number of steps: equal to ONNX Runtime's, and to the byte to those of the steps written out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from tvm import relax

import octavo
from octavo.errors import UnsupportedOpError
from octavo.ir.graph import Model
from open_recognizer import GATES, draw, recognizer
from plain_code import plain_code
from reference_sessions import reference_session

FEATURES, HIDDEN = 5, 19
FLOAT = onnx.TensorProto.FLOAT
CASES: dict[str, dict[str, object]] = {
    "LSTM": {},
    "LSTM backwards": {"direction": "reverse", "states": True},
    "LSTM both ways": {"direction": "bidirectional", "states": True, "bias": True, "peepholes": True, "clip": 0.6},
    "GRU": {"states": True},
    "GRU both ways": {"direction": "bidirectional", "bias": True, "clip": 0.6, "states": True},
    "GRU that resets products": {"direction": "bidirectional", "bias": True, "linear_before_reset": 1},
    "RNN": {"direction": "bidirectional", "bias": True, "activations": ["Tanh", "Relu"]},
}


def recurrent(rng: np.random.Generator, case: str, outputs: list[str]) -> onnx.ModelProto:
    attributes = dict(CASES[case])
    op, count = case.split(" ")[0], 2 if attributes.get("direction") == "bidirectional" else 1
    shapes = {"w": (count, GATES[op] * HIDDEN, FEATURES), "r": (count, GATES[op] * HIDDEN, HIDDEN)}
    kept = {"states": ["h", "c"][: 1 + (op == "LSTM")]}
    names = ["x", "w", "r", "", ""]
    if attributes.pop("bias", False):
        shapes["b"], names[3] = (count, 2 * GATES[op] * HIDDEN), "b"
    states = kept["states"] if attributes.pop("states", False) else []
    if states:
        names += states
    if attributes.pop("peepholes", False):
        shapes["p"] = (count, 3 * HIDDEN)
        names.append("p")
    weights = {name: (rng.normal(size=shape) / 2).astype(np.float32) for name, shape in shapes.items()}
    inputs = {"x": ("steps", "batch", FEATURES), **dict.fromkeys(states, (count, "batch", HIDDEN))}
    graph = make_graph(
        [make_node(op, names, outputs, hidden_size=HIDDEN, **attributes)],
        "recurrent",
        [make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [make_tensor_value_info(name, FLOAT, None) for name in outputs if name],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8)


def inputs_of(rng: np.random.Generator, proto: onnx.ModelProto, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    shapes = {
        each.name: [dim.dim_value or sizes[dim.dim_param] for dim in each.type.tensor_type.shape.dim]
        for each in proto.graph.input
    }
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def loaded(proto: onnx.ModelProto, tmp_path: Path, **options: object) -> Model:
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    return octavo.load(path, **options)


@pytest.mark.parametrize("case", CASES)
def test_any_steps_equal_those_written_out(case: str, rng: np.random.Generator, tmp_path: Path) -> None:
    proto = recurrent(rng, case, ["all", "last", "cell"] if case.startswith("LSTM") else ["all", "last"])
    model = loaded(proto, tmp_path)
    any_steps, session = octavo.compile(model, threads=2), reference_session(proto)
    for steps, batch in ((1, 1), (2, 3), (3, 7)):
        inputs = inputs_of(rng, proto, {"steps": steps, "batch": batch})
        results = list(any_steps(inputs).values())
        for result, expected in zip(results, session.run(None, inputs), strict=True):
            assert result.shape == expected.shape
            np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
        with plain_code():
            written_out = octavo.compile(loaded(proto, tmp_path, sizes={"steps": steps, "batch": batch}))
        for result, expected in zip(results, written_out(inputs).values(), strict=True):
            assert result.tobytes() == expected.tobytes()


@pytest.mark.parametrize("outputs", [["all"], ["", "last"], ["", "", "cell"]])
def test_what_is_not_read_is_not_there(outputs: list[str], rng: np.random.Generator, tmp_path: Path) -> None:
    proto = recurrent(rng, "LSTM both ways", outputs)
    inputs = inputs_of(rng, proto, {"steps": 6, "batch": 2})
    [result] = octavo.compile(loaded(proto, tmp_path))(inputs).values()
    [expected] = reference_session(proto).run(None, inputs)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_very_many_steps_are_one_op(rng: np.random.Generator, tmp_path: Path) -> None:
    proto = recurrent(rng, "GRU", ["all"])
    inputs = inputs_of(rng, proto, {"steps": 1500, "batch": 1})
    compiled = octavo.compile(loaded(proto, tmp_path, sizes={"steps": 1500, "batch": 1}))
    assert "float.gru" in [op.kernel for op in octavo.explain(compiled).ops]
    [expected] = reference_session(proto).run(None, inputs)
    np.testing.assert_allclose(*compiled(inputs).values(), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_constant_states_before_the_first_step(rng: np.random.Generator, tmp_path: Path) -> None:
    proto = recurrent(rng, "LSTM backwards", ["all", "last", "cell"])
    held = [each for each in proto.graph.input if each.name in ("h", "c")]
    for each in held:
        proto.graph.input.remove(each)
        values = rng.normal(size=(1, 2, HIDDEN)).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, each.name))
    inputs = inputs_of(rng, proto, {"steps": 4, "batch": 2})
    results = octavo.compile(loaded(proto, tmp_path))(inputs)
    for result, expected in zip(results.values(), reference_session(proto).run(None, inputs), strict=True):
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("kind", GATES)
def test_a_recognizer_of_any_width(kind: str, rng: np.random.Generator, tmp_path: Path) -> None:
    """Profiled and quantized with images of many widths; its recurrent products are integer, and those of a file the same."""
    proto = recognizer(kind)
    model = loaded(proto, tmp_path)
    samples = [draw(rng, int(rng.integers(1, 4)), int(rng.integers(4, 60))) for _ in range(8)]
    with plain_code():
        quantized = octavo.quantize(model, octavo.profile(model, samples), preset="fast")
    compiled, session = octavo.compile(quantized), reference_session(proto)
    integer = {op.op for op in octavo.explain(compiled).ops if op.integer}
    assert {"conv2d", "matmul", "recurrence"} <= integer
    octavo.export_onnx(quantized, tmp_path / "int8.onnx")
    again, of_file = octavo.compile(octavo.load(tmp_path / "int8.onnx")), reference_session(onnx.load(tmp_path / "int8.onnx"))
    for batch, width in ((1, 4), (2, 29), (3, 16)):
        inputs = draw(rng, batch, width)
        [result], [expected] = compiled(inputs).values(), session.run(None, inputs)
        error = np.mean((result - expected) ** 2) / np.mean(expected**2)
        assert error < 10**-2.5
        assert [each.tobytes() for each in again(inputs).values()] == [result.tobytes()]
        [other] = of_file.run(None, inputs)
        assert np.mean((result - other) ** 2) < 10**-3.5 * np.mean(other**2)
        module = relax.transform.BindSymbolicVars({"batch": batch, "width": width})(quantized.module)
        with plain_code():
            alone = octavo.compile(replace(quantized, module=module, sizes={}))
        [own] = alone(inputs).values()
        assert result.tobytes() == own.tobytes()


def test_lengths_and_computed_weights_are_refused(rng: np.random.Generator, tmp_path: Path) -> None:
    proto = recurrent(rng, "GRU", ["all"])
    with_lengths = onnx.ModelProto.FromString(proto.SerializeToString())
    with_lengths.graph.input.append(make_tensor_value_info("lengths", onnx.TensorProto.INT32, ("batch",)))
    with_lengths.graph.node[0].input[4] = "lengths"
    with pytest.raises(UnsupportedOpError, match="sequence_lens over open steps is not supported; pad and mask"):
        loaded(with_lengths, tmp_path)
    weights = proto.graph.initializer[1]
    proto.graph.input.append(make_tensor_value_info("r", FLOAT, tuple(weights.dims)))
    proto.graph.initializer.remove(weights)
    with pytest.raises(UnsupportedOpError, match="its weights are computed; over open steps they must be constant; fix steps"):
        loaded(proto, tmp_path)
