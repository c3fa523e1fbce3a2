"""What an activation is where it is rounded to the steps of its parameters, in float. Nothing runs here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm

from ...numerics import PerAxis, QuantParams
from ...numerics.dynamic import centered_rows

Floats = npt.NDArray[np.float32]


class Rounder:
    """What a program makes of an activation where it is made: here a tensor as it is, which an integer op reads in float32."""

    def rounded(self, value: Any) -> Any:
        """Return what stands for a tensor."""
        return value

    def transposed(self, order: Sequence[int]) -> Rounder:
        """Return the same for a tensor whose axes lie in another order."""
        del order
        return self


UNROUNDED = Rounder()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Steps(Rounder):
    """The numbers that an activation may have: scale * [qmin - zero_point; qmax - zero_point].

    Parameters
    ----------
    scale
        float32, of shape () or one that broadcasts to the tensor's.
    low, high
        First and last integer less the zero point, of the scale's shape or ().
    """

    scale: Floats
    low: Floats
    high: Floats

    def rounded(self, value: Any) -> Any:
        """Return a tensor of the nearest such numbers, half to even."""
        result = tvm.runtime.empty(value.shape, "float32")
        steps = np.from_dlpack(result)
        np.divide(np.from_dlpack(value), self.scale, out=steps)
        np.rint(steps, out=steps)
        np.clip(steps, self.low, self.high, out=steps)
        np.multiply(steps, self.scale, out=steps)
        return result

    def transposed(self, order: Sequence[int]) -> Steps:
        """Return them for a tensor whose axes lie in another order."""
        return Steps(**{name: _transposed(getattr(self, name), order) for name in ("scale", "low", "high")})


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RowSteps(Rounder):
    """The numbers that an activation may have which is quantized per row when run, each row with parameters of its own values.

    Parameters
    ----------
    axis
        Along which a row's values lie.
    factors
        What the tensor is divided by before and multiplied by behind, of a shape that broadcasts to its own; None for nothing.
    """

    axis: int = -1
    factors: Floats | None = None

    def rounded(self, value: Any) -> Any:
        """Return a tensor of the nearest such numbers."""
        result = tvm.runtime.empty(value.shape, "float32")
        factors = np.ones((), np.float32) if self.factors is None else self.factors
        scaled: Floats = np.divide(np.from_dlpack(value), factors, dtype=np.float32)
        steps, scale = centered_rows(scaled, self.axis)
        np.multiply(np.multiply(steps, scale, dtype=np.float32), factors, out=np.from_dlpack(result))
        return result

    def transposed(self, order: Sequence[int]) -> RowSteps:
        """Return them for a tensor whose axes lie in another order."""
        factors = None if self.factors is None else _transposed(self.factors, order)
        return RowSteps(axis=order.index(self.axis % len(order)), factors=factors)


def _transposed(value: Floats, order: Sequence[int]) -> Floats:
    return value.transpose(order) if value.ndim else value


def steps_of(params: QuantParams, factors: Floats | None = None) -> Steps:
    """Return the numbers that parameters have, of a tensor that is divided by factors before and multiplied by them behind."""
    scale, zero_point = params.scale, params.zero_point
    if isinstance(params.granularity, PerAxis):
        raise NotImplementedError("activations with a scale for each channel")
    low, high = (np.asarray(end - zero_point, np.float32) for end in (params.qmin, params.qmax))
    return Steps(scale=scale if factors is None else scale * factors, low=low, high=high)
