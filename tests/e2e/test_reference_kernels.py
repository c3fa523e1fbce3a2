"""Integers of accelerators equal LiteRT's reference kernels: each op of two networks by itself, and the networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType

import octavo
from octavo.numerics import Window, conv2d, matmul
from octavo.numerics.quantized.binary import combine_in_integers
from octavo.numerics.rounding.fixed_point import fixed_point_multiplier
from qdq_graph import round_as, run_lowered

REFERENCE = ("nn.conv2d", "add", "nn.avg_pool2d", "mean")


class Reference:
    """A file run by the reference kernels; each op's tensors can be read."""

    def __init__(self, path: Any) -> None:
        kinds = {"experimental_op_resolver_type": OpResolverType.BUILTIN_REF, "experimental_preserve_all_tensors": True}
        self.interpreter = Interpreter(str(path), num_threads=1, **kinds)
        self.interpreter.allocate_tensors()
        self.details = {detail["index"]: detail for detail in self.interpreter.get_tensor_details()}
        self.source = self.interpreter.get_input_details()[0]

    def run(self, x: np.ndarray) -> np.ndarray:
        self.interpreter.set_tensor(self.source["index"], x)
        self.interpreter.invoke()
        return self.of(self.interpreter.get_output_details()[0]["index"])

    def of(self, index: int) -> np.ndarray:
        return self.interpreter.get_tensor(index)

    def scales(self, index: int) -> np.ndarray:
        return self.details[index]["quantization_parameters"]["scales"].astype(np.float64)

    def zero_point(self, index: int) -> int:
        return int(self.details[index]["quantization"][1])

    def computed(self, op: dict[str, Any]) -> np.ndarray | None:
        """What the oracles give for an op's own operands; None for an op that is not compared."""
        (x, w, *bias), y = op["inputs"], op["outputs"][0]
        result = {"zero_point": self.zero_point(y), "qmin": int(self.of(y).min()), "qmax": 127, "out_dtype": "int8"}
        if op["op_name"] == "ADD":
            scales = tuple(float(self.scales(each)[0]) for each in (x, w, y))
            zeros = tuple(self.zero_point(each) for each in (x, w, y))
            bounds = {"qmin": result["qmin"], "qmax": 127, "dtype": "int8"}
            how = {"scales": scales, "zero_points": zeros, "rounding": "twice_away"}
            return combine_in_integers("add", self.of(x), self.of(w), **how, **bounds)
        real = self.scales(x)[0] * self.scales(w) / self.scales(y)[0]
        given = {"x_zero_point": self.zero_point(x), "bias": self.of(bias[0]), **result}
        if op["op_name"] == "FULLY_CONNECTED":
            weights = np.ascontiguousarray(self.of(w).T)
            return matmul(self.of(x), weights, multiplier=fixed_point_multiplier(real, "once"), **given)
        weights, size = self.of(w), self.of(x).shape
        is_depthwise = op["op_name"] == "DEPTHWISE_CONV_2D"
        kernel = weights.transpose(1, 2, 0, 3) if is_depthwise else weights.transpose(1, 2, 3, 0)
        out = self.of(y).shape[1:3]
        strides = tuple(-(-size[1 + i] // out[i]) for i in range(2))
        pads = [max((out[i] - 1) * strides[i] + kernel.shape[i] - size[1 + i], 0) for i in range(2)]
        padding = (pads[0] // 2, pads[1] // 2, pads[0] - pads[0] // 2, pads[1] - pads[1] // 2)
        window = Window(strides=strides, padding=padding)
        factor = fixed_point_multiplier(real, "twice_away")
        groups = size[3] if is_depthwise else 1
        return conv2d(self.of(x), np.ascontiguousarray(kernel), window=window, groups=groups, multiplier=factor, **given)


COMPARED = ("CONV_2D", "DEPTHWISE_CONV_2D", "ADD", "FULLY_CONNECTED")


@pytest.mark.parametrize("name", ["dscnn_kws_int8", "resnet8_cifar10_int8"])
def test_oracles_are_the_reference_kernels(name: str, shared: Any, rng: np.random.Generator) -> None:
    reference = Reference(shared / f"models/tflite/{name}.tflite")
    reference.run(rng.integers(-128, 128, reference.source["shape"]).astype(np.int8))
    ops = [op for op in reference.interpreter._get_ops_details() if op["op_name"] in COMPARED]
    assert len(ops) >= 10
    for op in ops:
        np.testing.assert_array_equal(reference.computed(op), reference.of(op["outputs"][0]), err_msg=str(op))


@pytest.mark.parametrize("name", ["dscnn_kws_int8", "resnet8_cifar10_int8"])
def test_a_network_said_to_round_so_equals_the_reference(name: str, shared: Any, rng: np.random.Generator) -> None:
    path = shared / f"models/tflite/{name}.tflite"
    reference = Reference(path)
    module = round_as(octavo.load(path).bound(), "fixed_point_twice_away", results_of=REFERENCE)
    for _ in range(3):
        x = rng.integers(-128, 128, reference.source["shape"]).astype(np.int8)
        np.testing.assert_array_equal(run_lowered(module, x), reference.run(x))
