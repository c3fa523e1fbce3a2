"""Files of several subgraphs, of variables and of narrow weights give what LiteRT gives, call after call."""

import numpy as np
import onnx
import pytest
from ai_edge_litert.interpreter import Interpreter
from tflite import ActivationFunctionType as Activation

import octavo
from octavo.errors import ModelError
from octavo.ir.graph.model import read_model, with_model
from tflite_writer import Op, Tensor, write

ADD, MUL = ({"options_class": f"{name}Options", "options": {"FusedActivationFunction": 0}} for name in ("Add", "Mul"))
NONE = b"\x00\x00\x01"
"""No attributes, as a FlexBuffer has it."""
LESS = {"options_class": "LessOptions"}
LAST = {"options_class": "ConcatenationOptions", "options": {"Axis": -1, "FusedActivationFunction": 0}}


def constant(name, value, **fields):
    value = np.asarray(value)
    return Tensor(name=name, shape=value.shape, dtype=str(value.dtype), value=value, **fields)


def drawn(*shape, seed=3):
    return (np.random.default_rng((seed, *shape)).standard_normal(shape) * 0.5).astype(np.float32)


def x_and(*names, shape=(2, 3)):
    return [Tensor(name=name, shape=shape) for name in ("x", *names)]


def unary(name):
    return x_and("r"), [Op(name=name, inputs=(0,), outputs=(1,))], (0,), (1,)


def by_number(name, number):
    """A subgraph: x and a number, by ADD or MUL."""
    options = ADD if name == "ADD" else MUL
    return (
        [*x_and(), constant("n", np.float32(number)), *x_and()],
        [Op(name=name, inputs=(0, 1), outputs=(2,), **options)],
        (0,),
        (2,),
    )


def composite():
    """A composite of a composite, beside a subgraph that nothing calls."""
    fields = {"Name": "odd.one", "DecompositionSubgraphIndex": 1, "CompositeAttributes": NONE}
    outer = [Op(name="STABLEHLO_COMPOSITE", inputs=(0,), outputs=(1,), options_class="StableHLOCompositeOptions", options=fields)]
    outer.append(Op(name="TANH", inputs=(1,), outputs=(2,)))
    inner = {"Name": "inner", "DecompositionSubgraphIndex": 2, "CompositeAttributes": NONE}
    ops = [
        Op(name="STABLEHLO_COMPOSITE", inputs=(0,), outputs=(1,), options_class="StableHLOCompositeOptions", options=inner),
        Op(name="ADD", inputs=(0, 1), outputs=(2,), **ADD),
    ]
    return write(x_and("c", "y"), outer, (0,), (2,), (x_and("i", "o"), ops, (0,), (2,)), by_number("MUL", 3), unary("ABS"))


def branch(condition=None):
    """IF by what is computed, or by a constant: its sides give a result each, and the first one what it was given, too."""
    fields = {"ThenSubgraphIndex": 1, "ElseSubgraphIndex": 2}
    tensors = x_and("s", shape=(2, 3))
    tensors[1] = Tensor(name="s", shape=())
    axes, zero = constant("axes", np.int32([0, 1])), constant("zero", np.float32(0))
    chosen = Tensor(name="chosen", shape=(), dtype="bool") if condition is None else constant("chosen", np.asarray(condition))
    tensors += [axes, zero, chosen, Tensor(name="y", shape=(2, 3))]
    ops = (
        []
        if condition is not None
        else [
            Op(name="SUM", inputs=(0, 2), outputs=(1,), options_class="ReducerOptions", options={"KeepDims": False}),
            Op(name="GREATER", inputs=(1, 3), outputs=(4,), options_class="GreaterOptions"),
        ]
    )
    ops.append(Op(name="IF", inputs=(4, 0), outputs=(5,), options_class="IfOptions", options=fields))
    return write(tensors, ops, (0,), (5,), unary("TANH"), by_number("MUL", -2))


