"""bfloat16 convolution and matmul by bfmmla: four elements of two pixels, times four of two channels.

    for each tile of pixels x vectors:   for each tap, each four input channels:   acc[pair][two channels] += pair @ weights

The loops are those of float32; sums of two pixels share registers until the end of a tile. A pixel without a partner is its own.
Oracle: `numerics.floats.half.bfloat16_conv2d` with `bfloat16_odd_dot`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as T

from .......numerics.floats.float_function import FloatFunction
from .......numerics.floats.half import to_half
from ...language.arm import vector as v
from ...language.arm.bfloat16 import bring_along, multiply_matrix
from ...language.kernel import Kernel
from ...language.lane_order import LANES
from ...language.partial import load_partial
from ...language.schedule import NO_SCHEDULES, Schedules
from ...language.vectors import Expr, load, store, store_partial
from ...quantization.half_cast import narrowed_bfloat16, widened
from ..bfloat16_spec import Bfloat16Conv2dSpec
from ..float_gemm import FloatArray, FloatGemm
from ..loops.float_packing import pack_panels
from ..loops.gemm_loops import Panel, TilePlace
from .gemm import ArmCore
from .pairs import geometry_in, paired_copy

STEP = 4  # elements of a pixel that one product takes
# With 24 accumulators LLVM spills some.
CORE = ArmCore(accumulators=16, registers=16, activation_cycles=0.25, pixels_together=2, load_cycles=2.7)


class ArmBfloat16Gemm(FloatGemm):
    """Emits one layer's PrimFunc."""

    element_bytes = 2
    dtype = "uint16"
    step_elements = STEP
    skips_borders = False  # pixels of a pair may differ in that
    takes_any_pixels = False
    strung_panels = 1
    spec: Bfloat16Conv2dSpec

    def __init__(
        self, spec: Bfloat16Conv2dSpec, weight: FloatArray, bias: FloatArray, *, schedules: Schedules = NO_SCHEDULES
    ) -> None:
        super().__init__(spec, weight, bias, core=CORE, schedules=schedules)
        self.partner = 0
        if (copy := paired_copy(spec, self.tile, self.geometry, element_bytes=2)) is not None:
            self.geometry, self.is_copied, self.partner = geometry_in(copy, self.geometry), True, copy.partner
            self.scratch = paired_copy(spec, self.tile, self.geometry, element_bytes=2, block=self.block)

    def build(self, name: str, isa: str) -> Kernel:
        """Emit the PrimFunc and return the kernel."""
        kernel = super().build(name, isa)
        return replace(kernel, func=bring_along(kernel.func))

    @property
    def _addend_dtype(self) -> str:
        return self.spec.addend

    @property
    def _out_dtype(self) -> str:
        return self.spec.output

    def _packed(self, weight: FloatArray) -> npt.NDArray[Any]:
        """Return four weights of a channel as int64, the first in the lowest bits; a run ends with zeros."""
        run, groups = self.geometry.reduction.run, self.geometry.groups
        bits = to_half(weight, "bfloat16").reshape(-1, run, weight.shape[3])
        bits = np.pad(bits, ((0, 0), (0, -run % STEP), (0, 0))).reshape(-1, STEP, groups, weight.shape[3] // groups)
        fours = np.ascontiguousarray(np.moveaxis(bits, 1, -1)).view(np.int64)[..., 0]
        return pack_panels(fours, self.tile.vectors)

    def _accumulated(self, pixels: int) -> int:
        return pixels + pixels % 2

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
        """Emit the steps over `elements` neighbours of pixels (number, first element), two at a time."""
        starts = [start for _, start in pixels]
        pairs = [(starts[first], starts[min(first + 1, len(starts) - 1)]) for first in range(0, len(starts), 2)]
        step_size, spread = panel.vectors * LANES, 2 if self.partner else 1

        def multiply(values: list[Expr], weights: Expr) -> None:
            for number in range(step_size // 2):
                column = T.Bind(load(self.weights, weights + 2 * number, 2))
                for pair, value in enumerate(values):
                    at = (pair * step_size // 2 + number) * v.QUAD
                    store(acc, at, multiply_matrix(load(acc, at, v.QUAD), value, column), v.QUAD)

        def two_steps(element: Expr, weights: Expr) -> None:
            halves: list[list[Expr]] = []
            for pair in pairs:
                if self.partner:
                    halves.append([self._pair(source, element + lane * (2 * STEP), pair, STEP) for lane in range(2)])
                    continue
                words = [_words(load(source, element + start, 2 * STEP)) for start in pair]
                halves.append([T.Bind(v.shuffled(words, [lane, 2 + lane])) for lane in range(2)])
            for lane in range(2):
                multiply([half[lane] for half in halves], weights + lane * step_size)

        doubles, left = divmod(elements, 2 * STEP)
        if doubles == 1:
            two_steps(element, weights)
        elif doubles:
            with T.serial(0, doubles) as index:
                two_steps(element + index * (2 * STEP * spread), weights + index * (2 * step_size))
        for number, start in enumerate(range(0, left, STEP)):
            done = 2 * doubles + number
            taken = min(STEP, left - start)
            values = [self._pair(source, element + done * (STEP * spread), pair, taken) for pair in pairs]
            multiply(values, weights + done * step_size)

    def _pair(self, source: Expr, element: Expr, starts: tuple[int, int], taken: int) -> Expr:
        """Return four elements of two pixels, of which `taken` are read and the others 0."""
        if self.partner and starts[1] - starts[0] in {0, self.partner}:
            return _words(load(source, element + starts[0], 2 * STEP))
        fours = [T.broadcast(_four(source, element + start, taken), 2) for start in starts]
        return T.Bind(v.shuffled(fours, [0, 2]))

    def _by_pixel(self, acc: Expr, pixels: int, panel: Panel) -> Expr:
        """Emit the sums of each pixel in the order of its channels, and return their buffer."""
        sums: Any = T.alloc_buffer((pixels * panel.vectors * LANES,), "float32", scope="local")
        per_pair = panel.vectors * LANES // 2
        for pixel in range(pixels):
            for quad in range(panel.vectors * LANES // v.QUAD):
                at = (pixel // 2 * per_pair + 2 * quad) * v.QUAD
                low, high = (load(acc, at + part * v.QUAD, v.QUAD) for part in range(2))
                lanes = [2 * (pixel % 2) + lane for lane in (0, 1, v.QUAD, v.QUAD + 1)]
                store(sums, pixel * panel.vectors * LANES + quad * v.QUAD, v.shuffled([low, high], lanes), v.QUAD)
        return sums

    def _emit_finish(self, acc: Expr, out_at: Expr, pixels: Sequence[Expr], panel: Panel) -> None:
        super()._emit_finish(self._by_pixel(acc, len(pixels), panel), out_at, pixels, panel)

    def _emit_function(self, function: FloatFunction, acc: Expr, out_at: Expr, place: TilePlace, panel: Panel) -> None:
        sums = self._by_pixel(acc, place.height * place.width, panel)
        super()._emit_function(function, sums, out_at, place, panel)

    def _added(self, value: Expr, place: Expr, valid: int) -> Expr:
        addend = load_partial(self.addend, place, LANES, valid, self.spec.addend)
        return value + (widened(addend, LANES, "bfloat16") if self.spec.addend == "uint16" else addend)

    def _store(self, place: Expr, value: Expr, valid: int) -> None:
        result = narrowed_bfloat16(T.Bind(value), LANES) if self.spec.output == "uint16" else value
        store_partial(self.out, place, result, LANES, valid, self.spec.output)


def _words(elements: Expr) -> Expr:
    """Return eight elements as two words of four."""
    return T.Bind(T.reinterpret("int64x2", elements))


def _four(source: Expr, element: Expr, taken: int) -> Expr:
    """Return four elements as a word, of which `taken` are read and the others 0."""
    if taken == STEP:
        return T.reinterpret("int64", load(source, element, STEP))
    word = T.cast(source[element], "int64")
    for number in range(1, taken):
        word = word | (T.cast(source[element + number], "int64") << T.int64(16 * number))
    return word
