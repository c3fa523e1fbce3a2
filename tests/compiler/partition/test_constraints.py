"""Constraints of a target on tensors, attributes and shapes: what breaks one is not outlined, and the reason has numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from octavo.compiler.partition.pipeline import integer_regions
from octavo.target import CPU, OpSupport, TargetDescription
from octavo.target.limits import Limit
from octavo.target.tensor_support import TensorSupport
from qdq_graph import Qdq, graph

op: Any = relax.op
X, Y, Z = (0.25, 3), (0.5, -7), (0.1, 0)


def network() -> tvm.IRModule:
    """A convolution 3x3 of stride 2 with a weight of -128 and a bias; its sum with a constant; max pooling; concatenation."""
    values = np.arange(-128, -128 + 4 * 3 * 9).astype(np.int8).reshape(4, 3, 3, 3)

    def body(writer, params):
        qdq = Qdq(writer, "int8")
        weight = qdq.weight("w", values, [0.5, 0.25, 0.3, 1.0])
        x = qdq.dequantize("x", params["x"], X)
        conv = writer.emit("conv", op.nn.conv2d(x, weight, strides=2, padding=[1, 0, 1, 0]))
        bias = relax.const(np.full((1, 4, 1, 1), 0.5, np.float32))
        conv_q = qdq.quantize("conv_b", writer.emit("conv_b", op.add(conv, bias)), Y)
        other = qdq.weight("other", np.full((1, 4, 1, 1), 9, np.int8), 0.25, zero_point=2)
        total = writer.emit("sum", op.add(qdq.dequantize("conv_b", conv_q, Y), other))
        sum_q = qdq.quantize("sum", total, Z)
        pool = writer.emit("pool", op.nn.max_pool2d(qdq.dequantize("sum", sum_q, Z), pool_size=(2, 2)))
        pool_q = qdq.quantize("pool", pool, Z)
        joined = op.concat([qdq.dequantize("pool", pool_q, Z), qdq.dequantize("again", pool_q, Z)], axis=1)
        return qdq.quantize("joined", writer.emit("joined", joined), Y, is_output=True)

    return graph({"x": ((1, 3, 9, 9), "int8")}, body)


NPU = TargetDescription(
    name="npu",
    ops=(
        OpSupport(op="nn.conv2d", weights=("int8",), weight_range="full", fusions=("bias",)),
        OpSupport(op="add", weights=("int8",)),
        OpSupport(op="nn.max_pool2d"),
        OpSupport(op="concat"),
        OpSupport(op="dequantize"),
        OpSupport(op="quantize"),
    ),
)
TAKEN = {"octavo.conv2d", "octavo.add", "octavo.pool2d", "octavo.concat"}


def changed(name: str, **changes: Any) -> TargetDescription:
    return replace(NPU, ops=tuple(replace(each, **changes) if each.op == name else each for each in NPU.ops))


def partitioned(target: TargetDescription) -> tuple[set[str], dict[str, str]]:
    found = integer_regions(network(), target)
    kinds = {str(func.attrs["Composite"]) for _, func in found.module.functions_items() if "Composite" in (func.attrs or {})}
    return kinds - {"octavo.dequantize", "octavo.quantize"}, {name: each.reason for name, each in found.rejections.items()}


def test_all_is_taken_where_nothing_is_asked() -> None:
    for target in (NPU, CPU):
        kinds, rejections = partitioned(target)
        assert kinds == TAKEN
        assert rejections == {}


def limited(name: str, **numbers: Any) -> dict[str, Any]:
    return {"limits": {name: Limit(**numbers)}}


def of_tensor(role: str, **fields: Any) -> dict[str, Any]:
    return {"tensors": {role: TensorSupport(**fields)}}


CONV = [
    (limited("rank", maximum=3), "its rank is 4, expected at most 3"),
    (limited("batch", minimum=2), "its batch is 1, expected at least 2"),
    (limited("elements", maximum=63), "its elements is 80, expected at most 63"),
    (limited("kernel", one_of=(1, 5)), "its kernel is 3, expected one of 1, 5"),
    (limited("stride", maximum=1), "its stride is 2, expected at most 1"),
    (limited("dilation", minimum=2), "its dilation is 1, expected at least 2"),
    (limited("padding", maximum=0), "its padding is 1, expected at most 0"),
    (limited("groups", minimum=3), "its groups is 1, expected at least 3"),
    (limited("input_channels", multiple_of=2), "its input_channels is 3, expected a multiple of 2"),
    (limited("output_channels", multiple_of=8), "its output_channels is 4, expected a multiple of 8"),
    (limited("inputs", minimum=2), "its inputs is 1, expected at least 2"),
    ({"activation_schemes": ("symmetric",)}, "input x has zero point 3, expected 0 (symmetric)"),
    ({"scales": "power_of_two"}, "weight w has scale 0.30000001, expected a power of two"),
    ({"weight_range": "narrow"}, "weight w holds -128, expected [-127; 127] (weight_range narrow)"),
    ({"weight_granularity": ("per_tensor",)}, "weight w is quantized per axis"),
    ({"activations": ("uint8",)}, "activation x is int8"),
    (of_tensor("output", schemes=("symmetric",)), "output conv_b_q has zero point -7, expected 0 (symmetric)"),
    (of_tensor("output", zero_point=-8), "output conv_b_q has zero point -7, expected -8"),
    (of_tensor("output", scale=0.25), "output conv_b_q has scale 0.5, expected 0.25"),
    (of_tensor("output", dtypes=("uint8",)), "output conv_b_q is int8, expected uint8"),
    (of_tensor("input", zero_point=0), "input x has zero point 3, expected 0"),
    (of_tensor("input0", zero_point=0), "input x has zero point 3, expected 0"),
    (of_tensor("weight", dtypes=("uint8",)), "weight w is int8; the target allows uint8"),
    (of_tensor("weight", scales="power_of_two"), "weight w has scale 0.30000001, expected a power of two"),
    (of_tensor("weight", granularity=("per_tensor",)), "weight w is quantized per axis"),
    (of_tensor("bias", scales="power_of_two"), "has scale 0.075"),
    (of_tensor("bias", dtypes=("int8",)), "is int32, expected int8"),
]
OTHERS = [
    ("add", "sum", {"scales": "power_of_two"}, "output sum_q has scale 0.1, expected a power of two"),
    ("add", "sum", {"weight_schemes": ("symmetric",)}, "input1 constant has zero point 2, expected 0 (symmetric)"),
    ("add", "sum", {"activation_schemes": ("symmetric",)}, "input0 conv_b_q has zero point -7, expected 0 (symmetric)"),
    ("add", "sum", of_tensor("input1", zero_point=1), "input1 constant has zero point 2, expected 1"),
    ("add", "sum", limited("inputs", minimum=2), "its inputs is 1, expected at least 2"),
    ("nn.max_pool2d", "pool", limited("kernel", maximum=1), "its kernel is 2, expected at most 1"),
    ("nn.max_pool2d", "pool", limited("input_channels", multiple_of=8), "its input_channels is 4, expected a multiple of 8"),
    ("concat", "joined", {"same_params": True}, "expected the result's, 0.5 and -7 (same_params)"),
    ("concat", "joined", of_tensor("output", granularity=("per_tensor",), zero_point=0), "has zero point -7, expected 0"),
]


@pytest.mark.parametrize(("name", "core", "changes", "reason"), [*(("nn.conv2d", "conv", *each) for each in CONV), *OTHERS])
def test_what_breaks_a_constraint_is_left_and_the_reason_has_the_numbers(
    name: str, core: str, changes: dict[str, Any], reason: str
) -> None:
    kinds, rejections = partitioned(changed(name, **changes))
    composite = {"nn.conv2d": "conv2d", "nn.max_pool2d": "pool2d"}.get(name, name)
    assert f"octavo.{composite}" not in kinds
    assert reason in rejections[core]


@pytest.mark.parametrize(
    "changes",
    [
        of_tensor("output", dtypes=("int8", "uint8")) | {"activations": ("int8",)},
        of_tensor("weight", schemes=("symmetric",), scales="any") | {"scales": "power_of_two"},
        of_tensor("weight", dtypes=("int8",)) | {"weights": ("uint8",)},
        of_tensor("input", schemes=("asymmetric",)) | of_tensor("output", schemes=("symmetric", "asymmetric")),
        limited("kernel", one_of=(1, 3)),
        limited("padding", maximum=1),
    ],
)
def test_what_keeps_to_all_is_taken(changes: dict[str, Any]) -> None:
    scales = changes.get("scales") == "power_of_two"
    kinds, rejections = partitioned(changed("nn.conv2d", **changes))
    assert ("octavo.conv2d" in kinds) is not scales
    assert not scales or "bias" in rejections["conv"], "the weight may have any scale, and its bias follows it"


def test_what_it_must_not_take_says_so() -> None:
    kinds, rejections = partitioned(replace(NPU, never=("concat",)))
    assert kinds == TAKEN - {"octavo.concat"}
    assert rejections["joined"] == "target npu never takes concat"
