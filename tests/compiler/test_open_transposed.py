"""Transposed convolutions of open height and width: kernels as for known sizes, and the bytes of the executable of that size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import octavo
from octavo.ir.graph import Model

CASES = {
    "doubled": {"kernel_shape": [2, 2], "strides": [2, 2]},
    "cut at both ends": {"kernel_shape": [4, 4], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    "padded behind": {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]},
    "two strides": {"kernel_shape": [5, 3], "strides": [3, 2], "pads": [0, 1, 0, 1]},
    "grouped": {"kernel_shape": [4, 4], "strides": [2, 2], "pads": [1, 1, 1, 1], "group": 4},
}


def model_of(case: str) -> Model:
    rng = np.random.default_rng(1)
    attributes = CASES[case]
    shape = 8, 12 // attributes.get("group", 1), *attributes["kernel_shape"]
    constants = {"w": rng.normal(size=shape), "b": rng.normal(size=12)}
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("ConvTranspose", ["r", "w", "b"], ["t"], **attributes),
        helper.make_node("Relu", ["t"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "transposed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 8, "h", "w"))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in constants.items()],
    )
    return octavo.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


@pytest.mark.parametrize("case", CASES)
def test_any_size_equals_the_executable_of_that_size(case: str, rng: np.random.Generator) -> None:
    model = model_of(case)
    samples = [{"x": rng.normal(size=(1, 8, *size)).astype(np.float32)} for size in ((5, 7), (9, 4), (12, 12), (3, 20))]
    quantized = octavo.quantize(model, octavo.profile(model, samples), preset="fast")
    for each, op in ((model, "nn.conv2d_transpose"), (quantized, "conv2d_transpose")):
        executable = octavo.compile(each, threads=2)
        [kernel] = [found.kernel for found in octavo.explain(executable).ops if found.op == op]
        assert kernel
        for n, h, w in ((1, 1, 1), (2, 3, 18)):
            data = rng.normal(size=(n, 8, h, w)).astype(np.float32)
            module = relax.transform.BindSymbolicVars({"n": n, "h": h, "w": w})(each.module)
            [own] = octavo.compile(replace(each, module=module, sizes={}))(data).values()
            [given] = executable(data).values()
            assert given.shape == own.shape
            assert given.tobytes() == own.tobytes()
