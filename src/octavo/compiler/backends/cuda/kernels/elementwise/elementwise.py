"""Functions of single elements in float32, `numerics.float_function`, between integers that are dequantized and quantized.

A kernel is a text of its own, since every program is another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ......ir.composites.base import QuantizedOutput, QuantizedTensor
from ......numerics.floats.float_function import FloatFunction
from ...isa import Isa
from ...kernel import C_TYPES, Argument, BoundKernel, Kernel
from ..language.axes import elements_of_thread
from ..quantization.quantize import TIES
from .float_function import statements_of

_THREADS = 256


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ElementwiseSpec:
    """A function of tensors that all have `size` elements in one order.

    Parameters
    ----------
    inputs
        What each of them is: a quantized tensor's parameters, or None for one of float32.
    channels
        float32 (channels,) each: what the function reads behind the tensors, an entry for every `inner` neighbours.
    y
        What the result is quantized to, None where it stays float32.
    rounding
        Where ties of that go.
    """

    function: FloatFunction
    size: int
    inputs: Sequence[QuantizedTensor | None]
    channels: Sequence[npt.NDArray[np.float32]]
    inner: int
    y: QuantizedOutput | None
    rounding: str

    @property
    def dtypes(self) -> list[str]:
        """Of the tensors, the result's last."""
        read = ["float32" if each is None else each.params.dtype for each in self.inputs]
        return [*read, "float32" if self.y is None else self.y.tensor.params.dtype]


def elementwise(spec: ElementwiseSpec, name: str, isa: Isa) -> BoundKernel:
    """Return the kernel of a function; a thread takes neighbours where they fill whole loads."""
    dtypes = spec.dtypes
    steps = (1,) * len(dtypes)
    count = elements_of_thread([(spec.size, steps)], dtypes, isa, ends=False)
    arguments = (
        *(Argument(name=f"x{number}", dtype=dtype) for number, dtype in enumerate(dtypes[:-1])),
        *(Argument(name=f"channel{number}", dtype="float32") for number, _ in enumerate(spec.channels)),
        Argument(name="y", dtype=dtypes[-1], writes=True),
    )
    kernel = Kernel(
        name=name,
        header="elementwise.cuh",
        function="elementwise",
        parameters={},
        arguments=arguments,
        grid=(-(-spec.size // (count * _THREADS)), 1, 1),
        block=(_THREADS, 1, 1),
        isa=isa.name,
        text=_text(spec, arguments, count),
    )
    return kernel, tuple(spec.channels)


def _text(spec: ElementwiseSpec, arguments: Sequence[Argument], count: int) -> str:
    """Return the kernel's CUDA C."""
    c_types = [C_TYPES[dtype] for dtype in spec.dtypes]
    declared = ", ".join(f"{each.c_type}__restrict__ {each.name}" for each in arguments)
    loads = [f"Neighbours<{each}, {count}> read{number};" for number, each in enumerate(c_types[:-1])]
    loads += [f"read{number}.load(x{number} + first);" for number, _ in enumerate(spec.inputs)]
    values = [f"float v{number} = {_read(number, each)};" for number, each in enumerate(spec.inputs)]
    for number, entries in enumerate(spec.channels):
        at = f"(first + i) / {spec.inner} % {entries.size}"
        values.append(f"float v{len(spec.inputs) + number} = channel{number}[{at}];")
    steps, result = statements_of(spec.function)
    lines = [
        f'extern "C" __global__ void __launch_bounds__({_THREADS}) elementwise({declared}) {{',
        "  using namespace octavo;",
        f"  long long first = ((long long)blockIdx.x * {_THREADS} + threadIdx.x) * {count};",
        f"  if (first >= {spec.size}) return;",
        *(f"  {line}" for line in loads),
        f"  Neighbours<{c_types[-1]}, {count}> result;",
        "#pragma unroll",
        f"  for (int i = 0; i < {count}; i++) {{",
        *(f"    {line}" for line in (*values, *steps)),
        f"    result.set(i, {_result(spec, result)});",
        "  }",
        "  result.store(y + first);",
        "}",
    ]
    return "\n".join(lines)


def _read(number: int, tensor: QuantizedTensor | None) -> str:
    if tensor is None:
        return f"read{number}.get(i)"
    zero_point = int(tensor.params.zero_point)
    return f"__fmul_rn(__int2float_rn(int(read{number}.get(i)) - ({zero_point})), {float(tensor.params.scale).hex()}f)"


def _result(spec: ElementwiseSpec, result: str) -> str:
    if spec.y is None:
        return result
    params = spec.y.tensor.params
    numbers = f"{float(params.scale).hex()}f, {int(params.zero_point)}, {spec.y.qmin}, {spec.y.qmax}"
    return f"{params.dtype}(quantized<{TIES[spec.rounding]}>({result}, {numbers}))"
