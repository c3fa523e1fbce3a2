"""Epilogues with float32 results, 8-bit ones of a function of these, and results that are the int32 accumulators themselves.

Where the input was quantized at run time, its zero point is taken off here (acc - zero_point * the channel's sum of weights) and
its scale is read from memory. Oracles: `numerics.dequantize_accumulator`, `numerics.conv2d_accumulate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy.typing as npt
from tvm.script.ir_builder import tirx as T

from .......ir.composites.outputs import FloatOutput, FunctionOutput, SumOutput
from ...language.float_result import float_result, function_value, in_steps, input_scale, input_zero_point
from ...language.isa import AVX2, AVX512_VNNI
from ...language.rounding import scaled
from ...language.vectors import Expr, shuffled, splat, store, store_partial
from ...language.x86 import vector as v
from ..loops.packing import Weights
from ..spec import Conv2dSpec
from .epilogue import Epilogue, Group, limited

_MAX_UNROLLED = 4
"""Operations of a function that is written out for each vector: a loop over the vectors would cost as much."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatEpilogue:
    """How accumulators become float32 outputs; `channels` are those of an output pixel."""

    output: FloatOutput
    channels: int
    out_dtype: ClassVar[str] = "float32"

    def channel_values(self, weights: Weights) -> dict[str, npt.NDArray[Any]]:
        """Return the constants it reads, one value for each output channel."""
        values: dict[str, npt.NDArray[Any]] = {"multiplier": weights.multiplier, "real_bias": weights.real_bias}
        return {**values, "weight_sum": weights.sums} if self.output.pixels_per_scale != 0 else values

    def emit(self, group: Group) -> None:
        """Emit the store of one group's outputs."""
        scale, accumulators = None, group.accumulators
        if group.parameters is not None:
            index = T.Bind(T.floordiv(group.target, self.channels * self.output.pixels_per_scale))
            scale = input_scale(group.parameters, index)
            accumulators = _less_zero_points(group, input_zero_point(group.parameters, index))
        reals = [
            T.Bind(float_result(self.output, acc, multiplier, bias, scale, group.lanes))
            for acc, multiplier, bias in zip(accumulators, group.values["multiplier"], group.values["real_bias"], strict=True)
        ]
        _store(group, reals, "float32")


@dataclass(frozen=True, kw_only=True, slots=True)
class SumEpilogue:
    """How accumulators become int32 outputs; `channels` are those of an output pixel."""

    output: SumOutput
    channels: int
    out_dtype: ClassVar[str] = "int32"

    def channel_values(self, weights: Weights) -> dict[str, npt.NDArray[Any]]:
        """Return the constants it reads, one value for each output channel."""
        return {"weight_sum": weights.sums} if self.output.pixels_per_scale != 0 else {}

    def emit(self, group: Group) -> None:
        """Emit the store of one group's outputs."""
        accumulators = group.accumulators
        if group.parameters is not None:
            index = T.Bind(T.floordiv(group.target, self.channels * self.output.pixels_per_scale))
            accumulators = _less_zero_points(group, input_zero_point(group.parameters, index))
        _store(group, [T.Bind(acc) for acc in accumulators], "int32")


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionEpilogue:
    """How accumulators become uint8 outputs of a float32 function."""

    output: FunctionOutput
    out_dtype: ClassVar[str] = "uint8"

    def channel_values(self, weights: Weights) -> dict[str, npt.NDArray[Any]]:
        """Return the constants it reads, one value for each output channel."""
        return {"multiplier": weights.multiplier, "real_bias": weights.real_bias, **self.output.constants()}

    def emit_all(self, groups: Iterable[Group], vectors: int, lanes: int) -> None:
        """Emit the stores of a tile's outputs; a long function in a loop over its vectors, or the code would be long, too."""
        if self.output.function.operations <= _MAX_UNROLLED:
            for group in groups:
                self._store(group, [function_value(self.output, *each, lanes) for each in self._operands(group)])
            return
        buffers: list[Any] = [
            T.alloc_buffer((vectors * lanes,), "float32", scope="local") for _ in range(1 + len(self.output.channels))
        ]
        seen: list[Group] = []
        for group in groups:
            first = sum(len(other.accumulators) for other in seen)
            for place, (value, channels) in enumerate(self._operands(group), first):
                for buffer, each in zip(buffers, (value, *channels), strict=True):
                    store(buffer, place * lanes, each, lanes)
            seen.append(group)
        with T.serial(0, vectors) as index:
            value, *channels = (v.load(buffer, index * lanes, lanes) for buffer in buffers)
            store(buffers[0], index * lanes, function_value(self.output, value, channels, lanes), lanes)
        place = 0
        for group in seen:
            count = len(group.accumulators)
            self._store(group, [v.load(buffers[0], (place + number) * lanes, lanes) for number in range(count)])
            place += count

    def _operands(self, group: Group) -> Iterator[tuple[Expr, list[Expr]]]:
        """Yield what the function reads, vector by vector: the real sums, and numbers of their channels."""
        values, channels = group.values, range(len(self.output.channels))
        for place, sums in enumerate(zip(group.accumulators, values["multiplier"], values["real_bias"], strict=True)):
            yield scaled(*sums, group.lanes), [values[f"channel{number}"][place] for number in channels]

    def _store(self, group: Group, results: Sequence[Expr]) -> None:
        """Emit the store of one group's function, in steps of its integers."""
        lanes, factors = group.lanes, group.values.get("factor", [None] * len(results))
        steps = [in_steps(self.output, *each, lanes) for each in zip(results, factors, strict=True)]
        rounded = [v.round_half_even(limited(each, lanes), lanes) for each in steps]
        Epilogue(output=self.output.integers, may_exceed_int32=False).store(group, rounded)


