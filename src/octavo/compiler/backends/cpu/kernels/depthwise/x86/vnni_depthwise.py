"""Depthwise convolution through vpdpbusd, four taps of a channel at once: the strips of `depthwise.strip`, of 64 or 32 channels.

Subtracting shifted sums costs nothing: sums that count from the bits of a large float32 may be read as such, and their difference
is the float32 that requantization starts from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import tvm
from tvm.script.ir_builder import tirx as T

from .......ir.composites.outputs import SumOutput
from ...conv.loops.packing import Int8Array, Weights
from ...conv.x86.epilogue import Group
from ...conv.x86.wide_epilogue import emit_groups, epilogue_of
from ...language.isa import AVX512_VNNI, AVX_VNNI
from ...language.rounding import MAGIC_REACH, float_difference
from ...language.vectors import Expr, load
from ...language.x86 import vector as v
from ...language.x86.narrow import narrowed
from ..depthwise import Depthwise, Limits
from ..strip import Channels, ShiftedSums, StripEmitter


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class VnniStrips(StripEmitter):
    """Strips whose product takes uint8 by int8: vpdpbusd."""

    def _dot(self, acc: Expr, columns: Expr, weights: Expr, lanes: int) -> Expr:
        return v.dot(acc, columns, weights, lanes)

    def _emit_outputs(self, acc: Expr, sums: ShiftedSums | None, targets: Sequence[tuple[int, Expr]], channels: Channels) -> None:
        groups = self._groups(acc, sums, targets, channels)
        emit_groups(self.epilogue, groups, self.window.outputs * 4, channels.width // 4)

    def _groups(
        self, acc: Expr, sums: ShiftedSums | None, targets: Sequence[tuple[int, Expr]], channels: Channels
    ) -> Iterator[Group]:
        """Yield the sums of the outputs of one row."""
        width, lanes = channels.width, channels.width // 4
        values = {label: [T.Bind(self._load_lanes(label, channels, j)) for j in range(4)] for label in self.channel_values}
        for pixel, target in targets:
            accumulators = [load(acc, (pixel * 4 + j) * lanes, lanes) for j in range(4)]
            if sums is not None:
                totals = [load(sums.totals, j * lanes, lanes) for j in range(4)]
                pairs = zip(accumulators, totals, strict=True)
                accumulators = [float_difference(a, b, lanes) if self.is_magic else a - b for a, b in pairs]
            yield Group(
                out=self.out,
                target=target,
                accumulators=accumulators,
                values=values,
                valid=min(width, self.spec.out_channels),
                parameters=self.parameters,
                lanes=lanes,
            )


class VnniDepthwise(Depthwise):
    """Emits one layer's PrimFunc."""

    limits: ClassVar[Mapping[str, Limits]] = {
        AVX512_VNNI: Limits(outputs=4, channels=64, kept=24),
        AVX_VNNI: Limits(outputs=2, channels=32, kept=0),
    }

    @property
    def strip_emitter(self) -> type[StripEmitter]:
        """What emits strips."""
        return VnniStrips

    def _end(self, weights: Weights) -> tuple[Any, Mapping[str, npt.NDArray[Any]]]:
        epilogue = epilogue_of(self.spec, weights)
        return epilogue, epilogue.channel_values(weights)

    def _compiled_for(self, func: tvm.tirx.PrimFunc) -> tvm.tirx.PrimFunc:
        return narrowed(func, self.isa)

    def _fits_magic(self, values: Int8Array, shifts: npt.NDArray[np.int64], bias: npt.NDArray[np.int32]) -> bool:
        if isinstance(self.spec.output, SumOutput) or self.spec.scales != 0:
            return False
        slots = 4 * len(self.window.columns) * self.spec.kernel[0]
        most = 255 * (np.abs(values.astype(np.int64)).sum(axis=(0, 1)) + slots * np.abs(shifts))
        most[: bias.size] += np.abs(bias.astype(np.int64))
        return bool(most.max() <= MAGIC_REACH)
