"""Composite ops: weighted. Plain facts of what one composite computes; nothing is matched and nothing emitted here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...numerics import INTEGER_RANGE, QuantParams, check_accumulator, requantize_multiplier
from ...numerics.dynamic import DynamicStyle, style_name
from ...numerics.rounding.fixed_point import FixedPointRounding, fixed_point_multiplier
from ...numerics.rounding.narrow_accumulator import NarrowAccumulator, Overflow
from ...numerics.rounding.requantize import Multiplier
from ..graph.recurrence import Kind
from .base import (
    UNQUANTIZED,
    Arithmetic,
    CompositeOp,
    FloatResult,
    FunctionResult,
    Layout,
    QuantizedOutput,
    QuantizedTensor,
    SumResult,
    integer_arithmetic,
)
from .float_ops import Floats, recurrent_macs


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MatmulOperand:
    """One of the two operands: a variable's tensor, or a constant in `values` (its own integers)."""

    tensor: QuantizedTensor
    values: npt.NDArray[Any] | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BatchMatmulOp(CompositeOp):
    """a @ b + clamp, with batch axes that broadcast. `unit` is the real value of one unit of the sums.

    With `fixed_point` they are scaled by integers that round so, else in float32.
    """

    a: MatmulOperand
    b: MatmulOperand
    unit: float
    y: QuantizedOutput | FloatResult | SumResult
    accumulator_bits: int
    fixed_point: FixedPointRounding | None = None
    overflow: Overflow = "proven"

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference."""
        return math.prod(self.y.shape) * self.a.tensor.shape[-1]

    def roles(self) -> dict[str, Any]:
        """Return its tensors by role; there is no bias."""
        return {"input0": self.a.tensor.info(), "input1": self.b.tensor.info(), "output": self.y.roles()["output"]}

    def arithmetic(self) -> Arithmetic:
        """Return how sums become the result."""
        return _arithmetic(self.y, self.accumulator_bits, self.overflow, self.fixed_point)

    @property
    def narrow(self) -> NarrowAccumulator | None:
        """The accumulator where sums may leave it."""
        return _narrow(self.accumulator_bits, self.overflow)

    @property
    def multiplier(self) -> Multiplier:
        """From units of the sums to those of the result."""
        y_scale = float(self.y.tensor.params.scale) if isinstance(self.y, QuantizedOutput) else 1.0
        if self.fixed_point is None:
            return requantize_multiplier(self.unit, 1.0, y_scale)
        return fixed_point_multiplier(self.unit / y_scale, self.fixed_point)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RowBatchMatmulOp(CompositeOp):
    """a @ b + clamp of float32 that the kernel quantizes first: each row of a and each column of b has parameters of its own."""

    a: DynamicTensor
    b: DynamicTensor
    y: FloatResult

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference."""
        return math.prod(self.y.shape) * self.a.shape[-1]

    def roles(self) -> dict[str, Any]:
        """Return its tensors by role; there is no bias."""
        return {"input0": self.a.info(), "input1": self.b.info(), "output": self.y.roles()["output"]}

    def arithmetic(self) -> Arithmetic:
        """Return how sums become the result."""
        return _arithmetic(self.y, 32, "proven")


Result = QuantizedOutput | FloatResult | SumResult


def _arithmetic(y: Result, bits: int, overflow: Overflow, fixed_point: FixedPointRounding | None = None) -> Arithmetic:
    """Return how sums of so many bits become a result."""
    if isinstance(y, SumResult):
        return Arithmetic(accumulator_bits=bits, overflow=overflow)
    if isinstance(y, FloatResult):
        rounding = "half_even" if isinstance(y, FunctionResult) else y.rounding
        return Arithmetic("float_multiplier", rounding, bits, overflow)
    if fixed_point is None:
        return Arithmetic("float_multiplier", "half_even", bits, overflow)
    return integer_arithmetic(fixed_point, bits, overflow)


