"""ONNX models that others quantized: the shared QOperator files, and files quantized on the spot, against ONNX Runtime.

Reduced to keep the suite short; benchmarks/onnx_quantizers.py and benchmarks/accuracy.py run everything. On so few images a class
may hang on a near tie, so what is compared is the logits: equal to the session that computes in integers but for a few values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnxruntime import quantization

import accuracy
import datasets
import octavo
import onnx_quantizers
from octavo.cli.demo import DATA
from reference_sessions import reference_session


@pytest.mark.parametrize("part", ["mobilenet_v2_1.0_224_qoperator", "dscnn_kws_qoperator"])
def test_qoperator_models_choose_onnx_runtime_s_classes(shared, part):
    (case,) = [case for case in accuracy.CASES if part in case.file]
    result = accuracy.measure(case, limit=20)
    assert result.agreement >= 0.99
    assert result.top1 == pytest.approx(result.peer_top1, abs=0.005)
    assert result.heavy_float_ops == ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Digits(onnx_quantizers.Network):
    """The demonstration's classifier: convolutions and a matmul, compiled in a tenth of the time that the large ones take."""

    def images(self, *, calibration, limit, mirrored=False):
        assert not mirrored
        with np.load(DATA / "digits.npz") as digits:
            chosen = digits["images"][digits["held_out"] != calibration][:limit]
        return [image[None, None].astype(np.float32) / 16 for image in chosen]


@pytest.fixture
def digits(monkeypatch):
    # An absolute path stands for itself behind the folder of the shared models.
    network = Digits(file=str(DATA / "digits.onnx"), preprocess=datasets.plus_minus_one)
    monkeypatch.setitem(onnx_quantizers.NETWORKS, "digits", network)


@pytest.mark.parametrize("variant", ["qdq_u8s8_per_channel", "qdq_quantized_at_run_time", "qdq_u8u8", "qoperator_s8s8"])
def test_quantized_on_the_spot_by_onnx_runtime(shared, digits, variant):
    result = onnx_quantizers.measure("digits", variant, calibration=3, evaluation=3)
    check(result)
    assert result.theirs_integer[result.counts] == result.heavy
    assert result.values_differ[result.counts] == 0


@pytest.fixture
def fire(monkeypatch, tmp_path):
    """SqueezeNet's ops on digits: NNCF's time, which is of a layer, is most of what the network itself takes."""
    rng = np.random.default_rng(5)
    shapes = {"w": (16, 1, 3, 3), "s": (8, 16, 1, 1), "e": (16, 8, 1, 1), "f": (16, 8, 3, 3), "c": (10, 32, 1, 1)}
    convs = {name: f"Conv<pads={[shape[2] // 2] * 4}>" for name, shape in shapes.items()}
    nodes = f"""a = {convs["w"]}(x, w, wb) b = Relu(a) p = MaxPool<kernel_shape=[3, 3], strides=[2, 2]>(b)
        q = {convs["s"]}(p, s, sb) r = Relu(q) t = {convs["e"]}(r, e, eb) u = Relu(t) v = {convs["f"]}(r, f, fb) z = Relu(v)
        k = Concat<axis=1>(u, z) l = {convs["c"]}(k, c, cb) m = Relu(l) n = GlobalAveragePool(m) y = Flatten(n)"""
    graph = onnx.parser.parse_graph(f"g (float[1, 1, 8, 8] x) => (float[1, 10] y) {{ {nodes} }}")
    values = {name: rng.normal(scale=np.prod(shape[1:]) ** -0.5, size=shape) for name, shape in shapes.items()}
    values |= {f"{name}b": rng.normal(scale=0.1, size=shape[0]) for name, shape in shapes.items()}
    graph.initializer.extend(numpy_helper.from_array(value.astype(np.float32), name) for name, value in values.items())
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, tmp_path / "fire.onnx")
    network = Digits(file=str(tmp_path / "fire.onnx"), preprocess=datasets.plus_minus_one)
    monkeypatch.setitem(onnx_quantizers.NETWORKS, "fire", network)


def test_quantized_on_the_spot_by_nncf(shared, fire):
    """ONNX Runtime computes a part of it in float, and rounds biases: its logits differ from Octavo's, and from the file's."""
    result = onnx_quantizers.measure("fire", "nncf", calibration=10, evaluation=20)
    check(result)
    assert result.largest <= 0.01
    assert result.exact is not None
    assert result.exact[0] == 1.0


@pytest.mark.parametrize(("weight", "ops"), [("QUInt8", ["Conv", "MatMul"]), ("QInt8", ["MatMul"])])
def test_quantized_at_run_time_by_onnx_runtime(weight, ops, tmp_path):
    """Every step from sums to reals is rounded as the file writes it: the results are ONNX Runtime's bit for bit.

    It has no convolution of int8 weights; where convolutions stay float, the matmul alone is the model.
    """
    rng = np.random.default_rng(3)
    shapes = {"w": (24, 3, 3, 3), "b": (24,), "w2": (16, 24, 1, 1), "b2": (16,), "m": (9, 21), "c": (21,)}
    convs = "a = Conv<pads=[1, 1, 1, 1]>(x, w, b) r = Relu(a) d = Conv(r, w2, b2)" if "Conv" in ops else "d = Identity(x)"
    nodes = f"{convs} e = MatMul(d, m) y = Add(e, c)"
    graph = onnx.parser.parse_graph(f"g (float[2, 3, 9, 9] x) => (float[2, n, 9, 21] y) {{ {nodes} }}")
    graph.initializer.extend(numpy_helper.from_array(rng.normal(size=s).astype(np.float32), n) for n, s in shapes.items())
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
    path = tmp_path / "dynamic.onnx"
    weight_type = quantization.QuantType[weight]
    quantization.quantize_dynamic(model, path, weight_type=weight_type, per_channel=ops == ["MatMul"])
    x = rng.normal(size=(2, 3, 9, 9)).astype(np.float32)
    executable = octavo.compile(octavo.load(path))
    assert all(op.integer for op in octavo.explain(executable).ops if op.macs)
    np.testing.assert_array_equal(executable(x)["y"], reference_session(path).run(None, {"x": x})[0])


def check(result: onnx_quantizers.Result) -> None:
    assert result.loads == "yes"
    assert result.heavy > 0
    assert result.heavy_integer == result.heavy, result.float_ops
