"""Addition of two uint8 tensors. Oracles: `numerics.add`, in integers alone, and `numerics.float_sum`."""

from __future__ import annotations

from tvm.script.ir_builder import tirx as B

from ......numerics import add_parameters
from ..language.isa import AVX512_VNNI, lanes_of
from ..language.kernel import Kernel
from ..language.vectors import Buffer, Expr, chunked, for_each_vector, load, prim_func, splat, store, vector_type, worthwhile
from .float_sum import float_sum
from .spec import AddSpec
from .x86_byte_sum import ByteSum


def add(spec: AddSpec, *, isa: str) -> Kernel:
    """Return the kernel of y = clamp(((bias + a * a_multiplier + b * b_multiplier) >> shift) + zero_point), or of the float sum.

    Where b is shorter than a, it is repeated: threads share the repetitions where there are enough of them.
    """
    assert spec.size % spec.b_size == 0, "b must repeat a whole number of times"
    p = add_parameters(spec.a_scale, spec.a_zero_point, spec.b_scale, spec.b_zero_point, spec.out_scale)
    out = spec.output
    repeats = spec.size // spec.b_size
    width = lanes_of(isa)

    def emit(a: Buffer, b: Buffer, y: Buffer) -> None:
        def one(start: Expr, b_bytes: Expr, lanes: int) -> None:
            if isa == AVX512_VNNI and lanes == width and spec.float_sum is None:
                store(y, start, ByteSum(spec).of(load(a, start, lanes), b_bytes, lanes), lanes)
                return
            b_value = b_bytes.astype(vector_type("int32", lanes))

            def number(value: int) -> Expr:
                return splat(B.int32(value), lanes)

            if spec.float_sum is not None:
                a_value = load(a, start, lanes, "int32")
                store(y, start, float_sum(spec.float_sum, out, spec.relabelling, a_value, b_value, lanes), lanes)
                return
            acc = number(p.bias) + load(a, start, lanes, "int32") * number(p.a_multiplier)
            acc = acc + b_value * number(p.b_multiplier)
            acc = B.max(acc >> number(p.shift), number(out.qmin - out.zero_point))
            acc = B.min(acc, number(out.qmax - out.zero_point)) + number(out.zero_point)
            store(y, start, acc.astype(vector_type("uint8", lanes)), lanes)

        def vectors(base: Expr, threads: int) -> None:
            for_each_vector(
                spec.b_size,
                width,
                threads,
                lambda start, lanes: one(base + start, load(b, start, lanes), lanes),
            )

        if spec.b_size == 1:  # vectors of a alone: repetitions of one element would make none
            for_each_vector(spec.size, width, spec.threads, lambda start, lanes: one(start, splat(b[0], lanes), lanes))
        elif repeats == 1:
            vectors(0, spec.threads)
        else:
            with chunked(repeats, worthwhile(spec.threads, spec.size, repeats)) as repeat:
                vectors(repeat * spec.b_size, 1)

    arguments = [("a", spec.size, "uint8"), ("b", spec.b_size, "uint8"), ("y", spec.size, "uint8")]
    return Kernel(name="add", isa=isa, func=prim_func(arguments, emit))
