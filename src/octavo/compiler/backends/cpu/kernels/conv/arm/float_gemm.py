"""float32 convolution and matmul on ARM64: four elements of a pixel in a register, each of which a product takes by its number.

The loops, and the order of every sum, are those of `conv.float_gemm`.
"""

from __future__ import annotations

from itertools import product

from tvm.script.ir_builder import tirx as T

from ...language.arm import vector as v
from ...language.isa import ARM_NEON
from ...language.lane_order import LANES
from ...language.vectors import Expr, load, store
from ..float_gemm import FloatGemm
from ..loops.gemm_loops import Panel

PIXELS = 5
"""Pixels of a tile one vector wide: 20 registers of sums, beside pixels and a step's weights."""

SHORT_COLUMN = 2 * v.QUAD
"""Channels of one column of a step's weights, where they are float32 and the ISA has dotprod.

Where such a core issues in order LLVM unrolls the loop, and reads so far ahead that the registers of longer columns are spilled.
Cores without dotprod wait before each group of loads: a few large groups serve them best. So do long columns what widens them.
"""


class ArmFloatGemm(FloatGemm):
    """Emits one layer's PrimFunc."""

    takes_any_pixels = False
    strung_panels = 1

    @property
    def column_lanes(self) -> int:
        """Channels of a column of weights, and of every access to a tile's sums."""
        return LANES if self.isa == ARM_NEON or self.spec.weight_dtype != "float32" else SHORT_COLUMN

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
        step_size, width = panel.vectors * LANES, self.column_lanes

        def steps(element: Expr, weights: Expr, count: int) -> None:
            fours: dict[int, Expr] = {}  # read where the first product takes them
            for lane, first in product(range(count), range(0, step_size, width)):
                column = T.Bind(self._loaded_weights(weights + lane * step_size + first, width))
                for i, start in pixels:
                    if count < v.QUAD:
                        value = T.broadcast(source[element + start + lane], width)
                    else:
                        if i not in fours:
                            fours[i] = T.Bind(load(source, element + start, v.QUAD))
                        value = v.shuffled([fours[i]] * (width // v.QUAD), [lane] * width)
                    index = i * step_size + first
                    store(acc, index, load(acc, index, width) + value * column, width)

        fours, left = divmod(elements, v.QUAD)
        if fours == 1:
            steps(element, weights, v.QUAD)
        elif fours:
            with T.serial(0, fours) as index:
                steps(element + index * v.QUAD, weights + index * (v.QUAD * step_size), v.QUAD)
        if left:
            done = fours * v.QUAD
            steps(element + done, weights + done * step_size, left)
