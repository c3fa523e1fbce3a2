"""Roundings that no kernel of Octavo has for an op: a back end's own code may take it, and its composite says the word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import octavo
from octavo.compiler.backends import Backend
from octavo.ir.composites.attributes import read_composites
from octavo.ir.graph.partition_state import read_state
from octavo.target import OpSupport, TargetDescription
from qdq_graph import Qdq, graph, round_as

op: Any = relax.op
OPS = {
    "conv2d_transpose": "nn.conv2d_transpose",
    "softmax": "nn.softmax",
    "log_softmax": "nn.log_softmax",
    "layer_norm": "nn.layer_norm",
    "resize": "image.resize2d",
}


class Npu(Backend):
    """Takes what its description says; generates nothing."""

    def __init__(self, description: TargetDescription) -> None:
        self.description = description

    def emit(self, *_: Any) -> None:
        raise NotImplementedError


def net(word: str) -> tvm.IRModule:
    def body(writer: Any, params: dict[str, Any]) -> Any:
        qdq = Qdq(writer, "int8")
        x = qdq.dequantize("x", params["x"], (0.25, 0))
        ones = relax.const(np.ones(8, np.float32))
        made = {
            "conv2d_transpose": op.nn.conv2d_transpose(x, qdq.weight("w", np.ones((4, 3, 2, 2), np.int8), 0.5), strides=(2, 2)),
            "softmax": op.nn.softmax(x),
            "log_softmax": op.nn.log_softmax(x),
            "layer_norm": op.nn.layer_norm(x, ones, ones, axes=[-1]),
            "resize": op.image.resize2d(x, (12, 16), method="linear", coordinate_transformation_mode="half_pixel"),
        }
        written = {name: writer.emit(f"f_{name}", value) for name, value in made.items()}
        return relax.Tuple([qdq.quantize(name, value, (0.25, 0), is_output=True) for name, value in written.items()])

    return round_as(graph({"x": ((1, 4, 6, 8), "int8")}, body), word)


@pytest.mark.parametrize(("form", "rounding"), [("shift", "half_up"), ("shift", "half_even"), ("fixed_point", "twice_away")])
def test_a_back_end_takes_what_no_kernel_rounds_so(form: str, rounding: str) -> None:
    how: dict[str, Any] = {"activations": ("int8",), "requantize": form, "rounding": rounding}
    how |= {"scales": "power_of_two" if form == "shift" else "any", "weights": ("int8",)}
    description = TargetDescription(name="npu", ops=tuple(OpSupport(op=name, **how) for name in OPS.values()))
    model = octavo.load(net(f"{form}_{rounding}"))
    taken = read_composites(octavo.partition(model, target=Npu(description))).values()
    said = {each.op_name: (each.quantize_info["requantize"], each.quantize_info["rounding"]) for each in taken}
    assert {name: words for name, words in said.items() if name in OPS} == dict.fromkeys(OPS, (form, rounding))
    left = octavo.partition(model, target=description)
    assert not [each for each in read_composites(left).values() if each.op_name in OPS]
    reasons = read_state(left).rejections
    for name, kernel in OPS.items():
        assert f"no kernel rounds {kernel} {form}_{rounding}" in str(reasons[f"f_{name}"])
