"""The float64 evaluation of QDQ files in the benchmarks against ONNX Runtime's in float32: equal but for roundings."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from exact_qdq import ExactEvaluation
from reference_sessions import reference_session

RNG = np.random.default_rng(5)
CONSTANTS = {
    "w": RNG.normal(size=(8, 3, 3, 2)),
    "b": RNG.normal(size=8),
    "depthwise": RNG.normal(size=(8, 1, 3, 3)),
    "grouped": RNG.normal(size=(4, 4, 1, 1)),
    "six": np.array(6.0),
    "zero": np.array(0.0),
    "none": np.zeros(0),
    "twice": np.array([1.0, 1.0, 2.0, 2.0]),
    "scale": np.array(0.05),
    "scales": RNG.uniform(0.01, 0.1, 8),
}
INTEGERS = {
    "u": np.uint8(7),
    "points": RNG.integers(-20, 20, 8).astype(np.int8),
    "first": np.array([1, 0]),
    "last": np.array([9, 100]),
    "axes": np.array([2, 3]),
    "steps": np.array([2, 1]),
    "rows": np.array([0, 4, -1]),
}
BODIES = {
    "conv": "y = Conv<pads=[1, 0, 2, 1], strides=[2, 1], dilations=[1, 2]>(x, w, b)",
    "depthwise": """c = Conv<auto_pad="SAME_UPPER", strides=[2, 2]>(x, w) r = Clip(c, zero, six)
        y = Conv<auto_pad="SAME_LOWER", group=8, strides=[2, 2]>(r, depthwise, b)""",
    "grouped": "c = Conv(x, w, b) y = Conv<group=2>(c, grouped)",
    "pool": "a = MaxPool<kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]>(x) m = Sigmoid(a) y = Mul(a, m)",
    "moved": """a = Slice(x, first, last, axes, steps) c = Resize<mode="nearest">(a, none, twice) d = Concat<axis=1>(c, c)
        r = Reshape(d, rows) t = Transpose<perm=[0, 2, 1]>(r) y = Relu(t)""",
    "mean": "g = GlobalAveragePool(x) f = Flatten(g) i = Identity(f) s = Add(i, i) y = Softmax(s)",
    "quantized": "q = QuantizeLinear(x, scale, u) y = DequantizeLinear(q, scale, u)",
    "by channel": """c = Conv(x, w) q = QuantizeLinear<axis=1>(c, scales, points) d = DequantizeLinear<axis=1>(q, scales, points)
        y = Add(d, zero)""",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_every_op(rng, body, tmp_path):
    graph = onnx.parser.parse_graph(f"g (float[2, 3, 13, 12] x) => (float y) {{ {body} }}")
    values = {**{name: value.astype(np.float32) for name, value in CONSTANTS.items()}, **INTEGERS}
    used = {name for node in graph.node for name in node.input}
    graph.initializer.extend(numpy_helper.from_array(np.asarray(values[name]), name) for name in sorted(used & set(values)))
    graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8), tmp_path / "m.onnx")
    x = rng.normal(size=(2, 3, 13, 12)).astype(np.float32)
    (want,) = reference_session(tmp_path / "m.onnx").run(None, {"x": x})
    got = ExactEvaluation(tmp_path / "m.onnx")(x)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
