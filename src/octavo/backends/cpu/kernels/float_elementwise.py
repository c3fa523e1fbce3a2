"""A function of single float32 elements, vector by vector. Oracle: `numerics.float_function`."""

from __future__ import annotations

from dataclasses import dataclass

from ....numerics.floats.float_function import FloatFunction
from .float_function import ElementMath
from .spec import Kernel
from .vectors import Buffer, Expr, for_each_vector, load, prim_func, store

_LANES = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatElementwiseSpec:
    """float32 tensors of `size` elements, one for each input of the function, to another."""

    size: int
    function: FloatFunction
    threads: int = 1


def float_elementwise(spec: FloatElementwiseSpec, *, isa: str) -> Kernel:
    """Return the kernel of y = function(x, ...), element by element."""

    def emit(*buffers: Buffer) -> None:
        *inputs, y = buffers

        def body(start: Expr, lanes: int) -> None:
            values = [load(x, start, lanes) for x in inputs]
            store(y, start, ElementMath(lanes).apply(spec.function, values), lanes)

        for_each_vector(spec.size, _LANES, spec.threads, body, operations=spec.function.operations)

    names = [*(f"x{number}" for number in range(spec.function.inputs)), "y"]
    func = prim_func([(name, spec.size, "float32") for name in names], emit)
    return Kernel(name="float.elementwise", isa=isa, func=func)
