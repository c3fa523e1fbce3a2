"""float32 convolution and matmul on ARM64: four elements of a pixel in a register, each of which a product takes by its number.

The loops, and the order of every sum, are those of `x86.float_gemm`.
"""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from ..loops.gemm_loops import Panel
from ..loops.lane_order import LANES
from ..vectors import Expr, load, store
from ..x86.float_gemm import FloatGemm
from . import vector as v

PIXELS = 5
"""Pixels of a tile one vector wide: 20 registers of sums, beside pixels and a step's weights."""


class ArmFloatGemm(FloatGemm):
    """Emits one layer's PrimFunc."""

    def _emit_run(
        self,
        acc: Expr,
        source: Expr,
        element: Expr,
        weights: Expr,
        elements: int,
        pixels: list[tuple[int, int]],
        panel: Panel,
    ) -> None:
        """Emit the steps over `elements` neighbours of pixels (number, first element), four at a time."""
        step_size = panel.vectors * LANES

        def four(element: Expr, weights: Expr) -> None:
            values = [T.Bind(load(source, element + start, v.QUAD)) for _, start in pixels]
            for lane in range(v.QUAD):
                for j in range(panel.vectors):
                    column = T.Bind(self._loaded_weights(weights + lane * step_size + j * LANES))
                    for (i, _), value in zip(pixels, values, strict=True):
                        index = (i * panel.vectors + j) * LANES
                        product = v.shuffled([value] * (LANES // v.QUAD), [lane] * LANES) * column
                        store(acc, index, load(acc, index, LANES) + product, LANES)

        fours, left = divmod(elements, v.QUAD)
        if fours == 1:
            four(element, weights)
        elif fours:
            with T.serial(0, fours) as index:
                four(element + index * v.QUAD, weights + index * (v.QUAD * step_size))
        if left:
            done = fours * v.QUAD
            super()._emit_run(acc, source, element + done, weights + done * step_size, left, pixels, panel)