AnyEpilogue = Epilogue | FloatEpilogue | FunctionEpilogue | SumEpilogue


def emit_groups(epilogue: AnyEpilogue, groups: Iterable[Group], vectors: int, lanes: int) -> None:
    """Emit the stores of groups of so many vectors together, each as it comes."""
    if isinstance(epilogue, FunctionEpilogue):
        epilogue.emit_all(groups, vectors, lanes)
        return
    for group in groups:
        epilogue.emit(group)


def epilogue_of(spec: Conv2dSpec, weights: Weights, isa: str = AVX512_VNNI) -> AnyEpilogue:
    """Return the epilogue of a layer's output."""
    if isinstance(spec.output, FunctionOutput):
        return FunctionEpilogue(output=spec.output)
    if isinstance(spec.output, FloatOutput):
        return FloatEpilogue(output=spec.output, channels=spec.out_channels)
    if isinstance(spec.output, SumOutput):
        return SumEpilogue(output=spec.output, channels=spec.out_channels)
    return Epilogue(output=spec.output, may_exceed_int32=weights.may_exceed_int32(), packs_alone=isa == AVX2)


def _less_zero_points(group: Group, zero_point: Expr) -> list[Expr]:
    """Return accumulators of x as those of x - zero_point."""
    less = splat(zero_point, group.lanes)
    return [acc - less * total for acc, total in zip(group.accumulators, group.values["weight_sum"], strict=True)]


def _store(group: Group, results: list[Expr], dtype: str) -> None:
    lanes = group.lanes
    for number, part in enumerate(_in_channel_order(results, lanes)):
        if group.valid > number * lanes:
            valid = min(group.valid - number * lanes, lanes)
            store_partial(group.out, group.target + number * lanes, part, lanes, valid, dtype)


def _in_channel_order(group: list[Expr], lanes: int) -> list[Expr]:
    """Return the vectors of one group with their lanes in sequence; see lane_order.py: blocks of four change place."""
    count = len(group)
    if count == 1:
        return group
    parts: list[Expr] = []
    for number in range(count):
        # Lane c of this part is channel number * lanes + c of the group: lane 4 q + r of vector j, for channel 4 g q + 4 j + r.
        channels = [divmod(number * lanes + lane, 4 * count) for lane in range(lanes)]
        indices = [(rest // 4) * lanes + 4 * block + rest % 4 for block, rest in channels]
        parts.append(shuffled(group, indices))
    return parts
