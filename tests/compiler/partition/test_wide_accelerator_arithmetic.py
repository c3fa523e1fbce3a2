"""Activations of 16 bits in the integers of accelerators: each op equals its oracle, and what no kernel has says why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from executed import compare
from octavo.target import ELEMENTWISE, OpSupport, TargetDescription
from qdq_graph import Qdq, graph, round_as

op: Any = relax.op
SHAPES = {"x": (1, 8, 6, 6), "z": (1, 8, 6, 6), "a": (2, 3, 24), "b": (2, 24, 5)}


def described(word: str) -> TargetDescription:
    form = "shift" if word.startswith("shift") else "fixed_point"
    how: dict[str, Any] = {"requantize": form, "rounding": word.removeprefix(f"{form}_"), "activations": ("int16",)}
    how |= {"scales": "power_of_two" if form == "shift" else "any"}
    weighted = [OpSupport(op=name, weights=("int8",), fusions=("bias",), **how) for name in ("nn.conv2d", "matmul")]
    names = ("batch_matmul", "add", "subtract", "multiply", "nn.avg_pool2d", "mean", "sum", "concat", "reshape", "nn.softmax")
    return TargetDescription(name="npu", ops=(*weighted, *(OpSupport(op=name, **how) for name in (*names, ELEMENTWISE))))


def net(word: str, dtype: str, rng: np.random.Generator) -> tuple[tvm.IRModule, dict[str, np.ndarray]]:
    """One op of each kind, of random integers; scales are powers of two for a shift."""
    is_shift, info = word.startswith("shift"), np.iinfo(dtype)
    inputs = {name: rng.integers(info.min, info.max + 1, shape).astype(dtype) for name, shape in SHAPES.items()}
    kernels = [rng.integers(-127, 128, shape).astype(np.int8) for shape in ((4, 8, 3, 3), (8, 1, 3, 3), (24, 7))]
    zero = 0 if dtype == "int16" else 32768

    def params(scale: float) -> tuple[float, int]:
        return (2.0 ** round(np.log2(scale)) if is_shift else scale), zero

    def body(writer: Any, given: dict[str, Any]) -> Any:
        qdq = Qdq(writer, dtype)
        scales = {"x": 0.0021, "z": 0.0033, "a": 0.0021, "b": 0.0033}
        x, z, a, b = (qdq.dequantize(name, given[name], params(scale)) for name, scale in scales.items())
        by_channel = [params(0.011 * factor)[0] for factor in (1.0, 2.3, 0.7, 4.1)]
        bias = op.dequantize(
            relax.const(np.arange(7, dtype=np.int32) * 900), relax.const(params(0.0021)[0] * 2**-7), relax.const(0)
        )
        product = writer.emit("_m", op.matmul(a, qdq.weight("m", kernels[2], params(2**-7)[0])))
        made = {
            "conv": (op.nn.conv2d(x, qdq.weight("w", kernels[0], by_channel), padding=(1, 1)), 0.9),
            "depthwise": (op.nn.conv2d(x, qdq.weight("d", kernels[1], params(0.011)[0]), groups=8), 0.3),
            "dense": (op.add(product, writer.emit("bias", bias)), 0.2),
            "product": (op.matmul(a, b), 1.0),
            **{name: (function(x, z), 0.0041) for name, function in (("sum", op.add), ("difference", op.subtract))},
            "times": (op.multiply(x, z), 0.21),
            "mean": (op.mean(x, [2, 3], keepdims=True), 0.0017),
            "total": (op.sum(x, [1]), 0.02),
            "average": (op.nn.avg_pool2d(x, (2, 2), (2, 2)), 0.0021),
            "scaled_average": (op.nn.avg_pool2d(x, (3, 3), (1, 1)), 0.0046),
            "gelu": (op.nn.gelu(z), 0.0033),
            "joined": (op.concat([x, z], 1), 0.0041),
            "softmax": (op.nn.softmax(x), 2.0**-15),
        }
        results = [(name, writer.emit(f"f_{name}", value), params(scale)) for name, (value, scale) in made.items()]
        return relax.Tuple([qdq.quantize(name, value, quant, is_output=True) for name, value, quant in results])

    return round_as(graph({name: (shape, dtype) for name, shape in SHAPES.items()}, body), word), inputs


ALL = {"conv2d": 2, "matmul": 1, "add": 1, "sub": 1, "mul": 1, "reduce": 2, "lookup": 1, "concat": 1}


@pytest.mark.parametrize(
    "word",
    ["shift_half_up", "shift_half_away", "shift_half_even", "fixed_point_once", "fixed_point_twice", "fixed_point_twice_away"],
)
def test_ops_of_int16_are_computed_as_their_quantizes_say(rng, word: str) -> None:
    module, inputs = net(word, "int16", rng)
    found = compare(module, described(word), inputs)
    assert found.differences == []
    is_shift = word.startswith("shift")
    assert found.compared == {**ALL, "pool2d": 2 if is_shift else 1, **({"batch_matmul": 1} if is_shift else {})}
    only = f"no kernel rounds {{}} {word}, only half_even; target npu rounds it {word}"
    assert found.rejections["f_softmax"] == only.format("nn.softmax")
    if not is_shift:
        assert found.rejections["f_scaled_average"] == only.format("nn.avg_pool2d")
        assert found.rejections["f_product"].startswith(f"a sum of a @ b can reach {24 * 2**30}; its factor allows ")


def test_sums_beyond_what_a_factor_of_31_bits_takes_stay_float() -> None:
    def body(writer: Any, given: dict[str, Any]) -> Any:
        qdq = Qdq(writer, "int16")
        weight = qdq.weight("w", np.full((2000, 2), 127, np.int8), 0.011)
        product = writer.emit("f", op.matmul(qdq.dequantize("x", given["x"], (0.0021, 0)), weight))
        return qdq.quantize("y", product, (0.9, 0), is_output=True)

    module = round_as(graph({"x": ((3, 2000), "int16")}, body), "fixed_point_once")
    found = compare(module, described("fixed_point_once"), {"x": np.zeros((3, 2000), np.int16)})
    assert found.rejections["f"].startswith(f"a sum of y_q can reach {2000 * 127 * 2**15}; its factor allows ")
