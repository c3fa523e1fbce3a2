"""From int32 and int64 sums of each output channel to integers or float32: the epilogue of convolutions of 16-bit activations.

Of sums of 8-bit activations in memory `requantize_sums` is the kernel.

Constants are folded at compile time; which of them there are depends on how the multiplier is given. Oracle:
`numerics.requantize`, `numerics.dequantize_accumulator`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as B

from ......ir.composites.outputs import FloatOutput, FunctionOutput, Output, SumOutput
from ......numerics.rounding.fixed_point import FixedPointMultiplier
from ......numerics.rounding.narrow_accumulator import NarrowAccumulator
from ......numerics.rounding.requantize import Multiplier
from ..language.fixed_point import accumulated, clamped_integer
from ..language.float_result import float_result
from ..language.rounding import requantized
from ..language.vectors import Buffer, Expr, load, splat

Constants = dict[str, npt.NDArray[Any]]


class ChannelRequantize:
    """Emits clamp(scaled(accumulated(sum + bias)) + zero_point) for vectors of output channels, or clamp(scaled(sum + bias)).

    Parameters
    ----------
    output
        Zero point and bounds of the result.
    bias
        int64 (channels,): all that is added to the sums.
    multiplier
        One for all channels or one for each.
    dtype
        Of integers.
    narrow
        The accumulator where sums may leave it.
    real_bias
        float32 (channels,): what is added to a float32 result.
    """

    def __init__(
        self,
        output: Output | FloatOutput | FunctionOutput | SumOutput,
        bias: npt.NDArray[np.int64],
        multiplier: Multiplier,
        dtype: str = "int16",
        *,
        narrow: NarrowAccumulator | None = None,
        real_bias: npt.NDArray[np.float32] | None = None,
    ) -> None:
        assert not isinstance(output, SumOutput | FunctionOutput), "these sums end in integers or float32"
        self._output, self._narrow = output, narrow
        self.dtype = dtype if isinstance(output, Output) else "float32"
        self._factor = multiplier if isinstance(multiplier, FixedPointMultiplier) else None
        channels = bias.shape
        self.constants: Constants
        if self._factor is None:
            self.constants = {"bias": bias, "multiplier": np.broadcast_to(np.asarray(multiplier, np.float32), channels).copy()}
            if real_bias is not None:
                self.constants["real_bias"] = real_bias
            return
        factor, first, second = (
            np.broadcast_to(array, channels).astype(np.int64)
            for array in (self._factor.factor, self._factor.first, self._factor.second)
        )
        half = (np.int64(1) << first) >> 1
        # (sum + bias) * factor + half = sum * factor + offset
        added = {"offset": bias * factor + half} if narrow is None else {"bias": bias, "offset": half}
        self.constants = {**added, "factor": factor, "first": first}
        if second.any():
            self.constants["second"] = second

    def loaded(self, buffers: Mapping[str, Buffer], at: Expr, lanes: int) -> dict[str, Expr]:
        """Load the constants of the channels from `at` on; `buffers` hold `constants` by name."""
        return {name: B.Bind(load(buffers[name], at, lanes)) for name in self.constants}

    def result(self, total: Expr, constants: Mapping[str, Expr], lanes: int) -> Expr:
        """Return an int64 vector of sums as the result."""
        if "bias" in constants:
            total = accumulated(total + constants["bias"], self._narrow, lanes)
        if isinstance(self._output, FloatOutput):
            return float_result(self._output, total, constants["multiplier"], constants["real_bias"], None, lanes)
        if self._factor is None:
            return requantized(total, constants["multiplier"], self._output, lanes, dtype=self.dtype)
        value = (total * constants["factor"] + constants["offset"]) >> constants["first"]
        second = constants.get("second")
        if second is not None:
            value = B.Bind(value)
            one = splat(B.int64(1), lanes)
            halved = value + ((one << second) >> one)
            if self._factor.ties != "half_up":
                is_away = self._factor.ties == "half_away"
                less = value >> splat(B.int64(63), lanes) if is_away else B.bitwise_and(value >> second, one) - one
                halved = halved + B.Select(second > splat(B.int64(0), lanes), less, splat(B.int64(0), lanes))
            value = halved >> second
        return clamped_integer(value, self._output, lanes, self.dtype)


def safe_steps(weights: npt.NDArray[np.integer], values_per_step: int, reach: int) -> int | None:
    """Return how many steps of products may be added up in int32, None if all of a layer's may.

    Parameters
    ----------
    weights
        Less their zero points, output channels last.
    values_per_step
        Products that one step adds.
    reach
        Largest |activation| that is multiplied.
    """
    most = 2**31 - 1
    magnitudes = np.abs(weights.astype(np.int64)).reshape(-1, weights.shape[-1])
    if int(magnitudes.sum(axis=0).max(initial=0)) * reach <= most:
        return None
    return most // (values_per_step * reach * int(magnitudes.max()))
