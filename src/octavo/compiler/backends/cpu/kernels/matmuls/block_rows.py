"""Rows of activations as integers of 1 to 3 bytes that share a scale in each block: what products with weights in blocks read.

Each block of a row is a record of uint8: the first digits of all its integers, the second ones, ..., then minus the sum of each
of these as int32, then the scale as float32. The oracle is `numerics.block_integers`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm.script.ir_builder import tirx as B

from ......numerics.quantized.block_matmul import DIGIT_LIMITS, FIRST_EXPONENT, HEADROOM, TOP_BITS
from ..language.kernel import Kernel
from ..language.vectors import Buffer, Expr, chunked, intrinsic, kept, load, prim_func, splat, store, worthwhile

LANES = 16
ROW_DIGITS = 2
"""Of integers that are quantized per row: less their zero point they lie in [-255; 255]."""
_OPERATIONS = 8
_MAGNITUDE_BITS, _INFINITY_BITS, _NAN_BITS = 0x7FFFFFFF, 0x7F800000, 0x7FC00000


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockRowsSpec:
    """float32 [rows, inputs] to records of blocks; or with `is_dynamic` uint8, and float32 scale and zero point of each row."""

    rows: int
    inputs: int
    block: int
    digits: int
    is_dynamic: bool = False
    threads: int = 1

    @property
    def record(self) -> int:
        """Bytes of a block of a row."""
        return record_bytes(self.block, self.digits)

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return self.rows * (self.inputs // self.block) * self.record


def record_bytes(block: int, digits: int) -> int:
    """Return the bytes of a record."""
    return digits * (block + 4) + 4


def block_rows(spec: BlockRowsSpec, *, isa: str) -> Kernel:
    """Return the kernel: x (and its parameters) to the records."""
    x = [("x", spec.rows * spec.inputs, "uint8" if spec.is_dynamic else "float32")]
    if spec.is_dynamic:
        x.append(("parameters", 2 * spec.rows, "float32"))
    blocks = spec.inputs // spec.block

    def emit(x: Buffer, *others: Buffer) -> None:
        *parameters, y = others
        threads = worthwhile(spec.threads, spec.rows * spec.inputs * _OPERATIONS, spec.rows)
        with chunked(spec.rows, threads) as row, B.serial(0, blocks) as block:
            at, to = B.Bind(row * spec.inputs + block * spec.block), B.Bind((row * blocks + block) * spec.record)
            if parameters:
                _centered(spec, x, at, parameters[0], row, y, to)
            else:
                _quantized(spec, x, at, y, to)

    func = prim_func([*x, ("y", spec.size, "uint8")], emit)
    return Kernel(name=f"quantize blocks {spec.block}", isa=isa, func=func)


def _centered(spec: BlockRowsSpec, x: Buffer, at: Expr, parameters: Buffer, row: Expr, y: Buffer, to: Expr) -> None:
    zero_point = B.Bind(splat(parameters[2 * row + 1].astype("int32"), LANES))
    _write(spec, lambda start: load(x, at + start, LANES, "int32") - zero_point, y, to)
    _store_scale(spec, y, to, parameters[2 * row])


def _quantized(spec: BlockRowsSpec, x: Buffer, at: Expr, y: Buffer, to: Expr) -> None:
    largest = _accumulator()
    with B.serial(0, spec.block // LANES) as part:
        bits = B.reinterpret(f"int32x{LANES}", load(x, at + part * LANES, LANES)) & splat(B.int32(_MAGNITUDE_BITS), LANES)
        store(largest, 0, B.max(load(largest, 0, LANES), bits), LANES)
    bits = kept(intrinsic(f"llvm.vector.reduce.smax.v{LANES}i32", "int32", load(largest, 0, LANES)), "int32")
    is_finite = bits < B.int32(_INFINITY_BITS)
    magnitude = kept(B.reinterpret("float32", B.Select(is_finite, bits, B.int32(0))), "float32")
    if spec.digits == 1:
        scale = kept(B.max(magnitude / B.float32(127), B.float32(2.0**-126)), "float32")
        factor = kept(B.float32(1) / scale, "float32")
    else:
        top = TOP_BITS[spec.digits]
        raised = B.reinterpret("int32", magnitude * B.float32(float(HEADROOM)))
        exponent = kept(B.max(raised >> B.int32(23), B.int32(FIRST_EXPONENT)), "int32")
        scale = B.reinterpret("float32", (exponent - B.int32(top)) << B.int32(23))
        factor = kept(B.reinterpret("float32", (B.int32(254 + top) - exponent) << B.int32(23)), "float32")
    limit = float(DIGIT_LIMITS[spec.digits])

    low, high = (splat(B.float32(bound), LANES) for bound in (-limit, limit))

    def integers(start: Expr) -> Expr:
        value: Any = B.alloc_buffer((LANES,), "float32", scope="local")
        store(value, 0, load(x, at + start, LANES) * splat(factor, LANES), LANES)
        # NaN becomes a number.
        store(value, 0, B.Select(load(value, 0, LANES) > low, load(value, 0, LANES), low), LANES)
        store(value, 0, B.Select(load(value, 0, LANES) < high, load(value, 0, LANES), high), LANES)
        return intrinsic("llvm.rint", f"float32x{LANES}", load(value, 0, LANES)).astype(f"int32x{LANES}")

    _write(spec, integers, y, to)
    nan = B.reinterpret("float32", B.int32(_NAN_BITS))
    _store_scale(spec, y, to, B.Select(is_finite, scale, nan))


def _write(spec: BlockRowsSpec, integers: Callable[[int], Expr], y: Buffer, to: Expr) -> None:
    """Emit the digits of a block's integers, and minus their sums."""
    totals = [_accumulator() for _ in range(spec.digits)]
    value = _accumulator()
    with B.serial(0, spec.block // LANES) as part:
        start = B.Bind(part * LANES)
        store(value, 0, integers(start), LANES)
        for digit, total in enumerate(totals):
            low = load(value, 0, LANES).astype(f"int8x{LANES}")
            store(y, to + digit * spec.block + start, B.reinterpret(f"uint8x{LANES}", low), LANES)
            store(total, 0, load(total, 0, LANES) + low.astype(f"int32x{LANES}"), LANES)
            if digit + 1 < spec.digits:
                store(value, 0, (load(value, 0, LANES) + splat(B.int32(128), LANES)) >> splat(B.int32(8), LANES), LANES)
    for digit, total in enumerate(totals):
        minus = B.int32(0) - intrinsic(f"llvm.vector.reduce.add.v{LANES}i32", "int32", load(total, 0, LANES))
        store(y, to + (spec.digits * spec.block + 4 * digit), B.reinterpret("uint8x4", minus), 4)


def _accumulator() -> Buffer:
    buffer: Any = B.alloc_buffer((LANES,), "int32", scope="local")
    store(buffer, 0, splat(B.int32(0), LANES), LANES)
    return buffer


def _store_scale(spec: BlockRowsSpec, y: Buffer, to: Expr, scale: Expr) -> None:
    store(y, to + spec.digits * (spec.block + 4), B.reinterpret("uint8x4", scale), 4)
