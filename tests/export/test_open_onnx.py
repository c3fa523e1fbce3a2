"""Files of models of open sizes: dimensions keep their names, and ONNX Runtime gives Octavo's values at each size."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from tvm import relax, tirx

import octavo
from octavo.evaluation.peers import exact_session
from octavo.export.onnx.onnx_export import onnx_model

HEADS = """<ir_version: 8, opset_import: ["" : 13]> heads (float[batch,sequence,24] x) => (float[batch,sequence,24] y)
<int64[4] split = {0, 0, 3, 8}, int64[3] joined = {0, 0, 24}> {
    d = MatMul(x, w)
    r = Reshape(d, split)
    q = Transpose <perm = [0, 2, 1, 3]> (r)
    k = Transpose <perm = [0, 2, 3, 1]> (r)
    s = MatMul(q, k)
    p = Softmax(s)
    a = MatMul(p, q)
    t = Transpose <perm = [0, 2, 1, 3]> (a)
    y = Reshape(t, joined)
}"""
SIZES = ((1, 1), (1, 17), (3, 6))


def dims(values: Any) -> list[list[Any]]:
    return [[dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in values]


def samples(rng: np.random.Generator, sizes: tuple[tuple[int, int], ...]) -> list[np.ndarray]:
    return [rng.normal(size=(*size, 24)).astype(np.float32) for size in sizes]


def assert_equal_at_each_size(model: octavo.Model, proto: Any, rng: np.random.Generator, step: float) -> None:
    executable, session = octavo.compile(model), exact_session(proto)
    for x in samples(rng, SIZES):
        np.testing.assert_allclose(session.run(None, {"x": x})[0], executable(x)["y"], rtol=0, atol=step)


def test_a_quantized_file_keeps_the_names_of_its_dimensions(rng: np.random.Generator) -> None:
    proto = onnx.parser.parse_model(HEADS)
    weight = rng.normal(0, 0.3, (24, 24)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    model = octavo.load(proto)
    quantized = octavo.quantize(model, octavo.profile(model, samples(rng, ((2, 9), (1, 30), (1, 4), (2, 20)))))
    written = onnx_model(quantized)
    assert dims((*written.graph.input, *written.graph.output)) == [["batch", "sequence", 24]] * 2
    scales = [float(params.scale) for params in quantized.plan.activations.values() if np.ndim(params.scale) == 0]
    assert_equal_at_each_size(quantized, written, rng, max(scales))


def test_a_module_s_sizes_are_computed_where_a_shape_has_several(rng: np.random.Generator) -> None:
    batch, sequence = (tirx.Var(name, "int64") for name in ("batch", "sequence"))
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((batch, sequence, 24), "float32"))
    parameters = relax.const(0.05, "float32"), relax.const(3, "int8")
    shapes = [(batch * sequence, 3, 8), (batch, sequence * 3, 8), (batch, sequence, 24), (3, sequence, 8 * batch)]
    with builder.function("main", [x]):
        with builder.dataflow():
            value = builder.emit(relax.op.quantize(x, *parameters, axis=-1, out_dtype="int8"))
            value = builder.emit(relax.op.dequantize(value, *parameters, axis=-1))
            for shape in shapes:
                value = builder.emit(relax.op.reshape(value, shape))
            result = builder.emit_output(value, "y")
        builder.emit_func_output(result)
    model = octavo.load(builder.get())
    written = onnx_model(model)
    assert dims(written.graph.input) == [["batch", "sequence", 24]]
    assert dims(written.graph.output)[0][:2] == [3, "sequence"]
    assert_equal_at_each_size(model, written, rng, 0)
