"""The sessions that values are compared with: sums whose pairs of products exceed 16 bits come out exact, whatever the CPU."""

import os
import sys

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from child_python import run_python
from reference_sessions import reference_openvino, reference_session

ACTIVATIONS = {"uint8": (0, 256), "int8": (-128, 128)}
FORMS = {
    "qdq": """d = DequantizeLinear(x, s, z) k = DequantizeLinear(w, s, wz) c = Conv(d, k) y = QuantizeLinear(c, ys, z)""",
    "qoperator": "y = QLinearConv(x, s, z, w, s, wz, ys, z)",
    "integer": "y = MatMulInteger(x, m, z, wz)",
}


def written(form: str, dtype: str) -> tuple[onnx.ModelProto, np.ndarray, np.ndarray]:
    """A model, what it is fed, and what it must give: no sum lies near a tie."""
    rng = np.random.default_rng(0)
    x = rng.integers(*ACTIVATIONS[dtype], (1, 32, 4, 6)).astype(dtype)
    w = rng.choice(np.int8([-128, -127, 126, 127]), (40, 32, 1, 1))
    values = {"s": np.float32(2.0**-6), "z": np.array(3, dtype), "w": w, "wz": np.int8(0), "ys": np.float32(4.3)}
    z = int(values["z"])
    if form == "integer":
        x, values["m"] = np.ascontiguousarray(x[0].transpose(1, 2, 0)), np.ascontiguousarray(w[:, :, 0, 0].T)
        expected = (x.astype(np.int32) - z) @ values["m"].astype(np.int32)
    else:
        sums = np.einsum("nchw,oc->nohw", x.astype(np.int32) - z, w[:, :, 0, 0].astype(np.int32))
        limits = np.iinfo(dtype)
        expected = np.clip(np.rint(sums * 2.0**-12 / np.float64(values["ys"])) + z, limits.min, limits.max).astype(dtype)
    graph = onnx.parser.parse_graph(f"g ({dtype}[{', '.join(map(str, x.shape))}] x) => ({expected.dtype} y) {{ {FORMS[form]} }}")
    graph.output[0].type.tensor_type.ClearField("shape")
    used = {name for node in graph.node for name in node.input}
    graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in values.items() if name in used)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8), x, expected


@pytest.mark.parametrize("dtype", ACTIVATIONS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("options", [{}, {"int8_allowed": True}, {"optimized": False}], ids=str)
def test_sums_of_onnx_runtime_are_exact(form: str, dtype: str, options: dict[str, bool]) -> None:
    model, x, expected = written(form, dtype)
    (got,) = reference_session(model, **options).run(None, {"x": x})
    np.testing.assert_array_equal(got, expected)


def test_the_weights_of_a_file_are_exact(tmp_path) -> None:
    """Those beside it, too."""
    model, x, expected = written("integer", "uint8")
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    np.testing.assert_array_equal(reference_session(tmp_path / "m.onnx", optimized=False).run(None, {"x": x})[0], expected)


@pytest.mark.parametrize("dtype", ACTIVATIONS)
def test_sums_of_openvino_are_exact(dtype: str, tmp_path) -> None:
    model, x, expected = written("qdq", dtype)
    onnx.save(model, tmp_path / "m.onnx")
    np.testing.assert_array_equal(reference_openvino(tmp_path / "m.onnx")(x), expected)


def test_a_signal_after_models_of_openvino_s_ended_in_the_order_of_their_making(tmp_path) -> None:
    onnx.save(written("qdq", "uint8")[0], tmp_path / "m.onnx")
    program = """
import faulthandler, gc, signal
from reference_sessions import reference_openvino
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
faulthandler.enable()  # as pytest does: a process without a stack for signals is not asked
models = [reference_openvino(sys.argv[1]) for _ in range(2)]
while models:
    del models[0]
    gc.collect()
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = run_python(program, tmp_path / "m.onnx", env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert (done.stdout, done.returncode) == ("interrupted\n", 0), done.stderr
