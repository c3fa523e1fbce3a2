"""Descriptions and graphs that nobody wrote: whatever is taken equals its oracle in NumPy, bit for bit; the rest says why.

What a description's simulation gives is then what its words mean: evaluated = executed.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from executed import compare
from octavo.target import CPU, OpSupport, TargetDescription
from octavo.target.vocabulary import OPS, REQUANTIZE
from qdq_graph import Qdq, graph, round_as

op: Any = relax.op
SHAPES = {"x": (1, 8, 6, 7), "z": (1, 8, 6, 7), "a": (2, 3, 24), "b": (2, 24, 5)}
WEIGHTED = ("nn.conv2d", "nn.conv2d_transpose", "matmul")


def one_of(rng: np.random.Generator, *choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def drawn(rng: np.random.Generator, dtype: str) -> tuple[TargetDescription, str]:
    """A description of every op, whose arithmetic is drawn, and the word that quantizes say for it."""
    form = one_of(rng, *REQUANTIZE)
    rounding = one_of(rng, *REQUANTIZE[form][:4])
    how: dict[str, Any] = {"requantize": form, "rounding": rounding, "scales": "power_of_two" if form == "shift" else "any"}
    how |= {"activations": (dtype,), "overflow": one_of(rng, "proven", "wraps", "saturates")}
    how |= {"accumulator_bits": int(rng.integers(16, 33)), "wide_accumulator_bits": int(rng.integers(22, 65))}
    more = {"weights": ("int8",), "fusions": one_of(rng, (), ("bias",), ("bias", "nn.relu", "clip"))}
    ops = tuple(OpSupport(op=name, **how, **(more if name in WEIGHTED else {})) for name in OPS)
    return TargetDescription(name="drawn", ops=ops), rounding if form == "float_multiplier" else f"{form}_{rounding}"


def all_ops(rng: np.random.Generator, dtype: str, *, exact: bool) -> tuple[tvm.IRModule, dict[str, np.ndarray]]:
    """One op of each kind, of random integers, scales and zero points; with `exact` scales are powers of two."""
    info = np.iinfo(dtype)
    inputs = {name: rng.integers(info.min, info.max + 1, shape).astype(dtype) for name, shape in SHAPES.items()}
    inputs["f"] = (rng.integers(-90, 90, (1, 8, 6, 7)) * 0.5 * 2.0**-6).astype(np.float32)  # half of them ties of a shift
    shapes = ((4, 8, 3, 3), (8, 1, 3, 3), (24, 7), (8, 2, 2, 2))
    kernels = [rng.integers(-127, 128, shape).astype(np.int8) for shape in shapes]
    middle = 0 if info.min < 0 else 1 << (info.bits - 1)

    def params(about: float) -> tuple[float, int]:
        scale = about * 2.0 ** rng.uniform(-1, 1) * 256 / 2.0**info.bits
        return (2.0 ** round(np.log2(scale)) if exact else scale), middle + one_of(rng, 0, 0, 3, -100)

    def body(writer: Any, given: dict[str, Any]) -> Any:
        qdq = Qdq(writer, dtype)
        scales = {name: params(0.03) for name in SHAPES}
        x, z, a, b = (qdq.dequantize(name, given[name], scales[name]) for name in SHAPES)
        weights = [2.0 ** -rng.integers(6, 9, n) if exact else rng.uniform(0.003, 0.02, n) for n in (4, 8, 7, 8)]
        w = [qdq.weight(f"w{i}", kernels[i], weights[i], axis=1 if i == 2 else 0) for i in range(3)]
        units = relax.const((np.float64(scales["a"][0]) * weights[2]).astype(np.float32))
        bias = op.dequantize(relax.const(rng.integers(-900, 900, 7).astype(np.int32)), units, relax.const(np.zeros(7, np.int32)))
        product = writer.emit("_dense", op.matmul(a, w[2]))
        made = {
            "conv": (op.nn.relu(writer.emit("_conv", op.nn.conv2d(x, w[0], padding=(1, 0, 2, 1), strides=(2, 1)))), 0.4),
            "depthwise": (op.nn.conv2d(x, w[1], groups=8, dilation=(2, 1)), 0.2),
            "transposed": (op.nn.conv2d_transpose(x, qdq.weight("w3", kernels[3], float(weights[3][0])), strides=(2, 2)), 0.3),
            "dense": (op.add(product, writer.emit("bias", bias)), 0.4),
            "product": (op.matmul(a, b), 0.5),
            "sum": (op.add(x, z), 0.05),
            "difference": (op.subtract(x, z), 0.04),
            "times": (op.multiply(x, z), 0.1),
            "mean": (op.mean(x, [2, 3], keepdims=True), 0.02),
            "total": (op.sum(x, [1]), 0.1),
            "average": (op.nn.avg_pool2d(x, (2, 3), (2, 1), padding=(1, 1), count_include_pad=True), 0.03),
            "largest": (op.nn.max_pool2d(x, (2, 2)), 0.03),
            "moved": (op.permute_dims(z, (0, 2, 3, 1)), 0.05),
            "gelu": (op.nn.gelu(z), 0.03),
            "joined": (op.concat([x, z], 1), 0.04),
            "softmax": (op.nn.softmax(x), 1 / 256),
        }
        results = [(name, writer.emit(f"f_{name}", value), params(scale)) for name, (value, scale) in made.items()]
        results.append(("entry", given["f"], params(2.0 ** (info.bits - 14))))
        return relax.Tuple([qdq.quantize(name, value, quant, is_output=True) for name, value, quant in results])

    return graph({**{name: (shape, dtype) for name, shape in SHAPES.items()}, "f": ((1, 8, 6, 7), "float32")}, body), inputs


DRAWS = 6


@pytest.fixture(scope="module", name="counted")
def fixture_counted() -> Counter[str]:
    return Counter()


@pytest.mark.parametrize("seed", range(DRAWS))
def test_what_is_taken_equals_its_oracle(seed: int, counted: Counter[str]) -> None:
    rng = np.random.default_rng(seed)
    dtype = ("int8", "uint8", "int16", "int8", "uint8", "uint16")[seed % 6]
    target, word = drawn(rng, dtype)
    module, inputs = all_ops(rng, dtype, exact=target.ops[0].scales == "power_of_two")
    found = compare(round_as(module, word), target, inputs)
    assert found.differences == [], (word, target.ops[0])
    assert all(found.rejections.values())
    taken = sum(found.compared.values()) + sum(found.without_oracle.values())
    assert taken + len([name for name in found.rejections if name.startswith(("f_", "_", "bias"))]) >= 10
    counted.update(found.compared)


def test_most_ops_were_compared(counted: Counter[str]) -> None:
    assert sum(counted.values()) >= 5 * DRAWS, counted
    assert {"conv2d", "matmul", "add", "quantize"} <= set(counted), counted


def test_the_cpu_s_own_description_is_one_of_them() -> None:
    rng = np.random.default_rng(99)
    module, inputs = all_ops(rng, "int8", exact=False)
    found = compare(module, CPU, inputs)
    assert found.differences == []
    assert sum(found.compared.values()) >= 12, found
