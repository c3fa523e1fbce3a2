"""Division of uint8 rows by their Euclidean norm. Oracles: `numerics.l2_normalize` and `l2_normalize_fixed`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tvm.script.ir_builder import tirx as B

from ......ir.composites.outputs import Output
from ......numerics.quantized.normalization import L2_MAX_COLUMNS, NEWTON_STEPS, SQRT_HALF, THREE_HALVES
from ......runtime.shapes import limits, surpasses
from ..language.isa import lanes_of
from ..language.kernel import Kernel
from ..language.rounding import requantized
from ..language.vectors import Buffer, Expr, chunked, for_each_vector, kept, load, prim_func, splat, store, worthwhile


@dataclass(frozen=True, kw_only=True, slots=True)
class L2NormalizeSpec:
    """uint8 [rows, columns] to uint8.

    `fixed` is the dtype of the source's integers where the norm is taken in fixed point, at the scale 1/128 and zero point 128
    (as kernels see them); None for float32, with `out_scale`.
    """

    rows: int
    columns: int
    input_zero_point: int
    out_scale: float
    output: Output
    fixed: Literal["int8", "uint8"] | None = None
    threads: int = 1


def l2_normalize(spec: L2NormalizeSpec, *, isa: str) -> Kernel:
    """Return the kernel; threads share the rows."""
    assert not surpasses(spec.columns, L2_MAX_COLUMNS), "the rule sees to it"
    size = spec.rows * spec.columns

    def emit(x: Buffer, y: Buffer) -> None:
        with chunked(spec.rows, worthwhile(spec.threads, size, spec.rows)) as row:
            base = row * spec.columns
            total: Any = B.alloc_buffer((1,), "int32", scope="local")
            B.buffer_store(total, B.int32(0), [0])
            with B.serial(0, spec.columns) as column:
                d = B.Bind(x[base + column].astype("int32") - spec.input_zero_point)
                B.buffer_store(total, total[0] + d * d, [0])
            if spec.fixed is None:
                _in_float(spec, x, y, base, total[0], lanes_of(isa))
            else:
                _in_fixed_point(spec, x, y, base, kept(total[0].astype("int64"), "int64"))

    func = prim_func([("x", size, "uint8"), ("y", size, "uint8")], emit)
    return Kernel(name="l2_normalize", isa=isa, func=func, limits=limits((spec.columns, L2_MAX_COLUMNS)))


def _in_float(spec: L2NormalizeSpec, x: Buffer, y: Buffer, base: Expr, total: Expr, width: int) -> None:
    root = B.sqrt(B.max(total, B.int32(1)).astype("float32"))
    multiplier = B.Bind(B.float32(1.0) / (root * B.float32(spec.out_scale)))

    def one(start: Expr, lanes: int) -> None:
        d = load(x, base + start, lanes, "int32") - splat(B.int32(spec.input_zero_point), lanes)
        store(y, base + start, requantized(d, splat(multiplier, lanes), spec.output, lanes), lanes)

    for_each_vector(spec.columns, width, 1, one)


def _in_fixed_point(spec: L2NormalizeSpec, x: Buffer, y: Buffer, base: Expr, total: Expr) -> None:
    mantissa, exponent = _inverse_root(total)
    # The factor 128 of the scale joins the exponent for int8, the product for uint8.
    folded = spec.fixed == "int8"
    left = kept(B.max(B.int64(7) - exponent, B.int64(0)), "int64") if folded else B.int64(7)
    right = kept(B.max(exponent - B.int64(7), B.int64(0)), "int64") if folded else exponent
    half = kept((B.int64(1) << right) >> B.int64(1), "int64")
    with B.serial(0, spec.columns) as column:
        d = x[base + column].astype("int64") - spec.input_zero_point
        product = kept(_high(d << left, mantissa), "int64")
        magnitude = (B.Select(product < 0, -product, product) + half) >> right
        steps = B.Select(product < 0, -magnitude, magnitude) + spec.output.zero_point
        value = B.min(B.max(steps, B.int64(spec.output.qmin)), B.int64(spec.output.qmax))
        B.buffer_store(y, value.astype("uint8"), [base + column])


def _inverse_root(total: Expr) -> tuple[Expr, Expr]:
    """Return mantissa and exponent of 1 / sqrt(total); the counterpart of `numerics.l2_normalize.inverse_root`."""

    def number(value: int) -> Expr:
        return B.int64(value)

    large = total >= number(1 << 29)
    value = kept(B.Select(large, total >> number(2), total), "int64")
    exponent = kept(B.Select(large, number(12), number(11)), "int64")
    for pairs in (8, 4, 2, 1):
        small = value < number(1 << (29 - 2 * pairs))
        exponent = kept(B.Select(small, exponent - number(pairs), exponent), "int64")
        value = kept(B.Select(small, value << number(2 * pairs), value), "int64")
    half = kept((value + number(2)) >> number(2), "int64")
    x = number(1 << 28)
    for _ in range(NEWTON_STEPS):
        square = kept(_high(x, x), "int64")
        cube = kept(_high(square, x) << number(6), "int64")
        x = kept((_high(number(THREE_HALVES), x) - _high(half, cube)) << number(3), "int64")
    x = kept(_high(x, number(SQRT_HALF)), "int64")
    is_one = total <= number(1)
    mantissa = B.Select(is_one, number((1 << 31) - 1), x << B.max(-exponent, number(0)))
    return kept(mantissa, "int64"), kept(B.Select(is_one, number(0), B.max(exponent, number(0))), "int64")


def _high(a: Expr, b: Expr) -> Expr:
    """Return a * b / 2**31, half up."""
    return (a * b + B.int64(1 << 30)) >> B.int64(31)
