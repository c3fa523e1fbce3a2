"""Recurrent layers of TFLite as their steps: LSTM and RNN along a sequence, and SVDF. Formulas are those of LiteRT's kernels.

What a layer remembers is read before its first step and written behind its last. In float, and with weights of 8 bits; a layer
in integers stays one op, which `integer_layers.py` converts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import tflite

from ..frontend import RejectedOpError
from .flat_graph import FlatGraph
from .flatbuffer import Table

_INPUT, _FORGET, _CELL, _OUTPUT = range(4)
_SEQUENCE_RANK = 3
_DIRECTIONS = ("forwards", "backwards")
_MIN_VARIANCE = 1e-8
_IN_INTEGERS = {"LSTM": (18, 19), "SVDF": (4,), "UNIDIRECTIONAL_SEQUENCE_LSTM": (18, 19)}
"""Layers that have a form in integers, and which of their operands are their states."""
_FULLY_CONNECTED = "FullyConnectedOptions"


class States:
    """What reads and writes a variable tensor; subclasses say how."""

    def read(self, index: int) -> int:
        """Return the tensor that a variable is now."""
        raise NotImplementedError

    def write(self, index: int, value: int) -> None:
        """Let a variable be another tensor from now on."""
        raise NotImplementedError


def expand_layer(name: str, flat: FlatGraph, op: Table, states: States) -> None:
    """Write a layer as plain ops, or one in integers as one op; its operands are tensors of `flat`.

    Raises
    ------
    RejectedOpError
        For a form that is not supported.
    """
    states_of = _IN_INTEGERS.get(name)
    if states_of is not None and flat.dtype(int(op["Inputs"][0])) in ("int8", "int16"):
        _keep(flat, op, states, states_of)
    else:
        _LAYERS[name](flat, op, states)


def _keep(flat: FlatGraph, op: Table, states: States, places: tuple[int, ...]) -> None:
    """Write a layer as it is, its states among its operands and what they are next among its results.

    A state whose zero point is not 0 is real outside: every state starts from zeros.
    """
    if len(op["Inputs"]) <= max(places):
        raise RejectedOpError(f"a layer in integers of {len(op['Inputs'])} operands")
    variables = [int(op["Inputs"][place]) for place in places]
    stored = [_stored(flat, index, states.read(index)) for index in variables]
    op["Inputs"], after = op["Inputs"].copy(), list[int]()
    for place, index in zip(places, stored, strict=True):
        op["Inputs"][place] = index
        result = flat.tensors[index].copied()
        result["Name"], result["IsVariable"] = f"{flat.name(index)}/after_{len(flat.tensors)}".encode(), None
        after.append(flat.add_tensor(result))
    op["Outputs"] = np.asarray([*op["Outputs"], *after], np.int32)
    flat.add_op(op)
    for index, result in zip(variables, after, strict=True):
        is_real = flat.dtype(index) == "float32"
        states.write(index, flat.made("DEQUANTIZE", [result], flat.shape(result)) if is_real else result)


def _stored(flat: FlatGraph, variable: int, value: int) -> int:
    """Return a state's integers; the variable becomes one of real numbers where integers would not start from 0."""
    affine = flat.tensors[variable]["Quantization"]
    if flat.dtype(variable) == "float32" or affine is None or not np.any(affine["ZeroPoint"]):
        return value
    integers = flat.tensors[variable].copied()
    integers["Name"], integers["IsVariable"] = f"{flat.name(variable)}/stored".encode(), None
    flat.tensors[variable]["Type"], flat.tensors[variable]["Quantization"] = tflite.TensorType.FLOAT32, None
    stored = flat.add_tensor(integers)
    flat.op("QUANTIZE", [value], [stored])
    return stored


def _operands(op: Table, count: int) -> list[int]:
    inputs = [int(index) for index in op["Inputs"]]
    return inputs + [-1] * (count - len(inputs))


def _check_float(flat: FlatGraph, *indices: int) -> None:
    for index in indices:
        if flat.dtype(index) != "float32":
            raise RejectedOpError("a layer whose activations are integers")


