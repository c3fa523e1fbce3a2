"""Depthwise convolution by dot products: the strips of `depthwise.strip`, 16 channels wide, four registers of 4 dwords each.

Where the product takes int8, interleaved columns lose their 128 in registers, once for all outputs and rows that they serve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as T

from ...conv.arm.epilogue import Epilogue, Finish
from ...conv.loops.packing import Weights
from ...conv.spec import Conv2dSpec
from ...language.arm import vector as v
from ...language.isa import ARM_DOTPROD, ARM_I8MM
from ...language.schedule import NO_SCHEDULES, Schedules
from ...language.vectors import Expr, load
from ..depthwise import Depthwise, Limits
from ..strip import Channels, ShiftedSums, StripEmitter


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MixedStrips(StripEmitter):
    """Strips whose product takes uint8 by int8: usdot."""

    def _dot(self, acc: Expr, columns: Expr, weights: Expr, lanes: int) -> Expr:
        assert lanes == v.QUAD
        return v.usdot(acc, columns, weights)

    def _emit_outputs(self, acc: Expr, sums: ShiftedSums | None, targets: Sequence[tuple[int, Expr]], channels: Channels) -> None:
        for pixel, target in targets:
            quads = [load(acc, (pixel * 4 + j) * v.QUAD, v.QUAD) for j in range(4)]
            if sums is not None:
                quads = [quad - load(sums.totals, j * v.QUAD, v.QUAD) for j, quad in enumerate(quads)]
            valid = min(channels.width, self.spec.out_channels)
            finish = Finish(target=target, channel=channels.packed, quads=quads, valid=valid)
            self.epilogue.emit(self.out, self.operands, self.parameters, finish)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SignedStrips(MixedStrips):
    """Strips whose product takes int8 by int8: sdot."""

    def _as_multiplied(self, value: Expr) -> Expr:
        return value ^ T.broadcast(T.uint8(128), v.BYTES)

    def _dot(self, acc: Expr, columns: Expr, weights: Expr, lanes: int) -> Expr:
        assert lanes == v.QUAD
        return v.sdot(acc, T.reinterpret("int8x16", columns), weights)


_LIMITS = Limits(outputs=4, channels=16, kept=24)


class DotDepthwise(Depthwise):
    """Emits one layer's PrimFunc."""

    limits: ClassVar[Mapping[str, Limits]] = {ARM_DOTPROD: _LIMITS, ARM_I8MM: _LIMITS}

    def __init__(self, spec: Conv2dSpec, weights: Weights, *, isa: str, schedules: Schedules = NO_SCHEDULES) -> None:
        self.flips = isa == ARM_DOTPROD
        super().__init__(spec, weights, isa=isa, schedules=schedules)

    @property
    def keeps_rows(self) -> bool:
        """Whether most rows of a window were interleaved for the outputs above."""
        return 2 * self._kept_rows(self.window) > self.spec.kernel[0]

    @property
    def strip_emitter(self) -> type[StripEmitter]:
        """What emits strips of this ISA."""
        return SignedStrips if self.flips else MixedStrips

    def _end(self, weights: Weights) -> tuple[Any, Mapping[str, npt.NDArray[Any]]]:
        epilogue = Epilogue(self.spec, weights, isa=self.isa)
        return epilogue, epilogue.channel_values

    def _starts_of_blocks(self) -> npt.NDArray[np.int32]:
        return np.full(sum(width for _, width in self.blocks_of_channels), self.epilogue.sums_from, np.int32)
