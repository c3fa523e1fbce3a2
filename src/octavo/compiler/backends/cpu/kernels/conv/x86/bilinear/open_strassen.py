"""Dense layers of open rows for AVX2: Strassen's product where many rows are there, the plain one where few are.

Both read the same packed weights, biases and multipliers, so the file holds them once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as T

from ........runtime.size import is_open
from ....language.isa import AVX2
from ....language.kernel import Kernel
from ....language.schedule import NO_SCHEDULES, Schedules
from ....language.vectors import Expr, bound
from ....language.x86.vector import LANES
from ...layer_function import LayerBuffers
from ...loops.gemm_loops import Panel
from ...loops.packing import Weights
from ...spec import Conv2dSpec
from ..cores import CORES
from ..word_gemm import WordGemm, direct_choice
from .point_plan import total_cycles
from .strassen import Strassen
from .strassen_choice import PANEL, StrassenPlan, strassen_plans

MANY = 128
"""Rows for which the levels of the product are chosen."""

FULL_GROUPS = 4
"""Full groups of tiles from which on the product is taken: what is left behind them costs less than it saves then."""


class OpenDense(WordGemm):
    """Emits one layer's PrimFunc; `build` is the entrance."""

    def __init__(self, spec: Conv2dSpec, weights: Weights, schedules: Schedules = NO_SCHEDULES) -> None:
        super().__init__(spec, weights, isa=AVX2, schedules=schedules)
        self._many: _ManyRows | None = None
        plan = _plan_of_many(spec, weights)
        # Channels must lie as Strassen's product takes them: by single vectors, weights less their zero points in bytes.
        is_alike = self.tile.vectors == PANEL and self.constants["weights"].dtype == np.int8
        if plan is not None and is_alike:
            self._many = _ManyRows(plan, weights, spec, self.constants["weights"], self.threads)
            self._from = FULL_GROUPS * plan.pixels * plan.size

    def build(self, name: str) -> Kernel:
        """Emit the PrimFunc and return the kernel, which is named after both products."""
        kernel = super().build(name)
        return kernel if self._many is None else replace(kernel, name=f"{kernel.name}, strassen {self._many.plan.size}")

    def _emit(self, buffers: LayerBuffers) -> None:
        if self._many is not None:
            self._many.take(buffers)
        super()._emit(buffers)

    def _emit_chunk(self, chunk: Expr | None) -> None:
        if self._many is None:
            super()._emit_chunk(chunk)
            return
        with T.If(T.int32(0) + bound(self.geometry.rows) >= self._from):
            with T.Then():
                self._many.emit_chunk(chunk)
            with T.Else():
                super()._emit_chunk(chunk)


class _ManyRows(Strassen):
    """Strassen's product of weights that are packed for the plain one: in the order vector, step, lane, byte."""

    def __init__(self, plan: StrassenPlan, weights: Weights, spec: Conv2dSpec, packed: npt.NDArray[Any], threads: int) -> None:
        self._plainly_packed = packed
        super().__init__(plan, weights, spec)
        self.threads = threads

    def take(self, buffers: LayerBuffers) -> None:
        """Take the buffers of the layer."""
        self._take(buffers)

    def emit_chunk(self, chunk: Expr | None) -> None:
        """Emit a thread's share."""
        self._emit_chunk(chunk)

    def _packed(self, values: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
        return self._plainly_packed

    def _part_at(self, panel: Panel, step: Expr, place: tuple[int, int]) -> Expr:
        tiling = self.plan.tiling
        vector = place[1] * tiling.vectors + panel.first
        return (vector * (self.plan.size * tiling.steps) + place[0] * tiling.steps + step) * (2 * LANES)

    def _emit_requests(self, panel: Panel, weights: Expr, number: Expr, group: Expr) -> None:
        """Ask for nothing: many rows read weights that mostly are near, and parts of a panel lie apart."""


def _plan_of_many(spec: Conv2dSpec, weights: Weights) -> StrassenPlan | None:
    """Return the product of many rows, which is estimated to take less time than the plain one, if there is one."""
    if is_open(spec.in_width) or spec.in_width != 1:
        return None
    many = _of_rows(spec, MANY)
    direct, _ = direct_choice(many)
    plans = [plan for plan in strassen_plans(many, CORES[AVX2]) if total_cycles(plan) < direct and plan.is_exact(weights)]
    return plans[0] if plans else None


def _of_rows(spec: Conv2dSpec, rows: int) -> Conv2dSpec:
    return replace(spec, batch=1, in_height=rows)
