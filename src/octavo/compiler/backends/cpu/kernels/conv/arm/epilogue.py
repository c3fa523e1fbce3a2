"""Epilogue: int32 sums in registers become outputs in memory, as `numerics.requantize` and its kin define.

It takes sums in the order of their channels. Where the input was quantized at run time, its zero point is taken off here.

To convert between float32 and int32 takes two cycles of pipes that also multiply, where a core has more pipes than those; a sum
takes any pipe. So results that are small enough are rounded by adding a large float32 (see `rounding.MAGIC`). With i8mm, small
sums count from its bits; among cores without are those that issue in order, which convert sums as fast as they add.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as T

from .......ir.composites.outputs import FloatOutput, FunctionOutput, Output, SumOutput
from ...language.arm import vector as v
from ...language.float_result import float_result, function_value, in_steps, input_scale, input_zero_point
from ...language.isa import ARM_I8MM
from ...language.rounding import MAGIC_BITS, MAGIC_REACH, less_magic, magic_sum, rounded, scaled
from ...language.vectors import Expr, load, splat, store_partial
from ..loops.packing import Weights
from ..spec import Conv2dSpec

_DTYPES = {Output: "uint8", FunctionOutput: "uint8", FloatOutput: "float32", SumOutput: "int32"}
LANES = 16  # channels that are finished together
WORD_REACH = 2**15 - 1  # of results that are rounded to 16 bits


@dataclass(frozen=True, kw_only=True, slots=True)
class Finish:
    """Sums of channels of one pixel and where they go.

    Parameters
    ----------
    target
        Index in the output of the first one.
    channel
        Place of the first one among the packed constants.
    quads
        Vectors of 4 sums; a multiple of 4, unless they are the last.
    valid
        How many of the sums are outputs.
    """

    target: Expr
    channel: Expr
    quads: list[Expr]
    valid: int


class Epilogue:
    """Emits what becomes of the sums of one layer."""

    def __init__(self, spec: Conv2dSpec, weights: Weights, *, isa: str) -> None:
        self.spec, self.output = spec, spec.output
        self.out_dtype = _DTYPES[type(spec.output)]
        is_plain = isinstance(spec.output, Output)
        self._from_magic = is_plain and isa == ARM_I8MM and bool(weights.most_sums.max(initial=0.0) <= MAGIC_REACH)
        self._fits_words = is_plain and weights.most_real <= WORD_REACH
        self._values = self._channel_values(weights)

    def _channel_values(self, weights: Weights) -> dict[str, npt.NDArray[Any]]:
        output = self.output
        values: dict[str, npt.NDArray[Any]] = {}
        if not isinstance(output, SumOutput):
            values["multiplier"] = weights.multiplier
        if isinstance(output, FloatOutput | FunctionOutput) or output.real_bias:
            values["real_bias"] = weights.real_bias
        if isinstance(output, FunctionOutput):
            values |= output.constants()
        if self.spec.scales != 0:
            values["weight_sum"] = weights.sums
        return values

    @property
    def channel_values(self) -> dict[str, npt.NDArray[Any]]:
        """The constants it reads, one value for each output channel."""
        return self._values

    @property
    def sums_from(self) -> int:
        """What its sums count from: callers add it to their bias."""
        return MAGIC_BITS if self._from_magic else 0

    def biased(self, bias: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return the bias that sums take, counted from there."""
        return (bias.astype(np.int64) + self.sums_from).astype(np.int32)

    def emit(self, out: Expr, operands: Mapping[str, Expr], parameters: Expr | None, finish: Finish) -> None:
        """Emit the stores of one pixel's outputs, 16 channels at a time."""
        per_vector = LANES // v.QUAD
        for first in range(0, len(finish.quads), per_vector):
            quads = finish.quads[first : first + per_vector]
            valid = min(finish.valid - first * v.QUAD, LANES)
            target, channel = finish.target + first * v.QUAD, finish.channel + first * v.QUAD
            # The last ones stand for those that are missing: nothing is read beside them, and nothing stored of them.
            places = [min(place, len(quads) - 1) for place in range(per_vector)]
            values = {
                label: [load(operands[label], channel + place * v.QUAD, v.QUAD) for place in places] for label in self._values
            }
            if isinstance(self.output, Output):
                result = self._requantized([quads[place] for place in places], values)
            else:
                constants = {label: v.concatenated(each, v.QUAD) for label, each in values.items()}
                result = self._other(v.concatenated([quads[place] for place in places], v.QUAD), constants, parameters, target)
            store_partial(out, target, result, LANES, valid, self.out_dtype)

    def _requantized(self, quads: list[Expr], values: Mapping[str, list[Expr]]) -> Expr:
        """Return uint8x16; saturation on the way never changes what a clamp to uint8 gives."""
        output = self.output
        assert isinstance(output, Output)
        reals: list[Expr] = []
        for number, acc in enumerate(quads):
            bias = values["real_bias"][number] if output.real_bias else None
            acc = less_magic(T.reinterpret("float32x4", acc), v.QUAD) if self._from_magic else acc
            reals.append(scaled(acc, values["multiplier"][number], bias, v.QUAD))
        halves: list[Expr] = []
        for pair in (reals[:2], reals[2:]):
            words = self._words(pair)
            words = v.add_saturate_int16(words, output.zero_point) if output.zero_point else words
            halves.append(v.narrow_uint8(words))
        result = v.concatenated(halves, 8)
        if output.qmin > 0:
            result = T.max(result, T.broadcast(T.uint8(output.qmin), LANES))
        if output.qmax < 255:
            result = T.min(result, T.broadcast(T.uint8(output.qmax), LANES))
        return result

    def _words(self, reals: list[Expr]) -> Expr:
        """Return two vectors of real values rounded to int16x8, saturated."""
        if self._fits_words:
            return v.low_words([magic_sum(real, v.QUAD) for real in reals])
        return v.concatenated([v.narrow_int16(v.round_half_even(real)) for real in reals], v.QUAD)

    def _other(self, acc: Expr, constants: dict[str, Expr], parameters: Expr | None, target: Expr) -> Expr:
        """Return 16 results that are no plain integers of a real multiple."""
        output, scale = self.output, None
        if parameters is not None:
            index = T.Bind(T.floordiv(target, self.spec.out_channels * self.spec.pixels_per_scale))
            acc = acc - splat(input_zero_point(parameters, index), LANES) * constants["weight_sum"]
            scale = input_scale(parameters, index)
        if isinstance(output, SumOutput):
            return acc
        if isinstance(output, FloatOutput):
            return float_result(output, acc, constants["multiplier"], constants["real_bias"], scale, LANES)
        assert isinstance(output, FunctionOutput)
        value = scaled(acc, constants.pop("multiplier"), constants.pop("real_bias"), LANES)
        factor = constants.pop("factor", None)
        value = in_steps(output, function_value(output, value, list(constants.values()), LANES), factor, LANES)
        of = output.integers
        return rounded(value, zero_point=of.zero_point, qmin=of.qmin, qmax=of.qmax, dtype="uint8", lanes=LANES)
