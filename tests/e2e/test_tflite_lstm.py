"""An LSTM of a few steps, unrolled into its ops, against LiteRT: in int8, and in float with int8 weights."""

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from flatbuffers import Builder

import octavo
from octavo.errors import UnsupportedOpError

UNITS, FEATURES, STEPS = 8, 6, 3
SIGMOID, TANH, CELL, GATES = (1 / 256, -128), (1 / 128, 0), (1 / 32, 0), (1 / 16, 0)


class Network:
    """Writes one operator after another; a tensor is known by its index."""

    def __init__(self, *, is_float: bool) -> None:
        self.is_float = is_float
        self.model = schema.ModelT()
        self.model.version, self.model.buffers, self.model.operatorCodes = 3, [schema.BufferT()], []
        self.graph = schema.SubGraphT()
        self.graph.tensors, self.graph.operators, self.graph.inputs, self.graph.outputs = [], [], [], []

    def tensor(self, shape, params=None, value=None, dtype=None) -> int:
        tensor = schema.TensorT()
        tensor.name, tensor.shape, tensor.buffer = f"t{len(self.graph.tensors)}", list(shape), 0
        real = schema.TensorType.FLOAT32
        tensor.type = dtype if dtype is not None else real if self.is_float else schema.TensorType.INT8
        if params is not None and tensor.type != real:
            tensor.quantization = schema.QuantizationParametersT()
            tensor.quantization.scale, tensor.quantization.zeroPoint = [params[0]], [params[1]]
        if value is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
            tensor.buffer = len(self.model.buffers)
            self.model.buffers.append(buffer)
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def op(self, name: str, inputs, outputs, options=None) -> None:
        code = schema.OperatorCodeT()
        code.builtinCode = getattr(schema.BuiltinOperator, name)
        code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), 1
        operator = schema.OperatorT()
        operator.opcodeIndex, operator.inputs, operator.outputs = len(self.model.operatorCodes), list(inputs), list(outputs)
        self.model.operatorCodes.append(code)
        if options is not None:
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, type(options).__name__.removesuffix("T"))
            operator.builtinOptions = options
        self.graph.operators.append(operator)

    def made(self, name: str, inputs, params, options=None, shape=(1, UNITS)) -> int:
        output = self.tensor(shape, params)
        self.op(name, inputs, [output], options)
        return output

    def finish(self, inputs, outputs) -> bytes:
        self.graph.inputs, self.graph.outputs, self.model.subgraphs = list(inputs), list(outputs), [self.graph]
        builder = Builder(4096)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def unrolled(*, is_float: bool) -> bytes:
    """gates = [x, h] @ W + b; i, f, g, o = split(gates); c = s(f) * c + s(i) * tanh(g); h = s(o) * tanh(c)."""
    rng, net = np.random.default_rng(0), Network(is_float=is_float)
    inputs = [net.tensor((1, FEATURES), TANH) for _ in range(STEPS)]
    state = [net.tensor((1, UNITS), TANH), net.tensor((1, UNITS), CELL)]
    weight = rng.integers(-127, 128, (4 * UNITS, FEATURES + UNITS)).astype(np.int8)
    w = net.tensor(weight.shape, (0.01, 0), weight, schema.TensorType.INT8)
    bias = rng.normal(size=4 * UNITS).astype(np.float32)
    kind = schema.TensorType.FLOAT32 if is_float else schema.TensorType.INT32
    b = net.tensor(bias.shape, (TANH[0] * 0.01, 0), bias if is_float else np.int32(bias / (TANH[0] * 0.01)), kind)
    axis = net.tensor((), None, np.int32(1), schema.TensorType.INT32)
    h, c = state
    for x in inputs:
        join, split = schema.ConcatenationOptionsT(), schema.SplitOptionsT()
        join.axis, split.numSplits = 1, 4
        both = net.made("CONCATENATION", [x, h], TANH, join, (1, FEATURES + UNITS))
        gates = net.made("FULLY_CONNECTED", [both, w, b], GATES, schema.FullyConnectedOptionsT(), (1, 4 * UNITS))
        parts = [net.tensor((1, UNITS), GATES) for _ in range(4)]
        net.op("SPLIT", [axis, gates], parts, split)
        i, f, o = (net.made("LOGISTIC", [parts[k]], SIGMOID) for k in (0, 1, 3))
        g = net.made("TANH", [parts[2]], TANH)
        kept = net.made("MUL", [f, c], CELL, schema.MulOptionsT())
        added = net.made("MUL", [i, g], TANH, schema.MulOptionsT())
        c = net.made("ADD", [kept, added], CELL, schema.AddOptionsT())
        h = net.made("MUL", [o, net.made("TANH", [c], TANH)], TANH, schema.MulOptionsT())
    return net.finish([*inputs, *state], [h, c])


@pytest.mark.parametrize("is_float", [False, True], ids=["int8", "dynamic range"])
def test_an_unrolled_lstm_equals_litert(tmp_path, is_float):
    data = unrolled(is_float=is_float)
    path = tmp_path / "lstm.tflite"
    path.write_bytes(data)
    executable = octavo.compile(octavo.load(path))
    interpreter = Interpreter(model_content=data, num_threads=1)
    interpreter.allocate_tensors()
    ops = octavo.explain(executable).ops
    assert sum(op.macs > 0 and op.integer for op in ops) == STEPS
    if not is_float:
        assert all(op.integer for op in ops), [op.reason for op in ops if not op.integer]
    rng = np.random.default_rng(1)
    for _ in range(20):
        shapes = [spec.shape for spec in executable.inputs]
        fed = [rng.normal(size=s).astype(np.float32) if is_float else rng.integers(-128, 128, s).astype(np.int8) for s in shapes]
        for detail, array in zip(interpreter.get_input_details(), fed, strict=True):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        got = executable(dict(zip((spec.id for spec in executable.inputs), fed, strict=True))).values()
        for detail, array in zip(interpreter.get_output_details(), got, strict=True):
            want = interpreter.get_tensor(detail["index"])
            if is_float:
                assert np.abs(array - want).max() <= 1e-6 * np.abs(want).max()
            else:
                np.testing.assert_array_equal(array, want)


def test_an_lstm_that_keeps_its_state_says_what_to_do(tmp_path):
    net = Network(is_float=True)
    x, state = net.tensor((1, 4)), net.tensor((1, 4))
    net.graph.tensors[state].isVariable = True
    path = tmp_path / "stateful.tflite"
    path.write_bytes(net.finish([x], [net.made("ADD", [x, state], None, schema.AddOptionsT(), (1, 4))]))
    with pytest.raises(UnsupportedOpError, match=r"'t1' is a variable.*unroll=True"):
        octavo.load(path)


def test_a_whole_lstm_in_one_op_without_weights_is_refused(tmp_path):
    net = Network(is_float=True)
    x = net.tensor((1, STEPS, FEATURES))
    states = [net.tensor((1, UNITS)) for _ in range(2)]
    for state in states:
        net.graph.tensors[state].isVariable = True
    inputs = [x, *[-1] * 17, *states]
    y = net.made("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, None, schema.UnidirectionalSequenceLSTMOptionsT(), (1, STEPS, UNITS))
    path = tmp_path / "whole.tflite"
    path.write_bytes(net.finish([x], [y]))
    with pytest.raises(UnsupportedOpError, match=r"op UNIDIRECTIONAL_SEQUENCE_LSTM \(output .*a layer without weights") as raised:
        octavo.load(path)
    assert "\n" not in str(raised.value)
