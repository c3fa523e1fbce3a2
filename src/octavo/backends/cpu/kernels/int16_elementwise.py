"""Kernels of 16-bit ops without weights: tables, sums, products, means, concatenation. Oracles: `numerics.int16_elementwise`,
`numerics.int16_unary`."""

from __future__ import annotations

from tvm.script.ir_builder import tirx as B

from ....errors import CompileError
from ....numerics.limits import INT16_MAX_COUNT
from ....numerics.quant_params import INTEGER_RANGE
from ....numerics.quantized.reduce import mean_int16_multiplier
from .fixed_point import clamped_int16, fixed_point_scaled
from .int16_spec import Int16MeanSpec
from .isa import lanes_of
from .spec import ConcatSpec, Kernel
from .vectors import Buffer, Expr, chunked, for_each_vector, load, prim_func, splat, store, worthwhile

_LEFT_SHIFT = 15


def _lanes(isa: str) -> int:
    """Return the lanes of elementwise work in 64 bits: a quarter of what bytes get."""
    return lanes_of(isa) // 4


def int16_mean(spec: Int16MeanSpec, *, isa: str) -> Kernel:
    """Return the kernel of the mean over the middle axis.

    Raises
    ------
    CompileError
        If the sum could overflow int32.
    """
    if spec.count > INT16_MAX_COUNT:
        raise CompileError(
            f"mean of {spec.count} int16 values: their sum can overflow int32, which holds {INT16_MAX_COUNT}: use fewer"
        )
    factor = mean_int16_multiplier(spec.in_scale, spec.out_scale, spec.count)

    def emit(x: Buffer, y: Buffer) -> None:
        threads = worthwhile(spec.threads, spec.outer * spec.count * spec.inner, spec.outer)
        with chunked(spec.outer, threads) as outer:

            def one(start: Expr, lanes: int) -> None:
                acc = B.alloc_buffer((lanes,), "int32", scope="local")
                store(acc, 0, splat(B.int32(0), lanes), lanes)
                with B.serial(0, spec.count) as index:
                    value = load(x, (outer * spec.count + index) * spec.inner + start, lanes, "int32")
                    store(acc, 0, load(acc, 0, lanes) + value, lanes)
                mean = fixed_point_scaled(load(acc, 0, lanes, "int64"), factor, lanes)
                store(y, outer * spec.inner + start, clamped_int16(mean, spec.output, lanes), lanes)

            for_each_vector(spec.inner, _lanes(isa), 1, one)

    arguments = [("x", spec.outer * spec.count * spec.inner, "int16"), ("y", spec.outer * spec.inner, "int16")]
    return Kernel(name="mean.int16", isa=isa, func=prim_func(arguments, emit))


def int16_concat(spec: ConcatSpec, *, isa: str) -> Kernel:
    """Return the kernel that joins int16 inputs of the output's own scale and zero point; it copies, clamped to the bounds."""
    assert all(multiplier == 1.0 for multiplier in spec.multipliers), "inputs have the output's scale"
    inner, low, high = sum(spec.inners), spec.output.qmin, spec.output.qmax

    def emit(*buffers: Buffer) -> None:
        *inputs, y = buffers
        with chunked(spec.outer, worthwhile(spec.threads, spec.outer * inner, spec.outer)) as outer:
            first = 0
            for x, width in zip(inputs, spec.inners, strict=True):

                def one(start: Expr, lanes: int, x: Buffer = x, width: int = width, first: int = first) -> None:
                    value = load(x, outer * width + start, lanes)
                    if (low, high) != INTEGER_RANGE["int16"]:
                        value = B.min(B.max(value, splat(B.int16(low), lanes)), splat(B.int16(high), lanes))
                    store(y, outer * inner + first + start, value, lanes)

                for_each_vector(width, 2 * _lanes(isa), 1, one)
                first += width

    arguments = [(f"x{i}", spec.outer * width, "int16") for i, width in enumerate(spec.inners)]
    func = prim_func([*arguments, ("y", spec.outer * inner, "int16")], emit)
    return Kernel(name="concat.int16", isa=isa, func=func)
