"""A function of single float32 elements, vector by vector. Oracle: `numerics.float_function`.

Tensors of integers are dequantized as they are read, and the result may be quantized, as kernels/quantize.py does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ......numerics.floats.float_function import FloatFunction
from ..language.float_function import ElementMath
from ..language.kernel import Kernel
from ..language.vectors import Buffer, Expr, chunked, for_each_vector, load, prim_func, store, worthwhile
from ..quantization.quantize import DequantizeSpec, QuantizeSpec, quantized_vector, real_vector

_LANES = 16
_MIN_PERIOD = 256
"""Elements of a loop over constants."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatElementwiseSpec:
    """Tensors of `size` elements, one for each input of the function, to another: float32, or integers where that is said.

    `integers` are the inputs, by number, that are dequantized; `result` is what the result is quantized to. Behind the tensors
    the function reads constants of `period` elements each, which repeat over the tensors (size % period == 0).
    """

    size: int
    function: FloatFunction
    integers: Mapping[int, DequantizeSpec] = field(default_factory=dict[int, DequantizeSpec], hash=False)
    result: QuantizeSpec | None = None
    period: int = 0
    threads: int = 1


def float_elementwise(spec: FloatElementwiseSpec, *, constants: Sequence[npt.NDArray[np.float32]] = (), isa: str) -> Kernel:
    """Return the kernel of y = function(x, ..., constant, ...), element by element."""
    tensors = spec.function.inputs - len(constants)
    repeats = _repeats(spec) if constants else 0
    period = repeats * spec.period

    def emit(*buffers: Buffer) -> None:
        *inputs, y = buffers

        def one(start: Expr, place: Expr, lanes: int) -> None:
            math = ElementMath(lanes)
            values: list[Expr] = []
            for number, x in enumerate(inputs[:tensors]):
                integers = spec.integers.get(number)
                is_real = integers is None
                values.append(load(x, start, lanes) if is_real else math.fenced(real_vector(integers, x, start, lanes)))
            values.extend(load(each, place, lanes) for each in inputs[tensors:])
            value = math.apply(spec.function, values)
            store(y, start, value if spec.result is None else quantized_vector(spec.result, value, lanes), lanes)

        operations = spec.function.operations

        def part(base: Expr, size: int) -> None:
            for_each_vector(size, _LANES, 1, lambda place, lanes: one(base + place, place, lanes), operations=operations)

        if not constants:
            for_each_vector(spec.size, _LANES, spec.threads, lambda start, lanes: one(start, start, lanes), operations=operations)
            return
        count, rest = divmod(spec.size, period)
        with chunked(count, worthwhile(spec.threads, spec.size * operations, count)) as index:
            part(index * period, period)
        if rest:
            part(count * period, rest)

    dtypes = {number: integers.dtype for number, integers in spec.integers.items()}
    arguments = [(f"x{number}", spec.size, dtypes.get(number, "float32")) for number in range(tensors)]
    arguments.extend((f"channel{number}", period, "float32") for number in range(len(constants)))
    func = prim_func([*arguments, ("y", spec.size, "float32" if spec.result is None else spec.result.dtype)], emit)
    return Kernel(name="float.elementwise", isa=isa, func=func, constants=tuple(np.tile(each, repeats) for each in constants))


def _repeats(spec: FloatElementwiseSpec) -> int:
    """Return how often constants are repeated in memory: so many elements are worth a loop of their own."""
    return min(spec.size // spec.period, -(-_MIN_PERIOD // spec.period))
