"""Composite ops: elementwise. Plain facts of what one composite computes; nothing is matched and nothing emitted here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ...numerics import (
    FloatSumParameters,
    add,
    float_sum,
    float_sum_parameters,
    maximum,
    minimum,
    requantize,
    requantize_multiplier,
)
from ...numerics.affine import TieRounding
from ...numerics.floats.float_function import FloatFunction
from ...numerics.quantized.binary import combine_in_integers
from ...numerics.quantized.compare import CompareRounding, Comparison, Logic
from ...numerics.rounding.fixed_point import FIXED_POINT_ROUNDINGS
from .base import (
    NO_ARITHMETIC,
    UNQUANTIZED,
    Arithmetic,
    CompositeOp,
    ElementFunction,
    QuantizedOutput,
    QuantizedTensor,
    UnaryOp,
    change_of_parameters,
    integer_arithmetic,
)
from .outputs import output_spec


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AddOp(CompositeOp):
    """a + b + clamp; b may be broadcast over leading dimensions, or be a constant (`b_values` in b's own integers)."""

    a: QuantizedTensor
    b: QuantizedTensor
    b_values: npt.NDArray[Any] | None
    y: QuantizedOutput
    rounding: str

    def roles(self) -> dict[str, Any]:
        """Return its tensors by role."""
        return {"input0": self.a.info(), "input1": self.b.info(), **self.y.roles()}

    def arithmetic(self) -> Arithmetic:
        """Return that of a sum of 8 bits."""
        return sum_arithmetic(self.rounding)

    def element_function(self) -> ElementFunction | None:
        """Return the op, where b is not widened but a constant of one element."""
        fits = self.b.shape == self.a.shape if self.b_values is None else self.b_values.size == 1
        if not fits or self.a.shape != self.y.tensor.shape:
            return None
        if any(tensor.kernel_dtype != "uint8" for tensor in (self.a, self.b, self.y.tensor)):
            return None
        one = None if self.b_values is None else _one_integer(self.b, self.b_values)

        def of(a: npt.NDArray[np.uint8], b: npt.NDArray[np.uint8] | None = None) -> npt.NDArray[np.uint8]:
            other = one if b is None else b
            assert other is not None
            return integer_sum(self.rounding, self.a, self.b, self.y, a, other)

        operands = {"input0": self.a, **({"input1": self.b} if one is None else {})}
        return ElementFunction(operands=operands, result=self.y, of=of)


def _one_integer(tensor: QuantizedTensor, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the one integer of a constant, which may have more axes than a table, as kernels hold it: shape (1,)."""
    return tensor.kernel_integers(values).reshape(1)


def sum_arithmetic(rounding: str) -> Arithmetic:
    """Return how a sum or difference of 8-bit tensors is formed: in integers, or in float32."""
    return Arithmetic("fixed_point", rounding, 32) if rounding == "half_up" else Arithmetic("float_multiplier", rounding)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PreluOp(UnaryOp):
    """int16 x from 0 on, x times a slope below; `slopes` are integers less their zero point, aligned with x at the end."""

    slopes: npt.NDArray[np.int16]
    slope_scale: float

    def arithmetic(self) -> Arithmetic:
        """Return TFLite's fixed point."""
        return Arithmetic("fixed_point", "twice_away", 64)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LookupOp(UnaryOp):
    """A function of x by its table: entry i is the result for the i-th integer of x's dtype, in the result's own integers."""

    table: npt.NDArray[np.integer]

    def arithmetic(self) -> Arithmetic:
        """Return none: the table holds results."""
        return NO_ARITHMETIC

    def element_function(self) -> ElementFunction | None:
        """Return the function that the table is of, where it is one of bytes."""
        if self.x.kernel_dtype != "uint8" or self.y.kernel_dtype != "uint8":
            return None
        table = self.y.tensor.kernel_integers(self.table)
        return ElementFunction(operands={"input": self.x}, result=self.y, of=lambda x: table[x])


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PairLookupOp(CompositeOp):
    """A function of a and b by its table, in the result's own integers: entry [i, j] is for the j-th integer of a's dtype.

    `b` is a tensor, whose i-th integer it is, or None: then `rows` holds i for each element of a constant. `reals` are the
    entries before rounding, in steps of the result from its zero point; None where the table was made of integers.
    """

    a: QuantizedTensor
    b: QuantizedTensor | None
    rows: npt.NDArray[np.int32] | None
    y: QuantizedOutput
    table: npt.NDArray[np.integer]
    reals: npt.NDArray[np.float32] | None = None

    def roles(self) -> dict[str, Any]:
        """Return its tensors by role."""
        others = {} if self.b is None else {"input1": self.b.info()}
        return {"input0": self.a.info(), **others, **self.y.roles()}

    def arithmetic(self) -> Arithmetic:
        """Return none: the table holds results."""
        return NO_ARITHMETIC

    def element_function(self) -> ElementFunction | None:
        """Return the function that the table is of, where no operand is widened and none is a constant of several elements."""
        if self.b is None or not self.a.shape == self.b.shape == self.y.tensor.shape:
            return None
        table = self.y.tensor.kernel_integers(self.table)
        return ElementFunction(operands={"input0": self.a, "input1": self.b}, result=self.y, of=lambda a, b: table[b, a])


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MixedElementwiseOp(CompositeOp):
    """function(x, ...) of tensors of one shape, computed in float32, where some of them are integers.

    Parameters
    ----------
    op
        Relax's name of the op at its core.
    inputs
        Names of the tensors, in the order of the function's inputs.
    integers
        Those of them that are dequantized for it.
    channels, axis
        What the function reads behind the tensors: numbers that each have one value for each channel, along this axis.
    y
        What the result is quantized to; None where it stays float32.
    name
        Of the result where it stays float32.
    rounding
        Where ties of the result go.
    """

    op: str
    inputs: tuple[str, ...]
    integers: tuple[QuantizedTensor, ...]
    function: FloatFunction
    y: QuantizedOutput | None
    name: str
    rounding: TieRounding = "half_even"
    channels: tuple[npt.NDArray[np.float32], ...] = ()
    axis: int | None = None

    def roles(self) -> dict[str, Any]:
        """Return its tensors by role; those of float32 have no scale."""
        known = {tensor.name: tensor.info() for tensor in self.integers}
        roles = {f"input{i}": known.get(name, {"id": name, **UNQUANTIZED}) for i, name in enumerate(self.inputs)}
        return {**roles, **({"output": {"id": self.name, **UNQUANTIZED}} if self.y is None else self.y.roles())}

    def arithmetic(self) -> Arithmetic:
        """Return the rounding of real / scale; none of a result that stays float32."""
        return NO_ARITHMETIC if self.y is None else Arithmetic("float_multiplier", self.rounding)


Kind = Literal["add", "sub", "mul", "max", "min"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Operand:
    """One of two operands: a variable's tensor, or a constant in `values` (its own integers)."""

    tensor: QuantizedTensor
    values: npt.NDArray[Any] | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PairwiseOp(CompositeOp):
    """a op b + clamp, over shapes that broadcast.

    int16 tensors have roundings of their own: "fixed_point", or "float32" for every operation in float32. Both widths may have
    one of `FIXED_POINT_ROUNDINGS`.
    """

    kind: Kind
    a: Operand
    b: Operand
    y: QuantizedOutput
    rounding: str

    def roles(self) -> dict[str, Any]:
        """Return its tensors by role."""
        return {"input0": self.a.tensor.info(), "input1": self.b.tensor.info(), **self.y.roles()}

    def arithmetic(self) -> Arithmetic:
        """Return that of its kind and width; an extreme chooses among integers of one scale."""
        if self.kind in ("max", "min"):
            return NO_ARITHMETIC
        if self.rounding == "fixed_point":
            return Arithmetic("fixed_point", self.rounding, 64)
        if self.rounding in FIXED_POINT_ROUNDINGS:
            return integer_arithmetic(FIXED_POINT_ROUNDINGS[self.rounding], 64 if self.y.kernel_dtype == "int16" else 32)
        is_product = self.kind == "mul" and self.rounding != "float32"
        return Arithmetic("float_multiplier", self.rounding, 32) if is_product else sum_arithmetic(self.rounding)

    def element_function(self) -> ElementFunction | None:
        """Return the op, where no operand is widened but a constant of one element."""
        shape = self.y.tensor.shape
        sides = (self.a, self.b)
        if any(operand.tensor.shape != shape if operand.values is None else operand.values.size != 1 for operand in sides):
            return None
        if any(tensor.kernel_dtype != "uint8" for tensor in (self.a.tensor, self.b.tensor, self.y.tensor)):
            return None
        variables = {f"input{i}": operand.tensor for i, operand in enumerate(sides) if operand.values is None}

        def of(*values: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
            given = iter(values)
            a, b = (next(given) if operand.values is None else _one_integer(operand.tensor, operand.values) for operand in sides)
            return self._oracle(a, b)

        return ElementFunction(operands=variables, result=self.y, of=of)

    def in_integers(self, a: npt.NDArray[np.integer], b: npt.NDArray[np.integer]) -> npt.NDArray[np.integer] | None:
        """Return the results for the integers of a and b as kernels hold them; None where it rounds otherwise."""
        if self.rounding not in FIXED_POINT_ROUNDINGS or self.kind in ("max", "min"):
            return None
        sides, out = (self.a.tensor, self.b.tensor, self.y.tensor), output_spec(self.y)
        return combine_in_integers(
            self.kind,
            a,
            b,
            scales=scales_of(*sides),
            zero_points=(sides[0].zero_point, sides[1].zero_point, sides[2].zero_point),
            rounding=FIXED_POINT_ROUNDINGS[self.rounding],
            qmin=out.qmin,
            qmax=out.qmax,
            dtype=self.y.kernel_dtype,
        )

    def _oracle(self, a: npt.NDArray[np.uint8], b: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the results for the integers of a and b as kernels hold them."""
        out = output_spec(self.y)
        combined = self.in_integers(a, b)
        if combined is not None:
            return combined.astype(np.uint8)
        if self.kind in ("add", "sub"):
            tensors = self.a.tensor, self.b.tensor, self.y
            return integer_sum(self.rounding, *tensors, a, b, subtract=self.kind == "sub")
        if self.kind in ("max", "min"):
            choose = maximum if self.kind == "max" else minimum
            return choose(a, b, qmin=out.qmin, qmax=out.qmax).astype(np.uint8)
        scales = (float(tensor.params.scale) for tensor in (self.a.tensor, self.b.tensor, self.y.tensor))
        product = (a.astype(np.int32) - self.a.tensor.zero_point) * (b.astype(np.int32) - self.b.tensor.zero_point)
        stored = self.rounding == "half_even_stored"
        bounds = (out.zero_point, out.qmin, out.qmax)
        return requantize(product, requantize_multiplier(*scales), *bounds, stored_even=stored).astype(np.uint8)


def scales_of(a: QuantizedTensor, b: QuantizedTensor, y: QuantizedTensor) -> tuple[float, float, float]:
    """Return the scales of two operands and their result."""
    return float(a.params.scale), float(b.params.scale), float(y.params.scale)


def float_sum_of(
    rounding: str, a: QuantizedTensor, b: QuantizedTensor, y: QuantizedTensor, *, subtract: bool = False
) -> tuple[FloatSumParameters | None, int]:
    """Return the constants of an add or subtract that rounds so, and what was added to the integers they are about.

    None where the rounding is that of integers. Tensors of two dtypes are summed as kernels hold them, in uint8.
    """
    if rounding not in ("half_even", "half_even_stored"):
        return None, 0
    relabelling = a.relabelling if a.relabelling == b.relabelling == y.relabelling else 0
    parameters = float_sum_parameters(
        float(a.params.scale),
        a.zero_point - relabelling,
        float(b.params.scale),
        b.zero_point - relabelling,
        float(y.params.scale),
        y.zero_point - relabelling,
        subtract=subtract,
        stored=rounding == "half_even_stored",
    )
    return parameters, relabelling


def integer_sum(
    rounding: str,
    a: QuantizedTensor,
    b: QuantizedTensor,
    y: QuantizedOutput,
    a_values: npt.NDArray[np.uint8],
    b_values: npt.NDArray[np.uint8],
    *,
    subtract: bool = False,
) -> npt.NDArray[np.uint8]:
    """Return what the kernel of an add or subtract that rounds so gives for these integers, all as kernels hold them."""
    out = output_spec(y)
    constants, relabelling = float_sum_of(rounding, a, b, y.tensor, subtract=subtract)
    if constants is None:
        result = add(
            a_values,
            b_values,
            a_scale=float(a.params.scale),
            a_zero_point=a.zero_point,
            b_scale=float(b.params.scale),
            b_zero_point=b.zero_point,
            out_scale=float(y.tensor.params.scale),
            subtract=subtract,
            zero_point=out.zero_point,
            qmin=out.qmin,
            qmax=out.qmax,
        )
        return result.astype(np.uint8)
    a_stored, b_stored = (values.astype(np.int16) - relabelling for values in (a_values, b_values))
    low, high, dtype = out.qmin - relabelling, out.qmax - relabelling, "int8" if relabelling else "uint8"
    result = float_sum(a_stored, b_stored, constants, qmin=low, qmax=high, dtype=dtype)
    return (result.astype(np.int16) + relabelling).astype(np.uint8)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Choice:
    """One of two operands: a tensor, or a constant in `values`, integers of the result's own parameters."""

    tensor: QuantizedTensor
    values: npt.NDArray[np.integer] | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SelectOp(CompositeOp):
    """a where the condition holds, b elsewhere, over shapes that broadcast; then the output's parameters.

    A condition that the model holds is in `condition_values`, as 0 and 1.
    """

    condition: str
    condition_shape: tuple[int, ...]
    a: Choice
    b: Choice
    y: QuantizedOutput
    condition_values: npt.NDArray[np.integer] | None = None

    def roles(self) -> dict[str, Any]:
        """Return its tensors by role; the condition is none of them."""
        return {"input0": self.a.tensor.info(), "input1": self.b.tensor.info(), **self.y.roles()}

    def arithmetic(self) -> Arithmetic:
        """Return the change to the result's parameters."""
        return change_of_parameters(self.a.tensor, self.b.tensor, y=self.y)


def _boolean(name: str) -> dict[str, Any]:
    return {"id": name, **UNQUANTIZED, "dtype": "bool"}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CompareOp(CompositeOp):
    """a kind b, over shapes that broadcast, to bool."""

    kind: Comparison
    a: Operand
    b: Operand
    rounding: CompareRounding
    name: str
    shape: tuple[int, ...]

    def roles(self) -> dict[str, Any]:
        """Return its tensors by role."""
        return {"input0": self.a.tensor.info(), "input1": self.b.tensor.info(), "output": _boolean(self.name)}

    def arithmetic(self) -> Arithmetic:
        """Return what of the operands is compared."""
        if self.rounding == "integers":
            return Arithmetic(rounding=self.rounding)
        return Arithmetic("fixed_point" if self.rounding == "fixed_point" else "float_multiplier", self.rounding)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LogicalOp(CompositeOp):
    """Logic of booleans, over shapes that broadcast."""

    kind: Logic
    operands: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    name: str
    shape: tuple[int, ...]

    def roles(self) -> dict[str, Any]:
        """Return its tensors by role; none is quantized."""
        return {**{f"input{i}": _boolean(name) for i, name in enumerate(self.operands)}, "output": _boolean(self.name)}

    def arithmetic(self) -> Arithmetic:
        """Return none: booleans are combined."""
        return NO_ARITHMETIC
