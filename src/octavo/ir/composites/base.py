"""What a composite op is: the base of all, and the tensors that they name. No graph in here, only numbers and names."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ...numerics import QuantParams
from ...numerics.floats.float_function import FloatFunction
from ...numerics.rounding.fixed_point import FixedPointRounding
from ...numerics.rounding.narrow_accumulator import Overflow
from ...numerics.rounding.requantize import ScaledRounding

Layout = Literal["NCHW", "NHWC"]


RELABELLING = {"int8": 128, "uint16": -32768}
"""What kernels add to integers that they hold in another dtype of as many bits."""


WIDE = ("int16", "uint16")
"""Dtypes of activations that kernels hold as int16; they hold those of 8 bits as uint8."""


UNQUANTIZED = {"dtype": "float32", **dict.fromkeys(("scale", "zero_point", "axis", "qmin", "qmax"))}
"""The entry of a quantize_info, but for its id, of a tensor that is not quantized."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ElementFunction:
    """An op whose result depends, element by element, on 8-bit tensors of the result's own shape.

    Parameters
    ----------
    operands
        The tensors by their roles in the quantize_info; one tensor may have two.
    result
        What it gives.
    of
        The op's oracle, from the operands' integers to the result's, all as kernels hold them (uint8).
    """

    operands: Mapping[str, QuantizedTensor]
    result: QuantizedOutput
    of: Callable[..., npt.NDArray[np.uint8]]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How an op forms its result; each field is a key of its quantize_info.

    Parameters
    ----------
    requantize
        What brings sums, or real values, to the result's units: "float_multiplier", a float32 factor; "fixed_point", an integer
        factor and shifts; "shift", a shift alone, behind which other parameters than the input's take a float multiplier;
        "none", nothing: integers are moved, chosen, compared or looked up, less a difference of zero points, or sums are left.
    rounding
        A name of `target.vocabulary.ROUNDINGS`; for sums in fixed point one of `FixedPointRounding`, for those that end in
        float32 one of `ScaledRounding`, for a comparison one of `CompareRounding`; "none" where nothing is rounded.
    accumulator_bits
        Width of the sums of integers; None where there are none.
    overflow
        "proven": no sum leaves that width; else what becomes of one that does, "saturates" or "wraps".
    """

    requantize: Literal["none", "float_multiplier", "fixed_point", "shift"] = "none"
    rounding: str = "none"
    accumulator_bits: int | None = None
    overflow: Overflow = "proven"


def integer_arithmetic(
    rounding: FixedPointRounding, accumulator_bits: int | None = None, overflow: Overflow = "proven"
) -> Arithmetic:
    """Return that of integers which a fixed-point multiplier brings to the result's units, rounding so."""
    ties = rounding.removeprefix("shift_")
    return Arithmetic("fixed_point" if ties == rounding else "shift", ties, accumulator_bits, overflow)


NO_ARITHMETIC = Arithmetic()
"""Of an op that rounds nothing and sums no integers."""