def loop():
    """WHILE i < 3: x = tanh(x * 2), i = i + 1; and what counts is used as a place, too."""
    count, after = (Tensor(name=name, shape=(), dtype="int32") for name in ("i", "j"))
    start = constant("start", np.int32(0))
    fields = {"CondSubgraphIndex": 1, "BodySubgraphIndex": 2}
    ops = [Op(name="WHILE", inputs=(1, 0), outputs=(2, 3), options_class="WhileOptions", options=fields)]
    bound, told = constant("bound", np.int32(3)), Tensor(name="told", shape=(), dtype="bool")
    condition = [count, *x_and(), bound, told], [Op(name="LESS", inputs=(0, 2), outputs=(3,), **LESS)], (0, 1), (3,)
    one, two = constant("one", np.int32(1)), constant("two", np.float32(2))
    body_ops = [
        Op(name="ADD", inputs=(0, 2), outputs=(3,), **ADD),
        Op(name="MUL", inputs=(1, 4), outputs=(5,), **MUL),
        Op(name="TANH", inputs=(5,), outputs=(6,)),
    ]
    body = [count, *x_and(), one, after, two, *x_and("o")], body_ops, (0, 1), (3, 6)
    return write([*x_and(), start, after, *x_and()], ops, (0,), (3,), condition, body)


def variables(*, written=True):
    """A sum that goes on from call to call, or a table that is written once."""
    handle, kind = Tensor(name="handle", shape=(), dtype="resource"), {"SharedName": "total", "Container": ""}
    made = Op(name="VAR_HANDLE", inputs=(), outputs=(1,), options_class="VarHandleOptions", options=kind)
    ops = [
        Op(name="CALL_ONCE", inputs=(), outputs=(), options_class="CallOnceOptions", options={"InitSubgraphIndex": 1}),
        made,
        Op(name="READ_VARIABLE", inputs=(1,), outputs=(2,), options_class="ReadVariableOptions"),
        Op(name="ADD", inputs=(0, 2), outputs=(3,), **ADD),
    ]
    if written:
        ops.append(Op(name="ASSIGN_VARIABLE", inputs=(1, 3), outputs=(), options_class="AssignVariableOptions"))
    first = constant("first", drawn(2, 3))
    once = [
        Op(name="VAR_HANDLE", inputs=(), outputs=(0,), options_class="VarHandleOptions", options=kind),
        Op(name="ASSIGN_VARIABLE", inputs=(0, 1), outputs=(), options_class="AssignVariableOptions"),
    ]
    tensors = [*x_and(), handle, Tensor(name="seen", shape=(2, 3)), Tensor(name="y", shape=(2, 3))]
    return write(tensors, ops, (0,), (3,), ([handle, first], once, (), ()))


