"""What sums of products become: the parameters and constants of `device/epilogue.cuh`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ......errors import CompileError
from ......ir.composites.base import FunctionResult, QuantizedOutput, SumResult
from ......ir.composites.outputs import FunctionOutput, output_spec
from ......ir.composites.weighted import BatchMatmulOp, QuantizedWeight, WeightedOp
from ...kernel import Argument, Number
from ..elementwise.float_function import statements_of
from ..language.calls import Operand, Result
from .tail import NO_TAIL, Tail

INTEGERS, FUSED_FLOATS, STEPWISE_FLOATS, SUMS, FUNCTIONS = range(5)
"""The enumeration `Result` of the header."""

_COMMON: dict[str, Number] = {"has_real_bias": False, "has_low": False, "has_high": False, "low": 0.0, "high": 0.0}
"""What a kernel's structure of parameters holds, however it ends."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Output:
    """How a kernel ends.

    Parameters
    ----------
    dtype
        Of what it writes.
    parameters
        Members of the structure P that `Epilogue<P>` reads.
    multiplier, real_bias
        float32 (channels,): from sums to steps of the result, or to reals; what is added to that, zeros where it is not read.
        With a function, the latter is (rows, channels): then come what the function reads, and factors of its result.
    tail
        What follows the product's own integers, which `parameters` are about, before they are written.
    function
        The function as a member of P, in CUDA C.
    """

    dtype: str
    parameters: dict[str, Number]
    multiplier: npt.NDArray[np.float32]
    real_bias: npt.NDArray[np.float32]
    tail: Tail = NO_TAIL
    function: str = ""

    def followed_by(self, tail: Tail, dtype: str) -> Output:
        """Return it with what follows its integers, which ends in a dtype."""
        assert self.parameters["result"] in (INTEGERS, FUNCTIONS), "a tail follows integers"
        return replace(self, dtype=dtype, tail=tail)

    @property
    def suffix(self) -> str:
        """What a kernel's name gets: "_function_add"."""
        return ("_function" if self.function else "") + self.tail.suffix

    @property
    def types(self) -> dict[str, str]:
        """Types that P holds for it."""
        return {"Y": self.dtype, "Beside": self.tail.beside}

    def rows(self, stride: int) -> dict[str, Number]:
        """Return members of P: how many rows `real_bias` has, and how far one lies behind the other."""
        return {"real_rows": self.real_bias.size // self.multiplier.size, "real_stride": stride}

    def arguments(self) -> tuple[Argument, ...]:
        """Return a kernel's last arguments: what a tail reads, and the result."""
        return *self.tail.arguments(), Argument(name="y", dtype=self.dtype, writes=True)

    def operands(self, inputs: int) -> tuple[Operand, ...]:
        """Return what these are, for a product that reads so many tensors."""
        return *self.tail.operands(inputs), Result()


def output_of(op: WeightedOp | BatchMatmulOp, channels: int) -> Output:
    """Return how an op's sums end; CompileError for an arithmetic that the description of the target leaves out."""
    y = op.y
    if op.fixed_point is not None or op.narrow is not None:
        raise CompileError(f"{op.quantize_info().get('output', {}).get('id')}: kernels for CUDA scale sums of 32 bits in float32")
    weight = op.weight if isinstance(op, WeightedOp) else None
    real_bias = np.zeros(channels, np.float32)
    common = dict(_COMMON)
    if isinstance(y, QuantizedOutput):
        has_real_bias = weight is not None and weight.real_bias is not None
        if has_real_bias and weight is not None:
            real_bias = _per_channel(weight.real_bias, channels)
        common |= {"result": INTEGERS, "has_real_bias": has_real_bias}
        points = {"zero_point": int(np.ravel(y.tensor.params.zero_point)[0]), "qmin": y.qmin, "qmax": y.qmax}
        multiplier = _per_channel(op.multiplier, channels)
        return Output(dtype=y.tensor.params.dtype, parameters={**common, **points}, multiplier=multiplier, real_bias=real_bias)
    points = {"zero_point": 0, "qmin": -128, "qmax": 127}
    if isinstance(y, SumResult):
        ones = np.ones(channels, np.float32)
        return Output(dtype="int32", parameters={**common, **points, "result": SUMS}, multiplier=ones, real_bias=real_bias)
    if isinstance(y, FunctionResult):
        return function_output(y, _per_channel(op.multiplier, channels))
    bounds: dict[str, Number] = {"has_low": math.isfinite(y.low), "has_high": math.isfinite(y.high)}
    bounds |= {name: value for name, value in (("low", y.low), ("high", y.high)) if math.isfinite(value)}
    result = STEPWISE_FLOATS if y.rounding == "stepwise" else FUSED_FLOATS
    return Output(
        dtype="float32",
        parameters={**common, **points, **bounds, "result": result},
        multiplier=_per_channel(op.multiplier, channels),
        real_bias=_per_channel(y.bias, channels),
    )


def function_output(y: FunctionResult, multiplier: npt.NDArray[np.float32]) -> Output:
    """Return how sums end in a function of float32, by factors that bring its results to steps of the integers."""
    spec = output_spec(y)
    assert isinstance(spec, FunctionOutput)
    own = spec.constants()
    params = y.y.tensor.params
    parameters: dict[str, Number] = {**_COMMON, "result": FUNCTIONS, "qmin": y.y.qmin, "qmax": y.y.qmax}
    parameters |= {"zero_point": int(params.zero_point), "has_factors": "factor" in own, "factor": spec.factors[0]}
    return Output(
        dtype=params.dtype,
        parameters=parameters,
        multiplier=multiplier,
        real_bias=np.stack([_per_channel(row, multiplier.size) for row in (y.bias, *own.values())]),
        function=_member_of(y),
    )


def _member_of(y: FunctionResult) -> str:
    """Return a function of the sums' reals, and of the rows of `real_bias` behind the first one, as a member of P."""
    lines, result = statements_of(y.function)
    read = [f"float v{number} = channel[{number} * stride];" for number, _ in enumerate(y.channels, 1)]
    statements = ["using namespace octavo;", *read, *lines, f"return {result};"]
    head = "static __device__ __forceinline__ float function(float v0, const float* channel, int stride)"
    return "\n".join([f"  {head} {{", *(f"    {each}" for each in statements), "  }"])


def _per_channel(values: object, channels: int) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(np.broadcast_to(np.asarray(values, np.float32), (channels,)))


def start_of_sums(weight: QuantizedWeight, zero_point: int) -> npt.NDArray[np.int32]:
    """Return what each channel's sum starts from: bias and the parts of the zero points that are known now.

    The sum of (x - zero_point) * (w - w_zero) is that of x * w, less w_zero times that of x, which a kernel takes, less
    zero_point * (sum(w) - count * w_zero), which stands here. Padding counts as the zero point, so every tap counts everywhere.
    """
    values = weight.values.astype(np.int64).reshape(-1, weight.values.shape[-1])
    taps = values.sum(axis=0) - values.shape[0] * weight.zero_point.astype(np.int64)
    return (weight.bias.astype(np.int64) - zero_point * taps).astype(np.int32)
