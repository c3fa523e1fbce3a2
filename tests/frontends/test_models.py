"""Whole quantized models, imported and run by TVM alone, agree with LiteRT on real input."""

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

from octavo.frontends import load
from tvm_alone import tvm_alone


def inputs_of(shared, name):
    """Real samples where there are some, else noise of the input's type."""
    if name == "dscnn_kws_fp32":
        return (np.load(shared / "data/kws/kws.npz")["x"][:3].astype(np.float32) - 83) * np.float32(0.5847029)
    if name == "resnet8_cifar10_int8":
        return (np.load(shared / "data/cifar10/cifar10.npz")["x"][:3].astype(np.int16) - 128).astype(np.int8)
    rng = np.random.default_rng(0)
    if name.endswith("int8"):
        return rng.integers(-128, 128, (3, 640)).astype(np.int8)
    return rng.standard_normal((3, 640)).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("autoencoder_ad01_fp32", 1e-5),
        ("autoencoder_ad01_int8", 1),
        # LiteRT quantizes this model's activations on the fly for its int8 weights; ours stay float.
        ("dscnn_kws_fp32", 1e-3),
        ("resnet8_cifar10_int8", 1),
    ],
)
def test_agrees_with_litert(shared, name, bound):
    path = shared / f"models/tflite/{name}.tflite"
    model = load(path)
    interpreter = Interpreter(str(path))
    interpreter.allocate_tensors()
    ours = tvm_alone(model.bound(), is_large=True)
    for x in inputs_of(shared, name)[:, None]:
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
        interpreter.invoke()
        expected = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        (actual,) = ours(x)
        assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
        difference = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
        scale = np.abs(expected).max() if actual.dtype == np.float32 else 1
        assert difference.max() <= bound * scale