def lstm(
    *,
    time_major=False,
    peepholes=False,
    coupled=False,
    projected=False,
    hybrid=False,
    normalized=False,
    alone=False,
    states_shape=True,
):
    batch, steps, width, units, out = 2, 4, 3, 5, 4 if projected else 5
    shape = (steps, batch, width) if time_major else (batch, width) if alone else (batch, steps, width)
    tensors = [Tensor(name="x", shape=shape)]

    def weight(*dims):
        value = drawn(*dims, seed=len(tensors))
        if hybrid and len(dims) == 2:
            scale = float(np.abs(value).max() / 127)
            value = np.round(value / scale).astype(np.int8)
            tensors.append(constant(f"w{len(tensors)}", value, scale=(scale,), zero_point=(0,)))
        else:
            tensors.append(constant(f"w{len(tensors)}", value))
        return len(tensors) - 1

    into = [-1 if coupled and not gate else weight(units, width) for gate in range(4)]
    back = [-1 if coupled and not gate else weight(units, out) for gate in range(4)]
    peep = [weight(units) if peepholes and not (coupled and not gate) else -1 for gate in range(3)]
    bias = [-1 if coupled and not gate else weight(units) for gate in range(4)]
    projection = [weight(out, units), weight(out)] if projected else [-1, -1]
    tensors += [Tensor(name=name, shape=(batch, size), is_variable=True) for name, size in (("h", out), ("c", units))]
    states = [len(tensors) - 2, len(tensors) - 1]
    norms = [weight(units) if normalized and not (coupled and not gate) else -1 for gate in range(4)]
    tensors.append(Tensor(name="h_of_each", shape=(*shape[:-1], out) if states_shape else ()))
    tensors.append(Tensor(name="y", shape=(*shape[:-1], out) if states_shape else ()))
    options = {"FusedActivationFunction": Activation.TANH, "CellClip": 0.4, "ProjClip": 0.0}
    options |= {} if alone else {"TimeMajor": time_major}
    inputs = (0, *into, *back, *peep, *bias, *projection, *states, *norms)
    name, kind = "UNIDIRECTIONAL_SEQUENCE_LSTM", "UnidirectionalSequenceLSTMOptions"
    name, kind = ("LSTM", "LSTMOptions") if alone else (name, kind)
    op = Op(name=name, inputs=inputs, outputs=(len(tensors) - 2,), options_class=kind, options=options)
    behind = Op(name="CONCATENATION", inputs=(len(tensors) - 2,), outputs=(len(tensors) - 1,), **LAST)
    return write(tensors, [op, behind], (0,), (len(tensors) - 1,))


def two_lstms(*, merged):
    """Two directions; LiteRT joins them right where time comes first."""
    batch, steps, width, sizes = 2, 4, 3, (5, 5)
    rows = (steps, batch) if merged else (batch, steps)
    tensors = [Tensor(name="x", shape=(*rows, width))]

    def added(tensor):
        tensors.append(tensor)
        return len(tensors) - 1

    def weight(*dims):
        return added(constant(f"w{len(tensors)}", drawn(*dims, seed=len(tensors))))

    operands, states = [], []
    for number, units in enumerate(sizes):
        operands += [*(weight(units, width) for _ in range(4)), *(weight(units, units) for _ in range(4))]
        operands += [*[-1] * 3, *(weight(units) for _ in range(4)), -1, -1]
        states += [added(Tensor(name=f"{kind}{number}", shape=(batch, units), is_variable=True)) for kind in "hc"]
    widths = (sum(sizes),) if merged else sizes
    results = tuple(added(Tensor(name=f"y{number}", shape=(*rows, size))) for number, size in enumerate(widths))
    options = {"FusedActivationFunction": Activation.TANH, "CellClip": 0.0, "ProjClip": 0.0, "MergeOutputs": merged}
    kind = {"options_class": "BidirectionalSequenceLSTMOptions", "options": {**options, "TimeMajor": merged}}
    inputs = (0, *operands, *states, *[-1] * 9)
    return write(tensors, [Op(name="BIDIRECTIONAL_SEQUENCE_LSTM", inputs=inputs, outputs=results, **kind)], (0,), results)


def two_rnns():
    weights = [constant(f"w{place}", drawn(*dims, seed=place)) for place, dims in enumerate([(4, 3), (4, 4), (4,)] * 2)]
    hidden = [Tensor(name=name, shape=(2, 4), is_variable=True) for name in ("h0", "h1")]
    tensors = [Tensor(name="x", shape=(2, 3, 3)), *weights[:3], hidden[0], *weights[3:], hidden[1]]
    tensors.append(Tensor(name="y", shape=(2, 3, 8)))
    options = {"FusedActivationFunction": Activation.TANH, "TimeMajor": False, "MergeOutputs": True}
    fields = {"options_class": "BidirectionalSequenceRNNOptions", "options": options}
    inputs = (*range(9), -1, -1, -1)
    return write(tensors, [Op(name="BIDIRECTIONAL_SEQUENCE_RNN", inputs=inputs, outputs=(9,), **fields)], (0,), (9,))


