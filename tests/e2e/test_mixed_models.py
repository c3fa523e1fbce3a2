"""Models of integer and float parts: what can be integer is, the float island is told, and the outputs are the framework's."""

import numpy as np
import onnx
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from flatbuffers import Builder
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

import octavo
from reference_sessions import reference_session

TYPES = {"float32": schema.TensorType.FLOAT32, "int8": schema.TensorType.INT8, "int32": schema.TensorType.INT32}


class Tflite:
    """Writes one operator after another; a tensor is known by its index."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(12)
        self.model, self.graph = schema.ModelT(), schema.SubGraphT()
        self.model.version, self.model.buffers, self.model.operatorCodes = 3, [schema.BufferT()], []
        self.graph.tensors, self.graph.operators = [], []

    def tensor(self, shape, dtype="float32", params=None, value=None) -> int:
        tensor = schema.TensorT()
        tensor.name, tensor.shape, tensor.type, tensor.buffer = f"t{len(self.graph.tensors)}", list(shape), TYPES[dtype], 0
        if params is not None:
            tensor.quantization = schema.QuantizationParametersT()
            tensor.quantization.scale, tensor.quantization.zeroPoint = [params[0]], [params[1]]
        if value is not None:
            tensor.buffer = len(self.model.buffers)
            self.model.buffers.append(schema.BufferT())
            self.model.buffers[-1].data = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def op(self, name, inputs, output, options=None) -> int:
        code, operator = schema.OperatorCodeT(), schema.OperatorT()
        code.builtinCode = getattr(schema.BuiltinOperator, name)
        code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), 1
        operator.opcodeIndex, operator.inputs, operator.outputs = len(self.model.operatorCodes), list(inputs), [output]
        self.model.operatorCodes.append(code)
        if options is not None:
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, type(options).__name__.removesuffix("T"))
            operator.builtinOptions = options
        self.graph.operators.append(operator)
        return output

    def dense(self, x, units, terms, params) -> int:
        """A quantized layer of inputs of scale 0.02."""
        values = self.rng.integers(-90, 91, (units, terms)).astype(np.int8)
        weight = self.tensor(values.shape, "int8", (0.01, 0), values)
        bias = self.tensor((units,), "int32", (0.02 * 0.01, 0), self.rng.integers(-900, 900, units).astype(np.int32))
        return self.op(
            "FULLY_CONNECTED", [x, weight, bias], self.tensor((4, units), "int8", params), schema.FullyConnectedOptionsT()
        )

    def finish(self, x, y) -> bytes:
        self.graph.inputs, self.graph.outputs, self.model.subgraphs = [x], [y], [self.graph]
        builder = Builder(4096)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def assert_equal_but_for_a_tie(got, want) -> None:
    """Sums in float, in another order, may fall on the other side of a half: one value by one step."""
    difference = np.abs(got.astype(int) - want.astype(int))
    assert difference.max() <= 1
    assert np.count_nonzero(difference) <= 1


def test_a_tflite_file_with_a_float_island(tmp_path):
    """dense, then a cosine and a product by float weights, which no lookup can be, then dense."""
    net, params = Tflite(), (0.02, 3)
    x = net.tensor((4, 24), "int8", params)
    real = net.op("DEQUANTIZE", [net.dense(x, 16, 24, (0.05, -7))], net.tensor((4, 16)))
    weight = net.tensor((16, 16), value=(net.rng.normal(size=(16, 16)) * 0.2).astype(np.float32))
    bias = net.tensor((16,), value=net.rng.normal(size=16).astype(np.float32))
    turned = net.op("COS", [real], net.tensor((4, 16)))
    moved = net.op("FULLY_CONNECTED", [turned, weight, bias], net.tensor((4, 16)), schema.FullyConnectedOptionsT())
    back = net.op("QUANTIZE", [moved], net.tensor((4, 16), "int8", params))
    data = net.finish(x, net.dense(back, 10, 16, (0.04, 5)))
    path = tmp_path / "mixed.tflite"
    path.write_bytes(data)
    executable = octavo.compile(octavo.load(path))
    ops = octavo.explain(executable).ops
    assert [(op.integer, op.macs) for op in ops if op.macs] == [(True, 4 * 16 * 24), (False, 4 * 16 * 16), (True, 4 * 10 * 16)]
    assert [op.op for op in ops if not op.integer] == ["cos", "matmul"]
    assert all(op.reason for op in ops if not op.integer)
    interpreter = Interpreter(model_content=data, num_threads=1)
    interpreter.allocate_tensors()
    for _ in range(5):
        fed = net.rng.integers(-128, 128, (4, 24)).astype(np.int8)
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], fed)
        interpreter.invoke()
        (got,) = executable(fed).values()
        assert_equal_but_for_a_tie(got, interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))


def test_an_onnx_file_with_an_unquantized_island(tmp_path):
    """A quantized product, a product by float weights and a sine that nobody quantized, a quantized product."""
    rng = np.random.default_rng(12)
    constants = {
        "s": np.float32(0.03),
        "z": np.uint8(120),
        "ws": np.float32(0.01),
        "wz": np.int8(0),
        "w1": rng.integers(-60, 61, (24, 16)).astype(np.int8),
        "w2": (rng.normal(size=(16, 12)) * 0.2).astype(np.float32),
        "w3": rng.integers(-60, 61, (12, 7)).astype(np.int8),
    }
    nodes = [
        make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        make_node("DequantizeLinear", ["xq", "s", "z"], ["xr"]),
        make_node("DequantizeLinear", ["w1", "ws", "wz"], ["w1r"]),
        make_node("MatMul", ["xr", "w1r"], ["m1"]),
        make_node("QuantizeLinear", ["m1", "s", "z"], ["m1q"]),
        make_node("DequantizeLinear", ["m1q", "s", "z"], ["m1r"]),
        make_node("MatMul", ["m1r", "w2"], ["m2"]),
        make_node("Sin", ["m2"], ["m3"]),
        make_node("QuantizeLinear", ["m3", "s", "z"], ["m3q"]),
        make_node("DequantizeLinear", ["m3q", "s", "z"], ["m3r"]),
        make_node("DequantizeLinear", ["w3", "ws", "wz"], ["w3r"]),
        make_node("MatMul", ["m3r", "w3r"], ["m4"]),
        make_node("QuantizeLinear", ["m4", "s", "z"], ["y"]),
    ]
    inputs = [make_tensor_value_info("x", onnx.TensorProto.FLOAT, (4, 24))]
    outputs = [make_tensor_value_info("y", onnx.TensorProto.UINT8, (4, 7))]
    initializers = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    model = make_model(make_graph(nodes, "g", inputs, outputs, initializers), opset_imports=[make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "mixed.onnx"
    onnx.save(model, path)
    executable = octavo.compile(octavo.load(path))
    explained = octavo.explain(executable)
    macs = [(op.integer, op.macs) for op in explained.ops if op.macs]
    assert macs == [(True, 4 * 24 * 16), (False, 4 * 16 * 12), (True, 4 * 12 * 7)]
    assert f"{100 * (24 * 16 + 12 * 7) / (24 * 16 + 16 * 12 + 12 * 7):.1f}% of MACs" in explained.summary
    session = reference_session(model)
    for _ in range(5):
        fed = rng.normal(size=(4, 24)).astype(np.float32)
        (got,), (want,) = executable(fed).values(), session.run(None, {"x": fed})
        assert_equal_but_for_a_tie(got, want)
