"""Layer normalization of uint8 rows: integer sums, then one multiply-add for each value. Oracle: `numerics.layer_norm`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as B

from ......ir.composites.outputs import Output
from ......numerics.quantized.normalization import LAYER_NORM_MAX_COLUMNS, scaled_epsilon
from ..language.isa import lanes_of
from ..language.kernel import Kernel
from ..language.rounding import requantized
from ..language.vectors import Buffer, Expr, chunked, for_each_vector, intrinsic, load, prim_func, splat, store, worthwhile

_OPERATIONS = 4
"""Elementary operations that a value costs, for the choice of threads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerNormSpec:
    """uint8 [rows, columns] of `scale` to uint8; the input's zero point cancels."""

    rows: int
    columns: int
    scale: float
    epsilon: float
    out_scale: float
    output: Output
    threads: int = 1


def layer_norm(spec: LayerNormSpec, *, gamma: npt.NDArray[np.float32], beta: npt.NDArray[np.float32], isa: str) -> Kernel:
    """Return the kernel of y = (x - mean) / sqrt(variance + epsilon) * gamma + beta; threads share the rows."""
    assert 1 <= spec.columns <= LAYER_NORM_MAX_COLUMNS, "the rule sees to it"
    assert gamma.shape == beta.shape == (spec.columns,), "a factor and an addend for each column"
    size, width = spec.rows * spec.columns, lanes_of(isa)
    scale = np.float32(spec.out_scale)
    constants = tuple((values / scale).astype(np.float32) for values in (gamma, beta))

    def emit(x: Buffer, factors: Buffer, addends: Buffer, y: Buffer) -> None:
        with chunked(spec.rows, worthwhile(spec.threads, size * _OPERATIONS, spec.rows)) as row:
            _emit_row(spec, (x, factors, addends, y), B.Bind(row * spec.columns), width)

    arguments = [
        ("x", size, "uint8"),
        ("gamma", spec.columns, "float32"),
        ("beta", spec.columns, "float32"),
        ("y", size, "uint8"),
    ]
    return Kernel(name="layer_norm", isa=isa, func=prim_func(arguments, emit), constants=constants)


def _emit_row(spec: LayerNormSpec, buffers: tuple[Buffer, Buffer, Buffer, Buffer], base: Expr, width: int) -> None:
    x, factors, addends, y = buffers
    columns = spec.columns
    sums: Any = B.alloc_buffer((2,), "int32", scope="local")
    for place in range(2):
        B.buffer_store(sums, B.int32(0), [place])
    with B.serial(0, columns) as column:
        value = B.Bind(x[base + column].astype("int32"))
        B.buffer_store(sums, sums[0] + value, [0])
        B.buffer_store(sums, sums[1] + value * value, [1])
    total = B.Bind(sums[0])
    wide = B.Bind(total.astype("int64"))
    spread = B.Bind(sums[1].astype("int64") * B.int64(columns) - wide * wide)
    variance = B.Bind(spread.astype("float32") / B.float32(float(np.float32(columns * columns))))
    root = intrinsic("llvm.sqrt", "float32", variance + B.float32(float(scaled_epsilon(spec.epsilon, spec.scale))))
    inverse = B.Bind(B.float32(1) / (root * B.float32(float(columns))))

    def one(start: Expr, lanes: int) -> None:
        distance = load(x, base + start, lanes, "int32") * splat(B.int32(columns), lanes) - splat(total, lanes)
        multiplier = splat(inverse, lanes) * load(factors, start, lanes)
        result = requantized(distance, multiplier, spec.output, lanes, bias=load(addends, start, lanes))
        store(y, base + start, result, lanes)

    for_each_vector(columns, width, 1, one)