def rnn_alone():
    weights = [constant("w", drawn(4, 3)), constant("r", drawn(4, 4)), constant("b", drawn(4))]
    tensors = [Tensor(name="x", shape=(2, 3)), *weights, Tensor(name="h", shape=(2, 4), is_variable=True)]
    tensors.append(Tensor(name="y", shape=(2, 4)))
    fields = {"options_class": "RNNOptions", "options": {"FusedActivationFunction": Activation.RELU}}
    return write(tensors, [Op(name="RNN", inputs=(0, 1, 2, 3, 4), outputs=(5,), **fields)], (0,), (5,))


def rnn(batch=2, signature=()):
    weights = [constant("w", drawn(4, 3)), constant("r", drawn(4, 4)), constant("b", drawn(4))]
    tensors = [Tensor(name="x", shape=(batch, 3, 3), signature=signature), *weights]
    tensors.append(Tensor(name="h", shape=(batch, 4), is_variable=True))
    tensors.append(Tensor(name="y", shape=(batch, 3, 4)))
    options = {"FusedActivationFunction": Activation.TANH, "TimeMajor": False}
    fields = {"options_class": "SequenceRNNOptions", "options": options}
    op = Op(name="UNIDIRECTIONAL_SEQUENCE_RNN", inputs=(0, 1, 2, 3, 4), outputs=(5,), **fields)
    return write(tensors, [op], (0,), (5,))


def svdf():
    weights = [constant("f", drawn(8, 3)), constant("t", drawn(8, 5)), constant("b", drawn(4))]
    tensors = [Tensor(name="x", shape=(2, 3)), *weights, Tensor(name="s", shape=(2, 40), is_variable=True)]
    tensors.append(Tensor(name="y", shape=(2, 4)))
    options = {"Rank": 2, "FusedActivationFunction": Activation.RELU}
    op = Op(name="SVDF", inputs=(0, 1, 2, 3, 4), outputs=(5,), options_class="SVDFOptions", options=options)
    return write(tensors, [op], (0,), (5,))


def narrow():
    """A dense layer of 4-bit weights, of a scale for each row."""
    packed = np.random.default_rng(3).integers(0, 256, 12, np.uint8)
    w = Tensor(name="w", shape=(4, 6), dtype="int4", value=packed, scale=(0.1, 0.2, 0.05, 0.1), zero_point=(0,) * 4)
    tensors = [Tensor(name="x", shape=(3, 6)), w, Tensor(name="y", shape=(3, 4))]
    options = {"FusedActivationFunction": 0, "AsymmetricQuantizeInputs": False}
    op = Op(name="FULLY_CONNECTED", inputs=(0, 1, -1), outputs=(2,), options_class="FullyConnectedOptions", options=options)
    return write(tensors, [op], (0,), (2,))


CASES = {
    "composite": composite,
    "branch": branch,
    "branch that is known": lambda: branch(condition=False),
    "loop": loop,
    "variable": variables,
    "variable, written once": lambda: variables(written=False),
    "lstm": lstm,
    "lstm, time first, with peepholes": lambda: lstm(time_major=True, peepholes=True),
    "lstm, coupled gates, projected": lambda: lstm(coupled=True, projected=True),
    "lstm, int8 weights": lambda: lstm(hybrid=True),
    "lstm, normalized": lambda: lstm(normalized=True, peepholes=True),
    "lstm, a step alone": lambda: lstm(alone=True),
    "lstm, no shape stated": lambda: lstm(states_shape=False),
    "lstm, a step alone, no shape stated": lambda: lstm(alone=True, projected=True, states_shape=False),
    "two lstms, side by side": lambda: two_lstms(merged=True),
    "two lstms, two results": lambda: two_lstms(merged=False),
    "two rnns": two_rnns,
    "rnn": rnn,
    "rnn, a step alone": rnn_alone,
    "svdf": svdf,
    "4 bits": narrow,
}
CALLS = 3
LAYERS_QUANTIZE_OTHERWISE = {"lstm, int8 weights": 0.01}
"""LiteRT's kernel of the layer quantizes rows to [-127; 127], its dense layers, of which ours is made, to [-128; 127]."""


