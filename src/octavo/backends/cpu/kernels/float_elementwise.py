"""A function of single float32 elements, vector by vector. Oracle: `numerics.float_function`.

Tensors of integers are dequantized as they are read, and the result may be quantized, as kernels/quantize.py does it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ....numerics.floats.float_function import FloatFunction
from .float_function import ElementMath
from .quantize import quantized_vector, real_vector
from .spec import DequantizeSpec, Kernel, QuantizeSpec
from .vectors import Buffer, Expr, for_each_vector, load, prim_func, store

_LANES = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatElementwiseSpec:
    """Tensors of `size` elements, one for each input of the function, to another: float32, or integers where that is said.

    `integers` are the inputs, by number, that are dequantized; `result` is what the result is quantized to.
    """

    size: int
    function: FloatFunction
    integers: Mapping[int, DequantizeSpec] = field(default_factory=dict[int, DequantizeSpec], hash=False)
    result: QuantizeSpec | None = None
    threads: int = 1


def float_elementwise(spec: FloatElementwiseSpec, *, isa: str) -> Kernel:
    """Return the kernel of y = function(x, ...), element by element."""

    def emit(*buffers: Buffer) -> None:
        *inputs, y = buffers

        def body(start: Expr, lanes: int) -> None:
            math = ElementMath(lanes)
            values: list[Expr] = []
            for number, x in enumerate(inputs):
                integers = spec.integers.get(number)
                is_real = integers is None
                values.append(load(x, start, lanes) if is_real else math.fenced(real_vector(integers, x, start, lanes)))
            value = math.apply(spec.function, values)
            store(y, start, value if spec.result is None else quantized_vector(spec.result, value, lanes), lanes)

        for_each_vector(spec.size, _LANES, spec.threads, body, operations=spec.function.operations)

    dtypes = {number: integers.dtype for number, integers in spec.integers.items()}
    arguments = [(f"x{number}", spec.size, dtypes.get(number, "float32")) for number in range(spec.function.inputs)]
    func = prim_func([*arguments, ("y", spec.size, "float32" if spec.result is None else spec.result.dtype)], emit)
    return Kernel(name="float.elementwise", isa=isa, func=func)
