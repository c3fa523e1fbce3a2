"""A network of int16 activations and int8 weights, layer upon layer: every op integer, every bit LiteRT's."""

import flatbuffers
import numpy as np
import pytest
import tflite_case
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from tflite_case import Value
from tflite_draws import NONE, RELU, SAME, VALID, options

import octavo


class Network:
    """Collects tensors and ops; each op's method returns the name of its result."""

    def __init__(self, seed, bias):
        self.rng = np.random.default_rng(seed)
        self.bias = bias
        self.bias_type = schema.TensorType.INT64 if bias == np.int64 else schema.TensorType.INT32
        self.model = schema.ModelT()
        self.model.version, self.model.buffers, self.model.operatorCodes = 3, [schema.BufferT()], []
        self.graph = schema.SubGraphT()
        self.graph.tensors, self.graph.operators = [], []
        self.values, self.codes = [], {}

    def tensor(self, value):
        self.graph.tensors.append(tflite_case._tensor(f"t{len(self.values)}", value, self.model.buffers))
        self.values.append(value)
        return len(self.values) - 1

    def activation(self, shape, scale):
        return Value(shape=shape, dtype="int16", scale=(float(np.float32(scale)),), zero_point=(0,))

    def op(self, name, inputs, shape, scale, table=None):
        operator = schema.OperatorT()
        operator.opcodeIndex = tflite_case._code(name, self.model, self.codes)
        operator.inputs, operator.outputs = inputs, [self.tensor(self.activation(shape, scale))]
        if table is not None:
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, type(table).__name__.removesuffix("T"))
            operator.builtinOptions = table
        self.graph.operators.append(operator)
        return operator.outputs[0]

    def weighted(self, name, x, weight_shape, axis, shape, table, *, before=()):
        """Add an op with weights and a bias; the output scale fits the spread of its sums."""
        channels, source = weight_shape[axis], self.values[x]
        scales = self.rng.uniform(0.002, 0.01, channels).astype(np.float32)
        fields = {"zero_point": (0,) * channels}
        weights = self.rng.integers(-127, 128, weight_shape).astype(np.int8)
        weight = self.tensor(Value.constant(weights, scale=tuple(map(float, scales)), axis=axis, **fields))
        product = tuple(float(np.float32(source.scale[0]) * scale) for scale in scales)
        limit = 2000 if self.bias == np.int32 else 200_000
        bias = self.tensor(Value.constant(self.rng.integers(-limit, limit, channels).astype(self.bias), scale=product, **fields))
        terms = 9 if axis == 3 else int(np.prod(weight_shape[1:]))
        inputs = [x, weight, bias] if not before else [*before, weight, x, bias]
        return self.op(name, inputs, shape, source.scale[0] * 0.5 * np.sqrt(terms), table)

    def write(self, inputs, outputs):
        self.graph.inputs, self.graph.outputs = inputs, outputs
        self.model.subgraphs = [self.graph]
        builder = flatbuffers.Builder(4096)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def network(bias):
    """Return the file of a small residual network with every kind of layer that it can have."""
    n = Network(3, bias)
    x = n.tensor(n.activation((1, 12, 12, 5), 0.0005))
    unit = {"strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    conv = options("Conv2DOptions", padding=SAME, fusedActivationFunction=RELU, quantizedBiasType=n.bias_type, **unit)
    stem = n.weighted("CONV_2D", x, (16, 3, 3, 5), 0, (1, 12, 12, 16), conv)
    inside = stem
    if bias == np.int64:  # LiteRT's depthwise convolution takes no other
        depthwise = options("DepthwiseConv2DOptions", padding=SAME, depthMultiplier=1, fusedActivationFunction=NONE, **unit)
        inside = n.weighted("DEPTHWISE_CONV_2D", stem, (1, 3, 3, 16), 3, (1, 12, 12, 16), depthwise)
    point = options("Conv2DOptions", padding=VALID, fusedActivationFunction=NONE, quantizedBiasType=n.bias_type, **unit)
    project = n.weighted("CONV_2D", inside, (16, 1, 1, 16), 0, (1, 12, 12, 16), point)
    scale = n.values[project].scale[0]
    total = n.op("ADD", [project, stem], (1, 12, 12, 16), scale * 1.3, options("AddOptions", fusedActivationFunction=NONE))
    leaky = n.op("LEAKY_RELU", [total], (1, 12, 12, 16), scale, options("LeakyReluOptions", alpha=0.2))
    window = {"filterHeight": 2, "filterWidth": 2, "strideH": 2, "strideW": 2, "padding": VALID}
    mean = n.op("AVERAGE_POOL_2D", [leaky], (1, 6, 6, 16), scale, options("Pool2DOptions", **window))
    most = n.op("MAX_POOL_2D", [leaky], (1, 6, 6, 16), scale, options("Pool2DOptions", **window))
    both = n.op("CONCATENATION", [mean, most], (1, 6, 6, 32), scale, options("ConcatenationOptions", axis=3))
    gate = n.op("LOGISTIC", [both], (1, 6, 6, 32), 1 / 32768)
    gated = n.op("MUL", [both, gate], (1, 6, 6, 32), scale * 0.9, options("MulOptions", fusedActivationFunction=NONE))
    # With 32-bit biases LiteRT rounds the channels beyond its vectors another way: 16 has none.
    size = n.tensor(Value.constant(np.int32([1, 12, 12, 16])))
    up = options("TransposeConvOptions", padding=SAME, strideH=2, strideW=2, quantizedBiasType=n.bias_type)
    wide = n.weighted("TRANSPOSE_CONV", gated, (16, 3, 3, 32), 0, (1, 12, 12, 16), up, before=(size,))
    axes = n.tensor(Value.constant(np.int32([1, 2])))
    pooled = n.op("MEAN", [wide, axes], (1, 16), n.values[wide].scale[0] * 0.2, options("ReducerOptions", keepDims=False))
    dense = options("FullyConnectedOptions", fusedActivationFunction=NONE, quantizedBiasType=n.bias_type)
    logits = n.weighted("FULLY_CONNECTED", pooled, (10, 16), 0, (1, 10), dense)
    probable = n.op("SOFTMAX", [logits], (1, 10), 1 / 32768, options("SoftmaxOptions", beta=1.0))
    return n.write([x], [gated, wide, logits, probable])


@pytest.mark.parametrize("bias", [np.int64, np.int32])
def test_network(bias, tmp_path):
    data = network(bias)
    path = tmp_path / "network.tflite"
    path.write_bytes(data)
    executable = octavo.compile(octavo.load(path))
    assert [op.reason for op in octavo.explain(executable).ops if not op.integer] == []
    interpreter = Interpreter(model_content=data, num_threads=1)
    interpreter.allocate_tensors()
    rng = np.random.default_rng(1)
    for reach in (32767, 3000):
        x = rng.integers(-reach, reach + 1, (1, 12, 12, 5)).astype(np.int16)
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
        interpreter.invoke()
        expected = [interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()]
        for index, (wanted, actual) in enumerate(zip(expected, executable(x).values(), strict=True)):
            assert np.ptp(wanted.astype(np.int64)) > 20, f"output {index} tells nothing apart"
            np.testing.assert_array_equal(actual, wanted, err_msg=f"output {index}")
