"""quantize_info always says how a composite computes: requantize, rounding, accumulator_bits, overflow and clamp."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import octavo
from octavo.compiler.partition.pipeline import integer_regions
from octavo.ir.composites.attributes import read_composites
from octavo.ir.composites.base import FloatOp
from octavo.target import CPU
from qdq_graph import Qdq, graph, round_as

op: Any = relax.op
X, Y = (0.04, 3), (0.05, 11)
SYMMETRIC = (0.04, 0)
KEYS = ("requantize", "rounding", "accumulator_bits", "clamp")
NONE = ("none", "none", None, None)
HALF_EVEN = ("float_multiplier", "half_even", 32, None)
CHANGED = ("float_multiplier", "half_even", None, None)
TAPS = np.ones((4, 4, 1, 1), np.int8)


def of(function: Any, *, x=X, y: Any = Y, dtype: str = "int8", rounding: str = "half_even", shape=(1, 4, 6, 6)) -> tvm.IRModule:
    """quantize(function(dequantize(a), dequantize(b), qdq)), or without the quantize where there are no parameters `y`."""

    def body(writer, params):
        qdq = Qdq(writer, dtype)
        a, b = (qdq.dequantize(name, params[name], x) for name in "ab")
        value = function(a, b, qdq)
        if y is None:
            return writer.emit("y", value, is_output=True)
        return qdq.quantize("y", writer.emit("f", value), y, is_output=True)

    module = graph({"a": (shape, dtype), "b": (shape, dtype)}, body)
    return round_as(round_as(module, rounding), rounding if y is None else "half_even", "dequantize")


def conv(a: Any, _: Any, qdq: Qdq) -> Any:
    return op.nn.conv2d(a, qdq.weight("w", TAPS, 0.5))


def clipped_conv(a: Any, b: Any, qdq: Qdq) -> Any:
    return op.clip(qdq.writer.emit("conv", conv(a, b, qdq)), 0.0, 1.0)


def resized(a: Any, _: Any, __: Any) -> Any:
    return op.image.resize2d(a, relax.ShapeExpr((12, 12)), method="linear", coordinate_transformation_mode="half_pixel")


def batch_product(a: Any, b: Any, _: Any) -> Any:
    return op.matmul(a, b)


def average(a: Any, _: Any, __: Any) -> Any:
    return op.nn.avg_pool2d(a, (2, 2), (2, 2))


CASES: dict[str, tuple[tvm.IRModule, tuple[Any, ...]]] = {
    "conv2d": (of(conv), HALF_EVEN),
    "conv2d with a clamp": (of(clipped_conv), ("float_multiplier", "half_even", 32, [11, 31])),
    "conv2d to float32": (of(clipped_conv, y=None), ("float_multiplier", "fused", 32, [0.0, 1.0])),
    "conv2d of int16": (of(conv, dtype="int16", y=(4.0, 0)), ("float_multiplier", "half_even", 64, None)),
    "conv2d of int16 in fixed point": (
        of(conv, x=SYMMETRIC, dtype="int16", y=(4.0, 0), rounding="fixed_point"),
        ("fixed_point", "reduced", 64, None),
    ),
    "batch_matmul": (of(batch_product), HALF_EVEN),
    "add": (of(lambda a, b, _: op.add(a, b)), CHANGED),
    "add in integers": (of(lambda a, b, _: op.add(a, b), rounding="half_up"), ("fixed_point", "half_up", 32, None)),
    "add of int16": (
        of(lambda a, b, _: op.add(a, b), x=SYMMETRIC, y=(0.05, 0), dtype="int16", rounding="fixed_point"),
        ("fixed_point", "fixed_point", 64, None),
    ),
    "multiply": (
        of(lambda a, b, _: op.multiply(a, b), rounding="half_even_stored"),
        ("float_multiplier", "half_even_stored", 32, None),
    ),
    "maximum": (of(lambda a, b, _: op.maximum(a, b), y=X), NONE),
    "sigmoid": (of(lambda a, *_: op.sigmoid(a)), NONE),
    "softmax": (of(lambda a, *_: op.nn.softmax(a)), HALF_EVEN),
    "log_softmax": (of(lambda a, *_: op.nn.log_softmax(a)), ("fixed_point", "half_up", 32, None)),
    "average": (of(average, y=X, rounding="half_away"), ("float_multiplier", "half_away", 32, None)),
    "average in float32": (of(average, rounding="float32"), ("float_multiplier", "float32", None, None)),
    "maximum of windows": (of(lambda a, *_: op.nn.max_pool2d(a, (2, 2), (2, 2)), y=X), NONE),
    "mean": (of(lambda a, *_: op.mean(a, [1])), HALF_EVEN),
    "argmax": (of(lambda a, *_: op.argmax(a, 1), y=None), NONE),
    "resize": (of(resized, y=X, rounding="half_up"), ("shift", "half_up", 32, None)),
    "resize of int16": (
        of(resized, y=X, dtype="int16", rounding="fixed_point"),
        ("shift", "half_away", 64, None),
    ),
    "resize in float32": (of(resized, y=X, rounding="float32"), ("float_multiplier", "float32", None, None)),
    "reshape": (of(lambda a, *_: op.reshape(a, (4, 36)), y=X), NONE),
    "reshape and change": (of(lambda a, *_: op.reshape(a, (4, 36))), CHANGED),
    "relu": (of(lambda a, *_: op.nn.relu(a), y=X), ("none", "none", None, [3, 127])),
    "concat": (of(lambda a, b, _: op.concat([a, b], 1), y=X), NONE),
    "concat and change": (of(lambda a, b, _: op.concat([a, b], 1)), CHANGED),
    "compare": (of(lambda a, b, _: op.greater(a, b), y=None), ("none", "integers", None, None)),
    "compare in fixed point": (
        of(lambda a, b, _: op.greater(a, b), y=None, rounding="fixed_point"),
        ("fixed_point", "fixed_point", None, None),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_small_graphs(case: str) -> None:
    module, expected = CASES[case]
    found = [
        tuple(each.quantize_info[key] for key in KEYS)
        for each in read_composites(integer_regions(module, CPU).module).values()
        if each.kind not in ("octavo.quantize", "octavo.dequantize")
    ]
    assert found == [expected]


def test_edges() -> None:
    module = graph(
        {"x": ((4,), "float32")},
        lambda writer, params: writer.emit(
            "y",
            op.dequantize(
                writer.emit("q", op.quantize(params["x"], relax.const(0.5), relax.const(3))), relax.const(0.5), relax.const(3)
            ),
            is_output=True,
        ),
    )
    found = {
        each.kind: tuple(each.quantize_info[key] for key in KEYS)
        for each in read_composites(integer_regions(module, CPU).module).values()
    }
    assert found == {"octavo.quantize": CHANGED, "octavo.dequantize": NONE}


@pytest.mark.parametrize(
    "file",
    [
        "tflite/resnet8_cifar10_int8.tflite",
        "tflite/autoencoder_ad01_int8.tflite",
        "tflite/mobilenet_v1_0.25_128_uint8.tflite",
        "onnx/dscnn_kws_qoperator.onnx",
    ],
)
def test_networks(file: str, shared: Any) -> None:
    composites = read_composites(octavo.partition(octavo.load(shared / "models" / file))).values()
    assert len(composites) > 8
    for each in composites:
        if isinstance(each.op, FloatOp):
            assert each.quantize_info == {}
        else:
            assert set(KEYS) <= set(each.quantize_info), each.name
