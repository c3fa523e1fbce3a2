"""From a product's float result through a function of its elements to the integers it ends in. It decides no kernel.

Before::

    s = R.sigmoid(lv); m = R.multiply(lv, s); n = R.multiply(m, factors); y = R.quantize(n, scale, zero_point)

The walk from lv returns the program of s and m, the factors of the channels where there are any, and the integers y. Of a
parametric relu it also returns the slopes of the channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from .....numerics.floats.float_function import FloatFunction
from .....target import OpSupport
from .....target.vocabulary import HALF_EVEN, HALF_EVEN_STORED
from ....composites.base import WIDE, QuantizedOutput
from ....graph.dataflow import DataflowView, call_to, static_shape
from ....graph.rules import Rejection
from ...rounding import result_rounding
from ...tail import follow_to_quantize
from ...values import constant_value, real_values
from .float_chain import chain_from

SLOW = "erf"
"""With it in the loop over a tile's sums that takes three times as long as a pass of its own."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FunctionTail:
    """The variables from an op's result (excluded) to the integers of a function of it."""

    members: tuple[Var, ...]
    output: Var
    function: FloatFunction
    channels: tuple[npt.NDArray[np.float32], ...]
    factors: npt.NDArray[np.float32] | None
    result: QuantizedOutput


def follow_function(view: DataflowView, start: Var, axis: int, support: OpSupport) -> FunctionTail | None:
    """Walk from an op's float result, whose channels lie along `axis`, to 8-bit integers; None where no function is between."""
    chain = chain_from(view, start, max_inputs=1, has_channels=True)
    if chain is None or chain.axis not in (None, axis) or any(step.op == SLOW for step in chain.function.steps):
        return None
    members, end, factors = list(chain.members), chain.output, None
    scaled = _factors(view, end, axis)
    if scaled is not None:
        end, factors, passed = scaled
        members.extend(passed)
    tail = follow_to_quantize(view, end, support)
    if isinstance(tail, Rejection) or tail.result.tensor.params.dtype in WIDE or tail.result.fixed_point is not None:
        return None
    if result_rounding(view, tail.members) not in (HALF_EVEN, HALF_EVEN_STORED):  # as a quantize of its own has it
        return None
    members.extend(tail.members)
    return FunctionTail(
        members=tuple(members),
        output=tail.output,
        function=chain.function,
        channels=chain.channels,
        factors=factors,
        result=tail.result,
    )


def _factors(view: DataflowView, var: Var, axis: int) -> tuple[Var, npt.NDArray[np.float32], tuple[Var, ...]] | None:
    """Return the product of `var` with a constant number for each channel that alone reads it, and the numbers."""
    user, shape = view.only_user(var), static_shape(var)
    call = None if user is None else call_to(view.definition(user), "multiply")
    if user is None or call is None or shape is None:
        return None
    constants = [constant for arg in call.args if (constant := constant_value(view, arg)) is not None]
    if len(constants) != 1 or static_shape(user) != shape:
        return None
    values = real_values(constants[0])
    along = tuple(size if place == axis else 1 for place, size in enumerate(shape))
    if (1,) * (len(shape) - values.ndim) + values.shape != along:
        return None
    return user, np.ascontiguousarray(values.reshape(-1), np.float32), (*constants[0].members, user)