class CompositeOp(ABC):
    """The plain facts of one composite."""

    def quantize_info(self) -> dict[str, Any]:
        """Return what a code generator must know of each tensor, by its role, and of the op.

        Roles are "input", "weight", "bias", "output", "input0" .... Each holds: id (TensorId or variable name), dtype, scale and
        zero_point (numbers per tensor, lists per axis), axis (None per tensor), qmin, qmax (inclusive; clamps included). Of the
        op there are always the fields of `Arithmetic` and "clamp": the bounds of a clamp that it ends with, in the result's own
        values, None where there is none.
        """
        y = getattr(self, "y", None)
        return {**self.roles(), **asdict(self.arithmetic()), "clamp": None if y is None else y.clamp()}

    @abstractmethod
    def roles(self) -> dict[str, Any]:
        """Return the entry of each tensor in the quantize_info, by its role."""

    @abstractmethod
    def arithmetic(self) -> Arithmetic:
        """Return how the result is formed."""

    def element_function(self) -> ElementFunction | None:
        """Return the op as a function of single elements, None where it is none or reads more than 8-bit variables."""
        return None

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference; 0 for ops without weights."""
        return 0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatOp(CompositeOp):
    """A float32 op, by its Relax name, in a kernel of our own."""

    op: str

    def quantize_info(self) -> dict[str, Any]:
        """Return nothing: no tensor of it is quantized."""
        return {}

    def roles(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def arithmetic(self) -> Arithmetic:
        """Return none of integers."""
        return NO_ARITHMETIC


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class QuantizedTensor:
    """An activation: the name of its variable (its TensorId where it has one), shape in the source's layout, parameters."""

    name: str
    shape: tuple[int, ...]
    params: QuantParams

    def info(self) -> dict[str, Any]:
        """Return its entry of a quantize_info."""
        return {"id": self.name, **self.params.to_json()}

    @property
    def zero_point(self) -> int:
        """The zero point as kernels see it, in uint8 or int16; scales along an axis share one (the rules see to that)."""
        return int(np.ravel(self.params.zero_point)[0]) + self.relabelling

    @property
    def kernel_dtype(self) -> Literal["uint8", "int16"]:
        """Dtype in which kernels hold its integers."""
        return "int16" if self.params.dtype in WIDE else "uint8"

    @property
    def relabelling(self) -> int:
        """What kernels add to its integers, which they read as uint8 or int16."""
        return RELABELLING.get(self.params.dtype, 0)

    def kernel_integers(self, values: npt.NDArray[np.integer]) -> npt.NDArray[Any]:
        """Return integers of this tensor as kernels hold them, contiguous."""
        return np.ascontiguousarray((values.astype(np.int32) + self.relabelling).astype(self.kernel_dtype))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class QuantizedOutput:
    """The result: `qmin` and `qmax` are the activation's bounds in the result's own integers.

    `fixed_point` is how its quantize asks to round in the integers of accelerators, None where it says another rounding.
    """

    tensor: QuantizedTensor
    qmin: int
    qmax: int
    fixed_point: FixedPointRounding | None = None

    def info(self) -> dict[str, Any]:
        """Return its entry of a quantize_info; its bounds include the clamp."""
        return {**self.tensor.info(), "qmin": self.qmin, "qmax": self.qmax}

    def roles(self) -> dict[str, Any]:
        """Return its entry of a quantize_info under its role."""
        return {"output": self.info()}

    def clamp(self) -> list[int] | None:
        """Return its bounds where they are narrower than those of its tensor."""
        params = self.tensor.params
        return None if (self.qmin, self.qmax) == (params.qmin, params.qmax) else [self.qmin, self.qmax]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the source's layout."""
        return self.tensor.shape

    @property
    def kernel_dtype(self) -> Literal["uint8", "int16"]:
        """Element type that kernels write: int8 and uint16 are relabelled."""
        return self.tensor.kernel_dtype


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatResult:
    """A result that stays float32: an integer op's accumulator times its scale, plus `bias`, clamped to [low; high].

    `rounding` says which results on the way are rounded.
    """

    name: str
    shape: tuple[int, ...]
    bias: npt.NDArray[np.float32]
    bias_name: str
    low: float
    high: float
    rounding: ScaledRounding = "fused"

    def roles(self) -> dict[str, Any]:
        """Return the entries of bias and output of a quantize_info; tensors that are not quantized have no scale."""
        return {"bias": {"id": self.bias_name, **UNQUANTIZED}, "output": {"id": self.name, **UNQUANTIZED}}

    def clamp(self) -> list[float | None] | None:
        """Return its bounds, None for one that is infinite."""
        bounds = [bound if math.isfinite(bound) else None for bound in (self.low, self.high)]
        return None if bounds == [None, None] else bounds

    @property
    def kernel_dtype(self) -> str:
        """Element type that kernels write."""
        return "float32"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FunctionResult(FloatResult):
    """A function of a float32 result that is quantized behind it: `y` of function(result) * factors, one for each channel.

    The result itself is not clamped. Behind it the function reads `channels`, each a number for each channel.
    """

    function: FloatFunction
    channels: tuple[npt.NDArray[np.float32], ...] = ()
    factors: npt.NDArray[np.float32] | None
    y: QuantizedOutput

    def roles(self) -> dict[str, Any]:
        """Return the entries of bias and output of a quantize_info."""
        return {"bias": {"id": self.bias_name, **UNQUANTIZED}, **self.y.roles()}

    def clamp(self) -> list[float | None] | None:
        """Return the bounds of its integers where they are narrower than those of its tensor."""
        bounds = self.y.clamp()
        return None if bounds is None else [float(bound) for bound in bounds]

    @property
    def kernel_dtype(self) -> str:
        """Element type that kernels write."""
        return self.y.kernel_dtype


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SumResult:
    """A result that is the int32 sums themselves."""

    name: str
    shape: tuple[int, ...]

    def roles(self) -> dict[str, Any]:
        """Return its entry of a quantize_info under its role: the scale is the product of the operands'."""
        return {"output": {"id": self.name, **UNQUANTIZED, "dtype": "int32"}}

    def clamp(self) -> None:
        """Return nothing: sums are left as they are."""

    @property
    def kernel_dtype(self) -> str:
        """Element type that kernels write."""
        return "int32"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class UnaryOp(CompositeOp):
    """An op that reads one tensor and gives one."""

    x: QuantizedTensor
    y: QuantizedOutput

    def roles(self) -> dict[str, Any]:
        """Return its tensors by role."""
        return {"input": self.x.info(), **self.y.roles()}


def change_of_parameters(*inputs: QuantizedTensor, y: QuantizedOutput) -> Arithmetic:
    """Return how an op that leaves values as they are brings its inputs to the scale of the result."""
    same = all(ratio(x.params, y.tensor.params) == 1.0 for x in inputs)
    if same:
        return NO_ARITHMETIC
    return Arithmetic("float_multiplier", "half_even") if y.fixed_point is None else integer_arithmetic(y.fixed_point)


def ratio(x: QuantParams, y: QuantParams) -> float:
    """Return float32 x.scale / y.scale, the multiplier from one tensor's integers to another's."""
    return float(np.float32(x.scale) / np.float32(y.scale))
