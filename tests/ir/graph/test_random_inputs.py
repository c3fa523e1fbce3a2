"""Inputs that are made up: where there is nothing to make, or too much, one line says which input."""

from __future__ import annotations

import onnx
import pytest

import octavo
from octavo.errors import ModelError
from octavo.ir.graph.inputs import random_inputs

NETWORK = '<ir_version: 8, opset_import: ["" : 18]> net (float[N, 3] x, float[N, M] z) => (float[N, 3] y) { y = Relu(x) }'


def test_of_no_elements_or_more_than_the_machine_holds() -> None:
    proto = onnx.parser.parse_model(NETWORK)
    assert [each.shape for each in random_inputs(octavo.load(proto, sizes={"N": 2, "M": 5})).values()] == [(2, 3), (2, 5)]
    for sizes, message in (
        ({"N": 0, "M": 5}, r"^input x of shape \[0, 3\] has no elements, so there is nothing to time; give sizes above 0$"),
        ({"N": 2**20, "M": 2**30}, r"^random values for input z of shape \[1048576, 1073741824\] take 8388608 GiB, and this "),
    ):
        with pytest.raises(ModelError, match=message):
            random_inputs(octavo.load(proto, sizes=sizes))