def _weight(flat: FlatGraph, index: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
    """Return a constant weight, and the scale of each of its rows where it is quantized."""
    value = flat.value(index)
    if value is None:
        raise RejectedOpError(f"a weight {flat.name(index)!r} that is computed")
    affine = flat.tensors[index]["Quantization"]
    scale = None if affine is None else affine["Scale"]
    if value.dtype != np.int8 or scale is None:
        return value.astype(np.float32), None
    return value, np.broadcast_to(np.asarray(scale, np.float32), (value.shape[0],)).copy()


def _real(flat: FlatGraph, index: int) -> npt.NDArray[Any]:
    value, scale = _weight(flat, index)
    return value if scale is None else value.astype(np.float32) * scale.reshape(-1, *[1] * (value.ndim - 1))


def _joined(flat: FlatGraph, name: str, parts: list[int]) -> int:
    """Return weights of several gates as one, their rows behind each other."""
    found = [_weight(flat, index) for index in parts]
    if any(scale is None for _, scale in found):
        return flat.constant(name, np.concatenate([_real(flat, index) for index in parts]))
    scales = [scale for _, scale in found if scale is not None]
    return flat.constant(name, np.concatenate([value for value, _ in found]), np.concatenate(scales))


def _dense(flat: FlatGraph, x: int, weight: int, bias: int = -1, activation: int = 0) -> int:
    shape = [*flat.shape(x)[:-1], flat.shape(weight)[0]]
    options: dict[str, Any] = {"FusedActivationFunction": activation, "KeepNumDims": False}
    return flat.made("FULLY_CONNECTED", [x, weight, bias], shape, _FULLY_CONNECTED, **options)


def _add(flat: FlatGraph, left: int, right: int, activation: int = 0) -> int:
    return flat.made("ADD", [left, right], flat.shape(left), "AddOptions", FusedActivationFunction=activation)


def _mul(flat: FlatGraph, left: int, right: int) -> int:
    return flat.made("MUL", [left, right], flat.shape(left), "MulOptions", FusedActivationFunction=0)


def _activated(flat: FlatGraph, x: int, activation: int) -> int:
    names = {0: "", 1: "RELU", 2: "RELU_N1_TO_1", 3: "RELU6", 4: "TANH"}
    if activation not in names:
        raise RejectedOpError(f"activation {activation}")
    return flat.made(names[activation], [x], flat.shape(x)) if names[activation] else x


def _clipped(flat: FlatGraph, x: int, bound: float) -> int:
    """Return values within [-bound; bound], where there is a bound."""
    if bound <= 0:
        return x
    high, low = (
        flat.constant(f"{name}_{len(flat.tensors)}", np.asarray(value, np.float32))
        for name, value in (("high", bound), ("low", -bound))
    )
    below = flat.made("MINIMUM", [x, high], flat.shape(x), "MaximumMinimumOptions")
    return flat.made("MAXIMUM", [below, low], flat.shape(x), "MaximumMinimumOptions")


def _slice(flat: FlatGraph, x: int, begin: list[int], size: list[int], batch: int = 0) -> int:
    """Return a part; along the axis of the batch all of it, whatever its size."""
    bounds = [begin, [-1 if axis == batch else count for axis, count in enumerate(size)]]
    constants = [flat.constant(f"bounds_{len(flat.tensors)}", np.asarray(each, np.int32)) for each in bounds]
    return flat.made("SLICE", [x, *constants], size, "SliceOptions")


def _reshape(flat: FlatGraph, x: int, shape: list[int], batch: int = 0) -> int:
    wanted = [-1 if axis == batch else size for axis, size in enumerate(shape)]
    target = flat.constant(f"shape_{len(flat.tensors)}", np.asarray(wanted, np.int32))
    return flat.made("RESHAPE", [x, target], shape, "ReshapeOptions")


def _state(flat: FlatGraph, states: States, index: int, x: int, batch: int = 0) -> int:
    """Return what a variable is; its batch is open where that of `x` is."""
    signature = flat.tensors[x]["ShapeSignature"]
    if signature is not None and len(signature) > batch and signature[batch] < 0:
        flat.tensors[index]["ShapeSignature"] = np.asarray([-1, *flat.shape(index)[1:]], np.int32)
    return states.read(index)


def _along(
    flat: FlatGraph, x: int, output: int, step: Callable[[int], int], *, time_major: bool, backwards: bool = False
) -> None:
    """Take each step of a sequence of rows, from its end on where `backwards`, and join what it gives; of one row that alone."""
    rows, axis = flat.shape(x), 0 if time_major else 1
    if len(rows) < _SEQUENCE_RANK:
        result = step(x)
        _state_shape(flat, output, flat.shape(result))
        target = flat.constant(f"shape_{len(flat.tensors)}", np.asarray([-1, flat.shape(result)[1]], np.int32))
        flat.op("RESHAPE", [result, target], [output], "ReshapeOptions")
        return
    steps: list[int] = []
    for place in reversed(range(rows[axis])) if backwards else range(rows[axis]):
        begin, size = [0, 0, 0], list(rows)
        begin[axis], size[axis] = place, 1
        row = _reshape(flat, _slice(flat, x, begin, size, 1 - axis), [rows[1 - axis], rows[2]])
        result = step(row)
        batch, width = flat.shape(result)
        steps.append(_reshape(flat, result, [1, batch, width] if time_major else [batch, 1, width], 1 - axis))
    ordered = steps[::-1] if backwards else steps
    _state_shape(flat, output, [*rows[:2], flat.shape(steps[0])[-1]])
    flat.op("CONCATENATION", ordered, [output], "ConcatenationOptions", Axis=axis, FusedActivationFunction=0)


def _state_shape(flat: FlatGraph, index: int, shape: list[int]) -> None:
    """State the shape of a result where its writer states none."""
    if not flat.shape(index):
        flat.tensors[index]["Shape"] = np.asarray(shape, np.int32)


def _both(flat: FlatGraph, op: Table, widths: list[int]) -> list[int]:
    """Return what the two directions of a layer write: its results, or tensors that are joined to the one that it has."""
    outputs = [int(index) for index in op["Outputs"]]
    if len(outputs) > 1:
        return outputs
    rows = flat.shape(outputs[0])[:-1]
    return [
        flat.tensor(f"{flat.name(outputs[0])}/{name}", [*rows, width]) for name, width in zip(_DIRECTIONS, widths, strict=True)
    ]


def _join(flat: FlatGraph, op: Table, results: list[int]) -> None:
    """Join two directions where a layer has one result."""
    if len(op["Outputs"]) == 1:
        fields: dict[str, Any] = {"Axis": _SEQUENCE_RANK - 1, "FusedActivationFunction": 0}
        flat.op("CONCATENATION", results, [int(op["Outputs"][0])], "ConcatenationOptions", **fields)


def _lstm(flat: FlatGraph, op: Table, states: States) -> None:
    """One direction, or a step alone."""
    options = op["BuiltinOptions"] or Table(kind="")
    if options.number("KernelType"):
        raise RejectedOpError("a basic kernel, of weights side by side")
    _lstm_along(flat, _operands(op, 24), int(op["Outputs"][0]), options, states)


def _two_lstms(flat: FlatGraph, op: Table, states: States) -> None:
    """Two directions, whose results lie side by side or are two."""
    inputs, options = _operands(op, 48), op["BuiltinOptions"] or Table(kind="")
    if any(index >= 0 for index in inputs[39:]):
        raise RejectedOpError("an auxiliary input")
    none = [-1] * 4
    directions = [
        [inputs[0], *inputs[first : first + 17], *inputs[state : state + 2], *none] for first, state in ((1, 35), (18, 37))
    ]
    outputs = _both(flat, op, [flat.shape(each[18])[-1] for each in directions])
    for each, output, backwards in zip(directions, outputs, (False, True), strict=True):
        _lstm_along(flat, each, output, options, states, backwards=backwards)
    _join(flat, op, outputs)


def _lstm_along(
    flat: FlatGraph, inputs: list[int], output: int, options: Table, states: States, *, backwards: bool = False
) -> None:
    """Gates of the input and of the last result, peepholes, norms, clips, a projection (LiteRT, lstm_eval.cc)."""
    x = inputs[0]
    _check_float(flat, x, output)
    if any(index < 0 for first in (2, 6, 13) for index in inputs[first : first + 3]):
        raise RejectedOpError("a layer without weights or biases of its gates")
    gates = [gate for gate in range(4) if inputs[1 + gate] >= 0]  # without an input gate it is 1 - the forget gate
    name = flat.name(output)
    into = _joined(flat, f"{name}/input_weights", [inputs[1 + gate] for gate in gates])
    back = _joined(flat, f"{name}/recurrent_weights", [inputs[5 + gate] for gate in gates])
    biases = [_real(flat, inputs[12 + gate]) for gate in gates]
    norms = {gate: inputs[20 + gate] for gate in gates if inputs[20 + gate] >= 0}
    # A bias is added behind a norm, where there is one.
    bias = -1 if norms else flat.constant(f"{name}/bias", np.concatenate(biases))
    behind = {gate: flat.constant(f"{name}/bias_{gate}", value) for gate, value in zip(gates, biases, strict=True) if norms}
    peep = {gate: inputs[9 + place] for place, gate in enumerate((_INPUT, _FORGET, _OUTPUT)) if inputs[9 + place] >= 0}
    peep = {gate: flat.constant(f"{name}/peephole_{gate}", _real(flat, index)) for gate, index in peep.items()}
    projection = _joined(flat, f"{name}/projection", [inputs[16]]) if inputs[16] >= 0 else -1
    axis, units = int(bool(options.number("TimeMajor"))), flat.shape(inputs[19])[-1]
    state = {key: _state(flat, states, inputs[place], x, axis) for key, place in (("h", 18), ("c", 19))}
    activation = options.number("FusedActivationFunction")
    clips = [float(options[key] or 0) for key in ("CellClip", "ProjClip")]
    one = flat.constant(f"{name}/one", np.asarray(1, np.float32))

    def normed(gate: int, x: int) -> int:
        return _add(flat, _mul(flat, _normalized(flat, x), norms[gate]), behind[gate]) if norms else x

    def step(row: int) -> int:
        sums = _add(flat, _dense(flat, row, into, bias), _dense(flat, state["h"], back))
        batch = flat.shape(sums)[0]
        parts = {gate: _slice(flat, sums, [0, place * units], [batch, units]) for place, gate in enumerate(gates)}

        def gate_of(gate: int, cell: int) -> int:
            summed = normed(gate, _add(flat, parts[gate], _mul(flat, cell, peep[gate])) if gate in peep else parts[gate])
            return flat.made("LOGISTIC", [summed], flat.shape(summed))

        forget = gate_of(_FORGET, state["c"])
        if _INPUT in parts:
            entering = gate_of(_INPUT, state["c"])
        else:
            entering = flat.made("SUB", [one, forget], flat.shape(forget), "SubOptions", FusedActivationFunction=0)
        fresh = _mul(flat, entering, _activated(flat, normed(_CELL, parts[_CELL]), activation))
        state["c"] = _clipped(flat, _add(flat, _mul(flat, forget, state["c"]), fresh), clips[0])
        leaving = gate_of(_OUTPUT, state["c"])
        state["h"] = _mul(flat, leaving, _activated(flat, state["c"], activation))
        if projection >= 0:
            state["h"] = _clipped(flat, _dense(flat, state["h"], projection, inputs[17]), clips[1])
        return state["h"]

    _along(flat, x, output, step, time_major=bool(options.number("TimeMajor")), backwards=backwards)
    states.write(inputs[18], state["h"])
    states.write(inputs[19], state["c"])


def _normalized(flat: FlatGraph, x: int) -> int:
    """Return rows less their mean, over their deviation (LiteRT, MeanStddevNormalization)."""
    shape = flat.shape(x)
    axes = flat.constant(f"axes_{len(flat.tensors)}", np.asarray([1], np.int32))

    def mean(value: int) -> int:
        return flat.made("MEAN", [value, axes], [shape[0], 1], "ReducerOptions", KeepDims=True)

    distance = flat.made("SUB", [x, mean(x)], shape, "SubOptions", FusedActivationFunction=0)
    least = flat.constant(f"least_{len(flat.tensors)}", np.asarray(_MIN_VARIANCE, np.float32))
    variance = _add(flat, mean(_mul(flat, distance, distance)), least)
    return _mul(flat, distance, flat.made("RSQRT", [variance], [shape[0], 1]))


def _rnn(flat: FlatGraph, op: Table, states: States) -> None:
    """One direction, or a step alone."""
    _rnn_along(flat, _operands(op, 5), int(op["Outputs"][0]), op["BuiltinOptions"] or Table(kind=""), states)


def _two_rnns(flat: FlatGraph, op: Table, states: States) -> None:
    """Two directions, whose results lie side by side or are two."""
    inputs, options = _operands(op, 12), op["BuiltinOptions"] or Table(kind="")
    if any(index >= 0 for index in inputs[9:]):
        raise RejectedOpError("an auxiliary input")
    outputs = _both(flat, op, [flat.shape(inputs[place])[-1] for place in (4, 8)])
    for first, output, backwards in zip((1, 5), outputs, (False, True), strict=True):
        _rnn_along(flat, [inputs[0], *inputs[first : first + 4]], output, options, states, backwards=backwards)
    _join(flat, op, outputs)


def _rnn_along(
    flat: FlatGraph, inputs: list[int], output: int, options: Table, states: States, *, backwards: bool = False
) -> None:
    """activation(W x + R h + b)."""
    x, weight, recurrent, bias, hidden = inputs
    _check_float(flat, x, output)
    activation, now = (
        options.number("FusedActivationFunction"),
        {"h": _state(flat, states, hidden, x, int(bool(options.number("TimeMajor"))))},
    )

    def step(row: int) -> int:
        now["h"] = _activated(flat, _add(flat, _dense(flat, row, weight, bias), _dense(flat, now["h"], recurrent)), activation)
        return now["h"]

    _along(flat, x, output, step, time_major=bool(options.number("TimeMajor")), backwards=backwards)
    states.write(hidden, now["h"])


def _svdf(flat: FlatGraph, op: Table, states: States) -> None:
    """Filters over the features of the last steps, as many as it remembers; `rank` of them make a unit (LiteRT, svdf.h)."""
    (x, features, times, bias, state), output = _operands(op, 5), int(op["Outputs"][0])
    options = op["BuiltinOptions"] or Table(kind="")
    _check_float(flat, x, output)
    weights, rank = _real(flat, times), options.number("Rank")
    filters, memory = weights.shape
    batch, units = flat.shape(x)[0], filters // rank
    seen = _reshape(flat, _dense(flat, x, features), [batch, filters, 1])
    before = _reshape(flat, _state(flat, states, state, x), [batch, filters, memory])
    if memory > 1:
        kept = _slice(flat, before, [0, 0, 1], [batch, filters, memory - 1])
        fields: dict[str, Any] = {"Axis": 2, "FusedActivationFunction": 0}
        seen = flat.made("CONCATENATION", [kept, seen], [batch, filters, memory], "ConcatenationOptions", **fields)
    states.write(state, _reshape(flat, seen, [batch, filters * memory]))
    weighed = _mul(flat, seen, flat.constant(f"{flat.name(output)}/times", weights[None]))
    grouped = _reshape(flat, weighed, [batch, units, rank * memory])
    axes = flat.constant(f"axes_{len(flat.tensors)}", np.asarray([2], np.int32))
    total = flat.made("SUM", [grouped, axes], [batch, units], "ReducerOptions", KeepDims=False)
    nothing = bias if bias >= 0 else flat.constant(f"zero_{len(flat.tensors)}", np.asarray(0, np.float32))
    flat.op("ADD", [total, nothing], [output], "AddOptions", FusedActivationFunction=options.number("FusedActivationFunction"))


_LAYERS: dict[str, Callable[[FlatGraph, Table, States], None]] = {
    "BIDIRECTIONAL_SEQUENCE_LSTM": _two_lstms,
    "BIDIRECTIONAL_SEQUENCE_RNN": _two_rnns,
    "LSTM": _lstm,
    "RNN": _rnn,
    "SVDF": _svdf,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _lstm,
    "UNIDIRECTIONAL_SEQUENCE_RNN": _rnn,
}
LAYERS = frozenset(_LAYERS)
"""Names of the ops that are written out."""
