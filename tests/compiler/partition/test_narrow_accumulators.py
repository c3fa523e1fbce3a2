"""Sums that may leave their accumulator: wrapped, or saturated once, as the description says; proven where it says neither."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

import octavo
from executed import compare
from octavo.compiler.backends import Backend
from octavo.ir.composites.attributes import read_composites
from octavo.ir.graph.partition_state import read_state
from octavo.numerics.rounding.narrow_accumulator import NarrowAccumulator
from octavo.target import OpSupport, TargetDescription
from qdq_graph import Qdq, graph, round_as

op: Any = relax.op
WORDS = ("wraps", "saturates")


def described(overflow: str, **fields: Any) -> TargetDescription:
    how = {"activations": ("int8", "int16"), "overflow": overflow, "fusions": ("bias",), **fields}
    weighted = [OpSupport(op=name, weights=("int8",), **how) for name in ("nn.conv2d", "nn.conv2d_transpose", "matmul")]
    edges = [OpSupport(op=name, activations=("int8", "int16")) for name in ("quantize", "dequantize")]
    return TargetDescription(name="npu", ops=(*weighted, OpSupport(op="batch_matmul", **how), *edges))


def products(dtype: str, y: float, rng: np.random.Generator) -> tuple[Any, dict[str, np.ndarray]]:
    """A convolution, a depthwise one, a product with a bias, one of two activations, and for 8 bits a transposed convolution."""
    shapes = {"x": (1, 5, 6, 7), "r": (6, 40), "a": (2, 3, 24), "b": (2, 24, 5)}
    info = np.iinfo(dtype)
    inputs = {name: rng.integers(info.min, info.max + 1, shape).astype(dtype) for name, shape in shapes.items()}
    zero = 0 if dtype == "int16" else 3
    kernels = [rng.integers(-127, 128, shape).astype(np.int8) for shape in ((8, 5, 3, 3), (5, 1, 3, 3), (40, 9), (5, 4, 2, 2))]

    def body(writer: Any, params: dict[str, Any]) -> Any:
        qdq = Qdq(writer, dtype)
        x, r, a, b = (qdq.dequantize(name, params[name], (0.5, zero)) for name in shapes)
        w = [qdq.weight(f"w{i}", values, 0.5, axis=0) for i, values in enumerate(kernels)]
        units = relax.const(np.arange(-4000, 5000, 1000, dtype=np.int32))
        bias = writer.emit("bias", op.dequantize(units, relax.const(0.25), relax.const(0)))
        made = [
            op.nn.conv2d(x, w[0], padding=(1, 1)),
            op.nn.conv2d(x, w[1], groups=5),
            op.add(writer.emit("_m", op.matmul(r, w[2])), bias),
            op.matmul(a, b),
            *([] if dtype == "int16" else [op.nn.conv2d_transpose(x, w[3], strides=(2, 2))]),
        ]
        written = [writer.emit(f"f{i}", each) for i, each in enumerate(made)]
        return relax.Tuple([qdq.quantize(f"y{i}", each, (y, zero), is_output=True) for i, each in enumerate(written)])

    return graph({name: (shape, dtype) for name, shape in shapes.items()}, body), inputs


KINDS = {"conv2d": 2, "matmul": 1, "batch_matmul": 1}


@pytest.mark.parametrize("overflow", WORDS)
@pytest.mark.parametrize(
    ("bits", "rounding", "how"),
    [(16, "half_even", {}), (17, "fixed_point_once", {"requantize": "fixed_point"})],
    ids=["float_multiplier", "fixed_point"],
)
def test_kernels_hold_sums_as_the_accumulator_does(rng, overflow: str, bits: int, rounding: str, how: dict[str, Any]) -> None:
    module, inputs = products("int8", 2.0 ** (bits - 10), rng)
    found = compare(round_as(module, rounding), described(overflow, accumulator_bits=bits, **how), inputs)
    assert found.differences == []
    transposed = {"conv2d_transpose": 1} if rounding == "half_even" else {}
    assert found.compared == {**KINDS, **transposed}, found.rejections


@pytest.mark.parametrize("overflow", WORDS)
def test_kernels_of_16_bits_hold_sums_so_too(rng, overflow: str) -> None:
    module, inputs = products("int16", 2.0**10, rng)
    found = compare(module, described(overflow, wide_accumulator_bits=24), inputs)
    assert found.differences == []
    assert found.compared == KINDS, found.rejections
    proven = compare(module, described("proven", wide_accumulator_bits=24), inputs)
    assert sum(proven.compared.values()) == 0
    assert all("int24 accumulator" in proven.rejections[name] for name in ("f0", "f1", "_m", "f3")), proven.rejections


def test_a_narrow_accumulator_wraps_or_saturates() -> None:
    sums = np.array([-32769, -32768, 0, 32767, 32768, 65536, 2**40 + 5], np.int64)
    assert NarrowAccumulator(bits=16, overflow="wraps").hold(sums).tolist() == [32767, -32768, 0, 32767, -32768, 0, 5]
    held = NarrowAccumulator(bits=16, overflow="saturates").hold(sums)
    assert held.tolist() == [-32768, -32768, 0, 32767, 32767, 32767, 32767]
    assert NarrowAccumulator(bits=64, overflow="wraps").hold(sums).tolist() == sums.tolist()


class Npu(Backend):
    """Takes what its description says; generates nothing."""

    def __init__(self, description: TargetDescription) -> None:
        self.description = description

    def emit(self, *_: Any) -> None:
        raise NotImplementedError


def wide_sum(y: float | None) -> Any:
    """A product of 70000 terms, whose sums leave 32 bits."""

    def body(writer: Any, params: dict[str, Any]) -> Any:
        qdq = Qdq(writer, "int8")
        weight = qdq.weight("w", np.full((70000, 2), 127, np.int8), 0.5)
        product = writer.emit("f", op.matmul(qdq.dequantize("x", params["x"], (0.5, -128)), weight), is_output=y is None)
        return product if y is None else qdq.quantize("y", product, (y, 0), is_output=True)

    return graph({"x": ((1, 70000), "int8")}, body)


ZEROS = {"x": np.zeros((1, 70000), np.int8)}


@pytest.mark.parametrize("overflow", WORDS)
def test_a_back_end_takes_sums_that_no_kernel_adds(overflow: str) -> None:
    module, largest = wide_sum(2.0**22), 70000 * 127 * 255
    reason = compare(module, described(overflow), ZEROS).rejections["f"]
    word = f"its int32 accumulator {overflow}"
    assert reason == f"{word}; kernels add in int32, and its sums can reach {largest}, above {2**31 - 1}"
    taken = octavo.partition(octavo.load(module), target=Npu(described(overflow)))
    (composite,) = [each for each in read_composites(taken).values() if each.kind == "npu.matmul"]
    assert (composite.quantize_info["accumulator_bits"], composite.quantize_info["overflow"]) == (32, overflow)
    refused = octavo.partition(octavo.load(module), target=Npu(described("proven")))
    assert not [each for each in read_composites(refused).values() if each.kind == "npu.matmul"]
    assert f"the int32 accumulator of output channel 0 can reach {largest}" in repr(read_state(refused).declined)


def test_sums_that_end_in_float_are_not_held_by_kernels() -> None:
    found = compare(wide_sum(None), described("wraps", accumulator_bits=16, float_output=True), ZEROS)
    assert found.rejections["f"] == "its int16 accumulator wraps; kernels do so where the result is quantized alone"
