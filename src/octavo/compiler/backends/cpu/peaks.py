"""Loops that reach a core's peak: as many multiply-accumulates as it can do, hardly reading memory. Measures nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm.script.ir_builder import tirx as _builder

from ....ir.graph.kernel_attributes import KERNEL_ATTR
from .kernels import AVX2, AVX512_VNNI
from .kernels.language.vectors import load, prim_func, store
from .kernels.language.x86.vector import dot, multiply_pairs

# TVM ships no types for its builders.
T: Any = _builder
_STEPS, _ACCUMULATORS, _LANES = 50_000, 12, 16
_NARROW_ACCUMULATORS = 5  # of two registers of 256 bits, of which there are 16


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PeakLoop:
    """A PrimFunc over two flat buffers of `dtype`, of these `sizes`, and the multiply-accumulates of one call."""

    func: tvm.tirx.PrimFunc
    dtype: str
    sizes: tuple[int, int]
    macs: int


def integer_peak_loop(isa: str) -> PeakLoop | None:
    """Return the loop of an ISA's dot product of bytes; None where no loop of ours is known to reach its peak."""
    if isa == AVX2:
        return _word_loop()
    if isa != AVX512_VNNI:
        return None

    def step(acc: Any, x: Any, w: Any) -> Any:
        return dot(acc, T.reinterpret("uint8x64", x), T.reinterpret("int8x64", w))

    return _loop("int32", step, macs=64)


def _word_loop() -> PeakLoop:
    """Return the loop of AVX2's exact product, pairs of words: a tile that fits 16 registers, its operands in the first cache.

    Registers alone don't reach it: sums that are factors of the next product wait for each other, and products of what does not
    change leave the loop.
    """
    pixels, steps, lanes = _NARROW_ACCUMULATORS, 128, _LANES // 2
    size = pixels * _LANES
    weights_at = pixels * steps

    def body(values: Any, out: Any) -> None:
        acc = T.alloc_buffer((size,), "int32", scope="local")
        for i in range(pixels):
            store(acc, i * _LANES, T.broadcast(T.int32(0), _LANES), _LANES)
        with T.serial(0, _STEPS // steps), T.serial(0, steps) as step:
            halves = [T.Bind(load(values, weights_at + step * _LANES + half * lanes, lanes)) for half in range(2)]
            for i in range(pixels):
                x = T.Bind(T.reinterpret("int16x16", T.broadcast(values[i * steps + step], lanes)))
                for half, w in enumerate(halves):
                    at = i * _LANES + half * lanes
                    product = multiply_pairs(x, T.reinterpret("int16x16", w), lanes)
                    store(acc, at, load(acc, at, lanes) + product, lanes)
        for i in range(pixels):
            store(out, i * _LANES, load(acc, i * _LANES, _LANES), _LANES)

    sizes = weights_at + steps * _LANES, size
    func: Any = prim_func([("values", sizes[0], "int32"), ("out", size, "int32")], body).with_attr(KERNEL_ATTR, "peak")
    return PeakLoop(func=func, dtype="int32", sizes=sizes, macs=_STEPS // steps * steps * size * 2)


def float_peak_loop() -> PeakLoop:
    """Return the loop of 16-lane fused multiply-adds of float32."""
    return _loop("float32", lambda acc, x, w: acc + x * w, macs=_LANES)


def _loop(dtype: str, step: Callable[[Any, Any, Any], Any], *, macs: int) -> PeakLoop:
    size = _ACCUMULATORS * _LANES
    zero = T.broadcast(tvm.tirx.const(0, dtype), _LANES)

    def body(values: Any, out: Any) -> None:
        acc = T.alloc_buffer((size,), dtype, scope="local")
        for i in range(_ACCUMULATORS):
            store(acc, i * _LANES, zero, _LANES)
        x, w = T.Bind(load(values, 0, _LANES)), T.Bind(load(values, _LANES, _LANES))
        with T.serial(0, _STEPS):
            for i in range(_ACCUMULATORS):
                store(acc, i * _LANES, step(load(acc, i * _LANES, _LANES), x, w), _LANES)
        for i in range(_ACCUMULATORS):
            store(out, i * _LANES, load(acc, i * _LANES, _LANES), _LANES)

    func: Any = prim_func([("values", 2 * _LANES, dtype), ("out", size, dtype)], body).with_attr(KERNEL_ATTR, "peak")
    return PeakLoop(func=func, dtype=dtype, sizes=(2 * _LANES, size), macs=_STEPS * _ACCUMULATORS * macs)
