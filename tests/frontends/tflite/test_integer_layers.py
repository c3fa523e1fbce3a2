"""Recurrent layers in integers give LiteRT's bits, call after call."""

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from tflite import ActivationFunctionType as Activation

import octavo
from octavo.errors import UnsupportedOpError
from tflite_writer import Op, Tensor, write

BATCH, STEPS, WIDTH, UNITS = 2, 2, 5, 8
CALLS = 3
INPUT, STATE = (0.02, -7), (0.011, 5)


class Layer:
    """The tensors of one layer, known by their places."""

    def __init__(self, *shape):
        self.tensors = [Tensor(name="x", shape=shape, dtype="int8", scale=INPUT[:1], zero_point=INPUT[1:])]
        self._rng = np.random.default_rng(shape)

    def tensor(self, name, shape, dtype, scale, zero_point=0, **fields):
        self.tensors.append(Tensor(name=name, shape=shape, dtype=dtype, scale=(scale,), zero_point=(zero_point,), **fields))
        return len(self.tensors) - 1

    def weight(self, *shape, scale=0.01, dtype="int8", bound=127):
        value = self._rng.integers(-bound, bound + 1, shape).astype(dtype)
        return self.tensor(f"w{len(self.tensors)}", shape, dtype, scale, value=value)


def lstm(
    *,
    peepholes=False,
    projected=False,
    normalized=False,
    coupled=False,
    time_major=False,
    alone=False,
    clips=(0.0, 0.0),
    cell=-11,
    hidden=3,
):
    """A layer along a sequence, or a step `alone`, whose writer states no shape of the result."""
    layer = Layer(*((BATCH, WIDTH) if alone else (STEPS, BATCH, WIDTH) if time_major else (BATCH, STEPS, WIDTH)))
    out, own = (6, (0.009, hidden)) if projected else (UNITS, STATE)
    gates = [gate for gate in range(4) if gate or not coupled]
    into, back, bias, norms = ([-1] * 4 for _ in range(4))
    for gate in gates:
        into[gate] = layer.weight(UNITS, WIDTH, scale=0.012 + gate / 1000)
        back[gate] = layer.weight(UNITS, out, scale=0.008 + gate / 1000)
        bias[gate] = layer.weight(UNITS, scale=1e-4, dtype="int32", bound=30_000_000 if normalized else 3000)
        if normalized:
            norms[gate] = layer.weight(UNITS, scale=3e-5, dtype="int16", bound=30_000)
    peep = [
        layer.weight(UNITS, scale=3e-5, dtype="int16", bound=30_000) if peepholes and gate in gates else -1 for gate in (0, 1, 3)
    ]
    projection = [layer.weight(out, UNITS), layer.weight(out, scale=1e-4, dtype="int32", bound=3000)] if projected else [-1, -1]
    states = [layer.tensor("h", (BATCH, out), "int8", *STATE, is_variable=True)]
    states.append(layer.tensor("c", (BATCH, UNITS), "int16", 2.0**cell, is_variable=True))
    inner = [layer.tensor(f"i{gate}", (0,), "int16", 0.0007 + gate / 10_000) for gate in range(4)]
    inner.append(layer.tensor("i4", (0,), "int8", *own))
    y = layer.tensor("y", () if alone else (*layer.tensors[0].shape[:2], out), "int8", *STATE)
    options = {"FusedActivationFunction": Activation.TANH, "CellClip": clips[0], "ProjClip": clips[1]}
    options |= {} if alone else {"TimeMajor": time_major}
    op = Op(
        name="LSTM" if alone else "UNIDIRECTIONAL_SEQUENCE_LSTM",
        inputs=(0, *into, *back, *peep, *bias, *projection, *states, *norms),
        outputs=(y,),
        options_class="LSTMOptions" if alone else "UnidirectionalSequenceLSTMOptions",
        options=options,
        intermediates=tuple(inner),
    )
    return write(layer.tensors, [op], (0,), (y,))


def svdf(*, rank=2, biased=True, zero_point=-128, state="int16"):
    layer, units, memory = Layer(BATCH, WIDTH), 4, 6
    filters = units * rank
    features = layer.weight(filters, WIDTH)
    times = layer.weight(filters, memory, scale=3e-5, dtype=state, bound=30_000 if state == "int16" else 127)
    bias = layer.weight(units, scale=6e-9, dtype="int32", bound=2_000_000) if biased else -1
    states = layer.tensor("s", (BATCH, filters * memory), state, 2e-4, is_variable=True)
    y = layer.tensor("y", (BATCH, units), "int8", 0.05, zero_point)
    options = {"Rank": rank, "FusedActivationFunction": Activation.RELU}
    fields = {"options_class": "SVDFOptions", "options": options}
    return write(layer.tensors, [Op(name="SVDF", inputs=(0, features, times, bias, states), outputs=(y,), **fields)], (0,), (y,))


def short(name):
    """A layer that lacks most of its operands."""
    layer = Layer(BATCH, WIDTH)
    operands = [layer.weight(UNITS, WIDTH) for _ in range(4)]
    y = layer.tensor("y", (BATCH, UNITS), "int8", *STATE)
    return write(layer.tensors, [Op(name=name, inputs=(0, *operands), outputs=(y,))], (0,), (y,))


CASES = {
    "lstm": lstm,
    "lstm, coupled gates, time first, clipped": lambda: lstm(coupled=True, time_major=True, clips=(1.0, 0.0)),
    "lstm, peepholes, projected, clipped": lambda: lstm(peepholes=True, projected=True, clips=(2.0, 0.5)),
    "lstm, projected from an end of the integers": lambda: lstm(projected=True, hidden=-128),
    "lstm, projected, asymmetric": lambda: lstm(projected=True, hidden=90),
    "lstm, normalized": lambda: lstm(normalized=True),
    "lstm, wide cell": lambda: lstm(cell=-9),
    "lstm, a step alone": lambda: lstm(alone=True, normalized=True, projected=True),
    "svdf": svdf,
    "svdf, one filter a unit, no bias": lambda: svdf(rank=1, biased=False, zero_point=-20),
}


@pytest.mark.parametrize("case", CASES)
def test_equals_litert_to_the_bit_call_after_call(case, rng, tmp_path):
    path = tmp_path / "m.tflite"
    path.write_bytes(CASES[case]())
    interpreter = Interpreter(str(path))
    interpreter.allocate_tensors()
    [details], [result] = interpreter.get_input_details(), interpreter.get_output_details()
    executable = octavo.compile(octavo.load(path))
    first, *states = [each.source_name for each in executable.inputs]
    step = executable.session(carry={f"{name}_next": name for name in states})
    for _ in range(CALLS):
        x = rng.integers(-128, 128, details["shape"]).astype(np.int8)
        interpreter.set_tensor(details["index"], x)
        interpreter.invoke()
        found = next(iter(step({first: x}).values()))
        np.testing.assert_array_equal(found, interpreter.get_tensor(result["index"]))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (lambda: svdf(state="int8"), "LiteRT has kernels for int8, int8, int16, int16"),
        (lambda: lstm(cell=-8), "no power of two from"),
        (lambda: short("LSTM"), "a layer in integers of 5 operands"),
        (lambda: short("UNIDIRECTIONAL_SEQUENCE_LSTM"), "a layer in integers of 5 operands"),
    ],
)
def test_layers_that_litert_has_no_kernel_of(written, said, tmp_path):
    path = tmp_path / "m.tflite"
    path.write_bytes(written())
    with pytest.raises(UnsupportedOpError, match=said):
        octavo.load(path)