def _narrow(bits: int, overflow: Overflow) -> NarrowAccumulator | None:
    return None if overflow == "proven" else NarrowAccumulator(bits=bits, overflow=overflow)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WeightedOp(CompositeOp):
    """Products with constant weights + bias + clamp. Sums are scaled in float32, or by integers that round as `fixed_point`."""

    x: QuantizedTensor | DynamicTensor
    weight: QuantizedWeight
    y: Result
    accumulator_bits: int
    fixed_point: FixedPointRounding | None = None

    def roles(self) -> dict[str, Any]:
        """Return its tensors by role."""
        return {"input": self.x.info(), **self.weight.info(), **self.y.roles()}

    def arithmetic(self) -> Arithmetic:
        """Return how sums become the result."""
        return _arithmetic(self.y, self.accumulator_bits, self.weight.overflow, self.fixed_point)

    @property
    def narrow(self) -> NarrowAccumulator | None:
        """The accumulator where sums may leave it."""
        return _narrow(self.accumulator_bits, self.weight.overflow)

    @property
    def multiplier(self) -> Multiplier:
        """From units of the sums to those of the result."""
        if self.fixed_point is None:
            return self.weight.multiplier
        assert isinstance(self.x, QuantizedTensor)
        assert isinstance(self.y, QuantizedOutput)
        scales = [params.scale.astype(np.float64) for params in (self.x.params, self.weight.params, self.y.tensor.params)]
        return fixed_point_multiplier(scales[0] * scales[1] / scales[2], self.fixed_point)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Conv2dOp(WeightedOp):
    """conv2d + bias + clamp."""

    layout: Layout
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference."""
        kh, kw, ci, _ = self.weight.values.shape
        return math.prod(self.y.shape) * kh * kw * ci


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MatmulOp(WeightedOp):
    """matmul with constant weights [in, out] + bias + clamp; x is [..., in]."""

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference."""
        return math.prod(self.y.shape) * self.weight.values.shape[0]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StackedMatmulOp(WeightedOp):
    """matmul of matrices by constant weights, of which `stack` in a row have their own, + clamp; x is [..., stack, rows, in].

    The weights lie side by side, [in, stack * out]: their channels are those of one after the other.
    """

    stack: int

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference."""
        return math.prod(self.y.shape) * self.weight.values.shape[0]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GatheredMatmulOp(StackedMatmulOp):
    """matmul of matrices by constant weights, of which `indices` choose one for each, + clamp; x is [..., rows, in].

    Indices have x's leading axes, dtype int32 or int64, and are clipped to [0; stack - 1]; they have no role.
    """

    indices: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RecurrenceOp(CompositeOp):
    """The steps of a recurrent layer by int8 weights (width, gates * width), each column with a scale; see `FloatRecurrenceOp`.

    What meets them is quantized at each step. All else is float32.
    """

    x: str
    weight_name: str
    weights: npt.NDArray[np.int8]
    params: QuantParams
    bias: Floats | None
    hidden: str | Floats | None
    cell: str | Floats | None
    peepholes: Floats | None
    kind: Kind
    activations: tuple[str, ...]
    backwards: bool
    resets_products: bool
    states: int
    clip: float
    output: str
    output_shape: tuple[int, ...]

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference: each step's hidden state meets all weights."""
        return recurrent_macs(self.output_shape, self.states, self.weights.size)

    def roles(self) -> dict[str, Any]:
        """Return its tensors by role."""
        return {
            "input": {"id": self.x, **UNQUANTIZED},
            "weight": {"id": self.weight_name, **self.params.to_json()},
            "output": {"id": self.output, **UNQUANTIZED},
        }

    def arithmetic(self) -> Arithmetic:
        """Return how sums become the gates' inputs: each is scaled in float32."""
        return Arithmetic("float_multiplier", "none", 32)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DynamicTensor:
    """A float32 activation that the kernel quantizes first, with parameters for each of `scales` parts.

    They are parts of its first axis; with `by_column` those along the last axis but one, the columns of its matrices.
    """

    name: str
    shape: tuple[int, ...]
    style: DynamicStyle
    scales: int
    by_column: bool = False

    def info(self) -> dict[str, Any]:
        """Return its entry of a quantize_info: its parameters are known at run time only."""
        unknown = dict.fromkeys(("scale", "zero_point", "axis", "qmin", "qmax"))
        return {"id": self.name, "dtype": "float32", **unknown, "quantized_at_run_time": style_name(self.style)}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Conv2dTransposeOp(CompositeOp):
    """conv2d_transpose + bias + clamp; the weight as HWIO with the inputs of one group, `padding` (top, left, bottom, right)."""

    x: QuantizedTensor
    weight: QuantizedWeight
    y: Result
    accumulator_bits: int
    layout: Layout
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference."""
        rows, columns, _, outputs = self.weight.values.shape
        return math.prod(self.x.shape) * rows * columns * outputs // self.groups

    def roles(self) -> dict[str, Any]:
        """Return its tensors by role."""
        return {"input": self.x.info(), **self.weight.info(), **self.y.roles()}

    def arithmetic(self) -> Arithmetic:
        """Return how sums become the result."""
        return _arithmetic(self.y, self.accumulator_bits, self.weight.overflow)

    @property
    def narrow(self) -> NarrowAccumulator | None:
        """The accumulator where sums may leave it."""
        return _narrow(self.accumulator_bits, self.weight.overflow)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class QuantizedWeight:
    """A constant operand: int8 `values` (HWIO, or [in, out]), zero point in that domain, source parameters for the record.

    `bias` is int32, in units of the accumulator; `overflow` is of the sums with it. A bias that the source holds in float is
    `real_bias`, float32 in units of the result: rounding it to units of the accumulator would move results that lie near a tie.
    """

    name: str
    values: npt.NDArray[np.int8]
    zero_point: npt.NDArray[np.int32]
    params: QuantParams
    bias_name: str
    bias: npt.NDArray[np.int32]
    bias_scale: npt.NDArray[np.float32]
    multiplier: npt.NDArray[np.float32]
    real_bias: npt.NDArray[np.float32] | None = None
    overflow: Overflow = "proven"

    def info(self) -> dict[str, Any]:
        """Return the entries of weight and bias of a quantize_info."""
        low, high = INTEGER_RANGE["int32"]
        if self.real_bias is not None:
            return {"weight": {"id": self.name, **self.params.to_json()}, "bias": {"id": self.bias_name, **UNQUANTIZED}}
        scale = self.bias_scale
        per_tensor = bool((scale == scale[0]).all())
        bias = {
            "id": self.bias_name,
            "dtype": "int32",
            "scale": float(scale[0]) if per_tensor else scale.tolist(),
            "zero_point": 0 if per_tensor else [0] * scale.size,
            "axis": None if per_tensor else 0,
            "qmin": low,
            "qmax": high,
        }
        return {"weight": {"id": self.name, **self.params.to_json()}, "bias": bias}

    @property
    def kernel_zero_point(self) -> int | npt.NDArray[np.int32]:
        """The zero point as kernels take it: one number where all channels share it."""
        first = int(self.zero_point[0])
        return first if bool((self.zero_point == first).all()) else self.zero_point

    def check_overflow(self, x: QuantizedTensor, name: str) -> None:
        """Prove that no int32 accumulator overflows; CompileError names the layer and the channel where one could."""
        self.check_overflow_of((x.zero_point,), name)

    def check_overflow_of(self, zero_points: tuple[int, ...], name: str) -> None:
        """Prove it for inputs of any of these zero points; 0 and 255 are the worst of all."""
        for zero_point in zero_points:
            check_accumulator(self.values, self.zero_point, self.bias, zero_point, 0, 255, where=name)
