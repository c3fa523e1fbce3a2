"""Steps of integer arithmetic as LiteRT's kernels of layers do them, as Relax ops over int64. Knows no layer.

Fixed-point products are those of `numerics.rounding.fixed_point`, functions tables of `numerics.quantized.gemmlowp`, and roots
those of `numerics.quantized.normalization.inverse_root`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from ...ir.graph.nodes import constant
from ...ir.untyped import ops
from ...numerics import INTEGER_RANGE
from ...numerics.rounding.fixed_point import fixed_point_multiplier

_ROOT_STEPS = 5
_HALF_THREE = (1 << 28) + (1 << 27)
_HALF_ROOT_OF_TWO = 1518500250


class IntegerSteps:
    """Writes steps through a block builder; every value is int64 and bound to a variable."""

    def __init__(self, builder: relax.BlockBuilder) -> None:
        self.emit: Any = builder.emit

    def number(self, value: npt.ArrayLike) -> Any:
        """Return a constant."""
        return constant(np.asarray(value, np.int64))

    def wide(self, x: Any) -> Any:
        """Return integers of any width as int64."""
        return self.emit(ops.astype(x, "int64"))

    def add(self, a: Any, b: Any) -> Any:
        """Return a + b."""
        return self.emit(ops.add(a, b))

    def minus(self, a: Any, b: Any) -> Any:
        """Return a - b."""
        return self.emit(ops.subtract(a, b))

    def times(self, a: Any, b: Any) -> Any:
        """Return a * b."""
        return self.emit(ops.multiply(a, b))

    def shifted(self, x: Any, right: Any) -> Any:
        """Return floor(x / 2**right)."""
        return self.emit(ops.right_shift(x, right if isinstance(right, relax.Expr) else self.number(right)))

    def saturated(self, x: Any, dtype: str) -> Any:
        """Return x within the range of a dtype."""
        return self.clamped(x, *INTEGER_RANGE[dtype])

    def clamped(self, x: Any, low: int, high: int) -> Any:
        """Return x within [low; high]."""
        return self.emit(ops.maximum(self.emit(ops.minimum(x, self.number(high))), self.number(low)))

    def rescaled(self, x: Any, factor: npt.ArrayLike) -> Any:
        """Return x times positive real numbers (MultiplyByQuantizedMultiplier)."""
        by = fixed_point_multiplier(np.asarray(factor, np.float64), "twice_away")
        return self.half_away(self.high(x, self.number(by.factor)), by.second)

    def high(self, x: Any, factor: Any) -> Any:
        """Return x * factor / 2**31, half up (SaturatingRoundingDoublingHighMul)."""
        return self.shifted(self.add(self.times(x, factor), self.number(1 << 30)), 31)

    def half_away(self, x: Any, right: Any) -> Any:
        """Return x / 2**right, half away from 0 (RoundingDivideByPOT); `right` are numbers, or int64 values of 0 or more."""
        if not isinstance(right, relax.Expr):
            right = np.asarray(right, np.int64)
            if not right.any():
                return x
            half, is_any = (1 << right) >> 1, (right > 0).astype(np.int64)
            less = self.times(self.is_negative(x), self.number(is_any))
            return self.shifted(self.minus(self.add(x, self.number(half)), less), right)
        one = self.number(1)
        half = self.shifted(self.emit(ops.left_shift(one, right)), 1)
        less = self.times(self.is_negative(x), self.emit(ops.minimum(right, one)))
        return self.shifted(self.minus(self.add(x, half), less), right)

    def quotient(self, x: Any, divisor: int) -> Any:
        """Return x / divisor, cut off towards 0 as C does."""
        sign = self.sign(x)
        return self.times(self.emit(ops.floor_divide(self.times(x, sign), self.number(divisor))), sign)

    def looked_up(self, x: Any, table: npt.NDArray[np.int16]) -> Any:
        """Return the entry of a table of 65536 for each value of a row of int16, as int64."""
        places = self.emit(ops.astype(self.add(x, self.number(1 << 15)), "int32"))
        return self.wide(self.emit(ops.take(relax.const(table), places, axis=0, mode="clip")))

    def inverse_root(self, x: Any) -> tuple[Any, Any]:
        """Return mantissa and right shift of 1 / sqrt(x), of x from 1 to 2**31 - 1 (GetInvSqrtQuantizedMultiplierExp)."""
        one = self.number(1)
        is_large = self._is(ops.greater_equal(x, self.number(1 << 29)))
        value, shift = self.shifted(x, self.times(is_large, self.number(2))), self.add(self.number(11), is_large)
        for pairs in (8, 4, 2, 1):  # as many digits gained, two by two, as leave the value below 2**29
            fits = self._is(ops.less(value, self.number(1 << (29 - 2 * pairs))))
            gained = self.times(fits, self.number(2 * pairs))
            value, shift = self.emit(ops.left_shift(value, gained)), self.minus(shift, self.times(fits, self.number(pairs)))
        half = self.shifted(self.add(self.shifted(value, 1), one), 1)
        root = self.number(1 << 28)
        for _ in range(_ROOT_STEPS):
            cube = self.clamped(self.times(self.high(self.high(root, root), root), self.number(64)), *_INT32)
            step = self.minus(self.high(root, self.number(_HALF_THREE)), self.high(half, cube))
            root = self.clamped(self.times(step, self.number(8)), *_INT32)
        root = self.high(root, self.number(_HALF_ROOT_OF_TWO))
        below = self.emit(ops.maximum(self.emit(ops.negative(shift)), self.number(0)))
        root, shift = self.emit(ops.left_shift(root, below)), self.emit(ops.maximum(shift, self.number(0)))
        is_one = self.emit(ops.less_equal(x, one))
        root = self.emit(ops.where(is_one, self.number(_INT32[1]), root))
        return root, self.emit(ops.where(is_one, self.number(0), shift))

    def is_negative(self, x: Any) -> Any:
        """Return 1 where x is below 0, else 0."""
        return self._is(ops.less(x, self.number(0)))

    def sign(self, x: Any) -> Any:
        """Return -1 where x is below 0, else 1."""
        return self.minus(self.number(1), self.times(self.is_negative(x), self.number(2)))

    def _is(self, condition: Any) -> Any:
        return self.wide(self.emit(condition))


_INT32 = (-(1 << 31), (1 << 31) - 1)
