"""float32 functions of single elements in TIR: the same operations as their definition in numerics, so the same bits.

It emits expressions, no loops; scalars and vectors alike. LLVM contracts a product with the sum that reads it: where that would
change bits, a fence keeps them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm.script.ir_builder import tirx as B

from ......numerics.floats import float_function as numerics
from ......numerics.floats.float_function import FloatFunction
from .vectors import Expr, intrinsic, load, splat, store, vector_type


@dataclass(frozen=True, slots=True)
class ElementMath:
    """Emits functions of float32 vectors; within one function they are bound, and the results of steps kept in variables."""

    lanes: int

    def bind(self, value: Expr) -> Expr:
        """Return a value that is read more than once."""
        return B.Bind(value)

    def keep(self, value: Expr) -> Expr:
        """Return a value that a long chain reads: TVM's simplifier writes bound ones out wherever they are read, and would have
        no end."""
        variable: Any = B.alloc_buffer((self.lanes,), "float32", scope="local")
        store(variable, 0, value, self.lanes)
        return load(variable, 0, self.lanes)

    def constant(self, number: float) -> Expr:
        """Return a number in every lane."""
        return splat(B.float32(number), self.lanes)

    def fused(self, x: Expr, y: Expr, z: Expr) -> Expr:
        """Return x * y + z, rounded once."""
        return intrinsic("llvm.fma", self._type("float32"), x, y, z)

    def fenced(self, value: Expr) -> Expr:
        """Return a value that LLVM contracts with nothing."""
        return intrinsic("llvm.arithmetic.fence", self._type("float32"), value)

    def exp(self, x: Expr) -> Expr:
        """Return exp(x)."""
        series, power = self._parts_of_exp(x, numerics.EXP_RANGE)
        half = self.bind(power >> splat(B.int32(1), self.lanes))
        return (series * self._two_to(half)) * self._two_to(power - half)

    def exp_of_normal(self, x: Expr) -> Expr:
        """Return exp(x) where that is a normal number, the same bits as `exp`; of other x NaN or anything.

        Bounds cut nothing off there, and one product by a power of two is as exact as two.
        """
        series, shifted = self._series_of_exp(self.keep(x))
        # Shifted, the bits of the magic number are gone.
        bits = (B.reinterpret(self._type("int32"), shifted) << splat(B.int32(23), self.lanes)) + splat(
            B.int32(127 << 23), self.lanes
        )
        return series * B.reinterpret(self._type("float32"), bits)

    def _parts_of_exp(self, x: Expr, within: tuple[float, float]) -> tuple[Expr, Expr]:
        low, high = within
        value = self.bind(x)
        value = self.bind(B.Select(value > self.constant(high), self.constant(high), value))
        value = self.keep(B.Select(value < self.constant(low), self.constant(low), value))
        series, shifted = self._series_of_exp(value)
        bits = B.reinterpret(self._type("int32"), shifted)
        power = self.bind(bits - splat(B.int32(numerics.MAGIC_BITS), self.lanes))
        return series, power

    def _series_of_exp(self, value: Expr) -> tuple[Expr, Expr]:
        """Return exp(r) and n + MAGIC of a value n * ln 2 + r."""
        shifted = self.keep(self.fused(value, self.constant(numerics.LOG2_E), self.constant(numerics.MAGIC)))
        full = self.bind(shifted - self.constant(numerics.MAGIC))
        rest = self.fused(full, self.constant(-numerics.LN2_HIGH), value)
        rest = self.keep(self.fused(full, self.constant(-numerics.LN2_LOW), rest))
        return self._series(rest, numerics.EXP_SERIES), shifted

    def sigmoid(self, x: Expr) -> Expr:
        """Return 1 / (1 + exp(-x))."""
        series, power = self._parts_of_exp(x, numerics.SIGMOID_RANGE)
        exponential = self.keep(series * self._two_to(power))
        return exponential / (self.constant(1.0) + exponential)

    def tanh(self, x: Expr) -> Expr:
        """Return tanh(x)."""
        return self._rational(x, numerics.TANH_NUMERATOR, numerics.TANH_DENOMINATOR, numerics.TANH_LIMIT)

    def erf(self, x: Expr) -> Expr:
        """Return erf(x)."""
        return self._rational(x, numerics.ERF_NUMERATOR, numerics.ERF_DENOMINATOR, numerics.ERF_LIMIT)

    def apply(self, function: FloatFunction, inputs: Sequence[Expr]) -> Expr:
        """Return the result of a program."""
        values = [*inputs, *(self.constant(number) for number in function.constants)]
        for step in function.steps:
            values.append(self.keep(self._step(step.op, *(values[operand] for operand in step.operands))))
        return values[-1]

    def _step(self, op: str, *operands: Expr) -> Expr:
        x, y = operands[0], operands[min(1, len(operands) - 1)]
        zero = self.constant(0.0)
        emitted: dict[str, Callable[[], Expr]] = {
            "exp": lambda: self.fenced(self.exp(x)),
            "sigmoid": lambda: self.sigmoid(x),
            "tanh": lambda: self.tanh(x),
            "erf": lambda: self.erf(x),
            "negative": lambda: self.fenced(self.constant(-1.0) * x),
            "abs": lambda: intrinsic("llvm.fabs", self._type("float32"), x),
            "sqrt": lambda: intrinsic("llvm.sqrt", self._type("float32"), x),
            "add": lambda: x + y,
            "subtract": lambda: x - y,
            "multiply": lambda: self.fenced(x * y),
            "divide": lambda: x / y,
            "maximum": lambda: B.Select(x > y, x, y),
            "minimum": lambda: B.Select(x < y, x, y),
            "leaky_relu": lambda: B.Select(x > zero, x, self.fenced(x * y)),
            "multiply_add": lambda: self.fused(*operands),
        }
        return emitted[op]()

    def _rational(self, x: Expr, numerator: tuple[float, ...], denominator: tuple[float, ...], limit: float) -> Expr:
        value = self.bind(x)
        one, minus = self.constant(1.0), self.constant(-1.0)
        square = self.keep(value * value)
        quotient = self.keep((value * self._series(square, numerator)) / self._series(square, denominator))
        below, above = self.constant(numerics.BELOW_ONE), self.constant(-numerics.BELOW_ONE)
        quotient = self.bind(B.Select(quotient > below, below, quotient))
        quotient = self.bind(B.Select(quotient < above, above, quotient))
        beyond = B.Select(value < self.constant(-limit), minus, quotient)
        return B.Select(value > self.constant(limit), one, beyond)

    def _series(self, x: Expr, coefficients: tuple[float, ...]) -> Expr:
        value = self.constant(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            value = self.fused(value, x, self.constant(coefficient))
        return value

    def _two_to(self, power: Expr) -> Expr:
        bits = (power + splat(B.int32(127), self.lanes)) << splat(B.int32(23), self.lanes)
        return B.reinterpret(self._type("float32"), bits)

    def _type(self, dtype: str) -> Any:
        return vector_type(dtype, self.lanes)


@dataclass(frozen=True, slots=True)
class ElementExpressions(ElementMath):
    """The same as expressions alone, for where nothing can be bound; what is repeated, LLVM computes once."""

    def bind(self, value: Expr) -> Expr:
        """Return the value itself."""
        return value

    def keep(self, value: Expr) -> Expr:
        """Return the value itself."""
        return value