@pytest.mark.parametrize("case", CASES)
def test_equals_litert_call_after_call(case, tmp_path):
    path = tmp_path / "m.tflite"
    path.write_bytes(CASES[case]())
    interpreter = Interpreter(str(path))
    interpreter.allocate_tensors()
    [details], (result, *_) = interpreter.get_input_details(), interpreter.get_output_details()
    model = octavo.load(path)
    executable = octavo.compile(model)
    first, *states = [each.source_name for each in executable.inputs]
    step = executable.session(carry={f"{name}_next": name for name in states}) if states else executable
    for call in range(CALLS):
        x = drawn(*details["shape"], seed=10 + call) * 2
        interpreter.set_tensor(details["index"], x)
        interpreter.invoke()
        found = next(iter(step({first: x}).values()))
        expected = interpreter.get_tensor(result["index"])
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=LAYERS_QUANTIZE_OTHERWISE.get(case, 2e-6))


def test_a_variable_that_is_fed_is_an_input(tmp_path):
    path = tmp_path / "m.tflite"
    tensors = [*x_and(), Tensor(name="v", shape=(2, 3), is_variable=True), Tensor(name="y", shape=(2, 3))]
    path.write_bytes(write(tensors, [Op(name="MUL", inputs=(0, 1), outputs=(2,), **MUL)], (0, 1), (2,)))
    x, v = drawn(2, 3), drawn(2, 3, seed=4)
    np.testing.assert_array_equal(octavo.compile(octavo.load(path))({"x": x, "v": v})["y"], x * v)


def test_a_variable_begins_as_the_file_states_in_every_form(tmp_path):
    """Saved, quantized, of integers, as a module on its own, and after a reset; `start` says otherwise."""
    path, first, carry = tmp_path / "m.tflite", drawn(2, 3), {"total_next": "total"}
    path.write_bytes(variables())
    model, x = octavo.load(path), drawn(2, 3, seed=10)
    octavo.compile(model).save(tmp_path / "m.oct")
    saved = octavo.load_executable(tmp_path / "m.oct")
    with saved.session(carry=carry) as step:
        for _ in range(2):
            np.testing.assert_array_equal(step(x)["y"], first + x)
            np.testing.assert_array_equal(step.state()["total"], first + x)
            step.reset()
    with saved.session(carry=carry, start={"total": x}) as step:
        np.testing.assert_array_equal(step(x)["y"], x + x)
    profile = octavo.profile(model, [{"x": x}, {"x": -x}], state=carry)
    low, high = (float(each) for each in (np.minimum(first, first + x).min(), np.maximum(first, first + x).max()))
    assert (profile["total"].minimum, profile["total"].maximum) == pytest.approx((low, high))
    quantized = octavo.quantize(model, profile, preset="fast")
    for form in (quantized, read_model(with_model(model.bound(), model))):
        np.testing.assert_array_equal(octavo.compile(form).inputs[1].start, first)


def test_a_layer_of_open_batch_takes_any(tmp_path):
    path = tmp_path / "m.tflite"
    path.write_bytes(rnn(batch=1, signature=(-1, 3, 3)))
    x, h = drawn(3, 3, 3), drawn(3, 4)
    assert octavo.load(path).any_batch
    whole = octavo.compile(octavo.load(path, sizes={"batch": (1, None)}))({"x": x, "h": h})
    one = octavo.compile(octavo.load(path))
    singles = [one({"x": x[place : place + 1], "h": h[place : place + 1]}) for place in range(3)]
    for name, value in whole.items():
        np.testing.assert_array_equal(value, np.concatenate([each[name] for each in singles]))


