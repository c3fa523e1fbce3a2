"""ONNX's own node tests of the quantized ops, as the `onnx` package generates them. Scales and zero points are inputs there."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np
import onnx
import pytest

import octavo

MODULES = (
    "convinteger",
    "dequantizelinear",
    "dynamicquantizelinear",
    "matmulinteger",
    "qlinearconv",
    "qlinearmatmul",
    "quantizelinear",
)
FLOAT8 = "8-bit and 4-bit floats are no integers; quantized tensors are integers here"
XFAIL = {
    "dequantizelinear_e4m3fn": FLOAT8,
    "dequantizelinear_e4m3fn_float16": FLOAT8,
    "dequantizelinear_e4m3fn_zero_point": FLOAT8,
    "dequantizelinear_e5m2": FLOAT8,
    "dequantizelinear_float4e2m1": FLOAT8,
    "quantizelinear_e4m3fn": FLOAT8,
    "quantizelinear_e5m2": FLOAT8,
    "quantizelinear_float4e2m1": FLOAT8,
}
"""Cases that cannot pass, with the reason; they must be rejected with one clear error."""


def _cases() -> list[Any]:
    """Import the generators of the package, which collect their cases in a list while they are imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        node = importlib.import_module("onnx.backend.test.case.node")
        for name in MODULES:
            importlib.import_module(f"onnx.backend.test.case.node.{name}")
    return sorted(node._NodeTestCases, key=lambda case: case.name)


CASES = {case.name.removeprefix("test_"): case for case in _cases() if "expanded" not in case.name}


def as_held(value: Any) -> np.ndarray:
    """Integers of less than 8 bits one to a byte, as Octavo takes and gives them."""
    value = onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
    narrow = {"int4": np.int8, "int2": np.int8, "uint4": np.uint8, "uint2": np.uint8}
    return value.astype(narrow[str(value.dtype)]) if str(value.dtype) in narrow else value


def test_the_package_has_the_cases():
    """The list of expected failures names real cases, and no op lost its cases."""
    assert set(XFAIL) <= set(CASES)
    assert len(CASES) >= 30
    for name in MODULES:
        assert any(name in case for case in CASES)


def _marked(name: str) -> Any:
    if name not in XFAIL:
        return name
    return pytest.param(name, marks=pytest.mark.xfail(strict=True, raises=octavo.OctavoError, reason=XFAIL[name]))


@pytest.mark.parametrize("name", [_marked(name) for name in CASES])
def test_node(name):
    case = CASES[name]
    model: onnx.ModelProto = case.model
    executable = octavo.compile(octavo.load(model))
    for inputs, outputs in case.data_sets:
        feeds = {value.name: as_held(array) for value, array in zip(model.graph.input, inputs, strict=True)}
        got = executable(feeds)
        for value, want in zip(model.graph.output, outputs, strict=True):
            want = as_held(want)
            assert got[value.name].dtype == want.dtype
            assert got[value.name].shape == want.shape
            if want.dtype.kind in "iu":
                np.testing.assert_array_equal(got[value.name], want)
            else:
                np.testing.assert_allclose(got[value.name], want, rtol=case.rtol or 1e-3, atol=case.atol or 1e-7)