def test_weights_of_4_bits_in_blocks_are_their_real_values(tmp_path):
    """LiteRT quantizes what they meet, as it likes: it is no reference for them."""
    integers = np.random.default_rng(4).integers(-8, 8, (5, 64)).astype(np.int8)
    packed = (integers[:, ::2] & 15 | (integers[:, 1::2] & 15) << 4).astype(np.uint8)
    scales = np.random.default_rng(5).uniform(0.01, 0.1, (5, 2)).astype(np.float16)
    w = Tensor(name="w", shape=(5, 64), dtype="int4", value=packed, scales_of_blocks=2)
    tensors = [Tensor(name="x", shape=(3, 64)), w, constant("s", scales), Tensor(name="y", shape=(3, 5))]
    options = {"options_class": "FullyConnectedOptions", "options": {"FusedActivationFunction": 0}}
    path = tmp_path / "m.tflite"
    path.write_bytes(write(tensors, [Op(name="FULLY_CONNECTED", inputs=(0, 1, -1), outputs=(3,), **options)], (0,), (3,)))
    x = drawn(3, 64)
    weights = (integers.reshape(5, 2, 32) * scales[..., None].astype(np.float32)).reshape(5, 64)
    np.testing.assert_allclose(octavo.compile(octavo.load(path))(x)["y"], x @ weights.T, rtol=1e-5, atol=1e-5)


def test_constants_may_lie_behind_the_flatbuffer(tmp_path):
    """As in files above 2 GB; a file that ends before them is damaged."""
    path, far = tmp_path / "m.tflite", 4096
    content = write(
        [*x_and("y"), constant("c", drawn(2, 3))], [Op(name="ADD", inputs=(0, 2), outputs=(1,), **ADD)], (0,), (1,), behind=far
    )
    path.write_bytes(content)
    interpreter, x = Interpreter(str(path)), drawn(2, 3)
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, x)
    interpreter.invoke()
    np.testing.assert_array_equal(octavo.compile(octavo.load(path))(x)["y"], interpreter.get_tensor(1))
    path.write_bytes(content[:far])
    with pytest.raises(ModelError, match=r"truncated or corrupt \.tflite file"):
        octavo.load(path)


def test_old_field_of_operator_codes_may_be_left_out(tmp_path):
    path = tmp_path / "m.tflite"
    tensors, ops, inputs, outputs = unary("RELU")
    path.write_bytes(write(tensors, ops, inputs, outputs, old_codes=False))
    assert octavo.load(path).tensors["r"].op == "RELU"


def two_signatures():
    """Signatures of a subgraph each, of which one calls a third subgraph."""
    fields = {"Name": "odd.one", "DecompositionSubgraphIndex": 2, "CompositeAttributes": NONE}
    call = Op(name="STABLEHLO_COMPOSITE", inputs=(0,), outputs=(1,), options_class="StableHLOCompositeOptions", options=fields)
    decode = (x_and("c"), [call], (0,), (1,))
    return write(*unary("TANH"), decode, by_number("MUL", 3), signatures={"encode": 0, "decode": 1})


@pytest.mark.parametrize("signature", ["encode", "decode", None])
def test_a_signature_is_chosen_by_its_name(signature, tmp_path):
    path = tmp_path / "m.tflite"
    path.write_bytes(two_signatures())
    x = drawn(2, 3)
    model = octavo.load(path, signature=signature)
    [found] = octavo.compile(model)(x).values()
    [expected] = Interpreter(str(path)).get_signature_runner(signature or "encode")(x=x).values()
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_signatures_that_there_are_not(tmp_path):
    path = tmp_path / "m.tflite"
    path.write_bytes(two_signatures())
    with pytest.raises(ModelError, match=r"has the signatures 'encode', 'decode'; 'serving_default' is none of them"):
        octavo.load(path, signature="serving_default")
    path.write_bytes(write(*unary("RELU")))
    with pytest.raises(ModelError, match=r"has no signatures: leave the name out"):
        octavo.load(path, signature="encode")
    with pytest.raises(ModelError, match=r"\.tflite files alone have some: leave it out"):
        octavo.load(onnx.ModelProto(), signature="encode")
