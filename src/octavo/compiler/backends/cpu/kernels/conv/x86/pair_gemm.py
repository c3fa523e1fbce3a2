"""Convolution and matmul of int16 activations as an implicit matrix product, with the loops of the 8-bit one.

A step is two neighbouring activations, repeated in every lane, times two weights of each of 16 output channels (vpdpwssd).
Weights are widened to int16 when packed, so that they may be asymmetric, too. Products add up in int32 as long as that is proven
not to overflow; then the sums are spilled to int64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as T

from .......numerics.rounding.requantize import Multiplier
from .......runtime.shapes import typical
from ...language.isa import AVX512_VNNI
from ...language.kernel import Kernel
from ...language.schedule import NO_SCHEDULES, Schedules
from ...language.vectors import Expr, chunks_for, load, prim_func, store, store_partial
from ...language.x86.narrow import narrowed
from ...language.x86.vector import LANES, dot_int16
from ..channel_requantize import ChannelRequantize, safe_steps
from ..loops.gemm_loops import GemmLoops, Panel, TilePlace, for_runs
from ..loops.geometry import geometry_of
from ..loops.packing import panel_widths
from ..loops.scratch import Scratch
from ..schedule_key import schedule_key
from ..spec import Conv2dSpec
from .cores import CORES

Int16Array = npt.NDArray[np.int16]
_REACH = 32768  # largest |activation|


class PairGemm(GemmLoops):
    """Emits one layer's PrimFunc; `build` is the entrance, the other methods emit one level of the loop nest each."""

    element_bytes = 2

    def __init__(
        self,
        spec: Conv2dSpec,
        weight: npt.NDArray[np.integer],
        bias: npt.NDArray[np.int64],
        multiplier: Multiplier,
        *,
        real_bias: npt.NDArray[np.float32] | None = None,
        isa: str = AVX512_VNNI,
        schedules: Schedules = NO_SCHEDULES,
    ) -> None:
        self.spec = spec
        self.key = schedule_key(spec)
        self.isa = isa
        padded = Scratch(spec=spec, block=1, channels=spec.in_channels) if any(spec.padding) else None
        self.is_copied = padded is not None
        width = padded.width if padded is not None else None
        self.geometry = geometry = geometry_of(spec, spec.groups, weight.shape[2], padded_width=width)
        self.pairs = pair_starts(geometry.reduction.run)
        self.steps = geometry.reduction.runs * len(self.pairs)
        shape: dict[str, Any] = {
            "channels": geometry.group_outputs,
            "steps": self.steps,
        }
        self._choose_tile(self.key, schedules, CORES[isa], shape)
        self.threads = chunks_for(spec.threads, self.cycles, max(typical(geometry.images * geometry.rows), len(self.panels)))
        self.block = self._block_rows()
        self.scratch = Scratch(spec=spec, block=self.block, channels=spec.in_channels) if padded is not None else None
        self.safe_steps = safe_steps(weight, 2, _REACH)
        # The padding holds the input's zero point, so that every window counts it alike.
        folded = bias - spec.input_zero_point * weight.astype(np.int64).sum(axis=(0, 1, 2))
        self.requantize = ChannelRequantize(spec.output, folded, multiplier, narrow=spec.narrow, real_bias=real_bias)
        self.constants: dict[str, npt.NDArray[Any]] = {
            "weights": pack_pairs(weight, self.pairs, geometry.reduction.run, geometry.groups, self.tile.vectors),
            **{name: _padded_lanes(values, geometry.groups) for name, values in self.requantize.constants.items()},
        }

    def build(self, name: str) -> Kernel:
        """Emit the PrimFunc and return the kernel."""
        spec, geometry = self.spec, self.geometry
        in_size = spec.batch * spec.in_height * spec.in_width * spec.in_channels
        out_size = geometry.images * geometry.rows * geometry.columns * geometry.channels
        operands = [(label, value.size, str(value.dtype)) for label, value in self.constants.items()]
        func = prim_func([("x", in_size, "int16"), *operands, ("out", out_size, self.requantize.dtype)], self._emit)
        constants = tuple(self.constants.values())
        return Kernel(
            name=f"{name}.int16 {self.tile}",
            isa=self.isa,
            func=narrowed(func, self.isa),
            constants=constants,
            tunable=self._tunable(self.key),
        )

    def _emit(self, x: Expr, *others: Expr) -> None:
        self.x, self.out = x, others[-1]
        self.operands = dict(zip(self.constants, others, strict=False))
        self._emit_threads()

    def _emit_rows(self, source: Expr, base: Expr, out_base: Expr, block: Expr, panel: Panel, shared: Expr | None) -> None:
        """Emit all tiles of one panel over one block."""
        geometry = self.geometry

        def body(place: TilePlace) -> None:
            at = T.Bind(base + place.row * geometry.row_stride + place.column * geometry.column_stride)
            out_at = T.Bind(out_base + (place.row * geometry.columns + place.column) * geometry.channels)
            offsets = place.pixels
            starts = [y * geometry.row_stride + x * geometry.column_stride for y, x in offsets]
            pixels = [y * geometry.columns + x for y, x in offsets]
            vectors = len(offsets) * panel.vectors
            acc = T.alloc_buffer((vectors * LANES,), "int32", scope="local")
            total = T.alloc_buffer((vectors * LANES,), "int64", scope="local") if self.safe_steps is not None else None
            for i in range(vectors):
                store(acc, i * LANES, T.broadcast(T.int32(0), LANES), LANES)
                if total is not None:
                    store(total, i * LANES, T.broadcast(T.int64(0), LANES), LANES)
            self._emit_reduction(acc, total, source, at, starts, panel)
            self._emit_finish(acc if total is None else total, out_at, pixels, panel)

        self._for_tiles(block, body, panel)

    def _emit_reduction(self, acc: Expr, total: Expr | None, source: Expr, at: Expr, starts: list[int], panel: Panel) -> None:
        """Emit the loops over taps and steps."""
        reduction = self.geometry.reduction
        step_size = panel.vectors * 2 * LANES
        packed = self.operands["weights"]

        def step(element: Expr, weights: Expr) -> None:
            columns = [T.Bind(load(packed, weights + j * 2 * LANES, 2 * LANES)) for j in range(panel.vectors)]
            for i, start in enumerate(starts):
                values = T.Bind(self._pair(source, element + start))
                for j, column in enumerate(columns):
                    index = (i * panel.vectors + j) * LANES
                    store(acc, index, dot_int16(load(acc, index, LANES), values, column), LANES)

        def steps(element: Expr, weights: Expr, count: int) -> None:
            with T.serial(0, count) as index:
                step(element + index * 2, weights + index * step_size)
            self._spill(acc, total, len(starts) * panel.vectors)

        def run(element: Expr, weights: Expr) -> None:
            full = reduction.run // 2
            part = full if self.safe_steps is None else min(full, self.safe_steps)
            if part and full // part > 1:
                with T.serial(0, full // part) as index:
                    steps(element + index * (2 * part), weights + index * (part * step_size), part)
            elif part:
                steps(element, weights, part)
            if part and full % part:
                done = full - full % part
                steps(element + 2 * done, weights + done * step_size, full % part)
            if len(self.pairs) > full:
                step(element + self.pairs[-1], weights + full * step_size)
                self._spill(acc, total, len(starts) * panel.vectors)

        for_runs(reduction.taps, at, T.Bind(panel.first * (self.steps * 2 * LANES)), len(self.pairs) * step_size, run)

    def _spill(self, acc: Expr, total: Expr | None, vectors: int) -> None:
        """Emit total += acc; acc = 0, where there is a total."""
        if total is None:
            return
        for i in range(vectors):
            store(total, i * LANES, load(total, i * LANES, LANES) + load(acc, i * LANES, LANES, "int64"), LANES)
            store(acc, i * LANES, T.broadcast(T.int32(0), LANES), LANES)

    def _pair(self, source: Expr, element: Expr) -> Expr:
        """Return source[element : element + 2] in every lane; a run of one element has no more to be read."""
        if self.geometry.reduction.run == 1:
            pair = T.cast(T.reinterpret("uint16", source[element]), "int32")
        else:
            pair = T.reinterpret("int32", load(source, element, 2))
        return T.reinterpret(f"int16x{2 * LANES}", T.broadcast(pair, LANES))

    def _emit_finish(self, sums: Expr, out_at: Expr, pixels: list[int], panel: Panel) -> None:
        """Emit requantization and the stores of the panel's channels of each pixel."""
        for j in range(panel.vectors):
            constants = self.requantize.loaded(self.operands, (panel.first + j) * LANES, LANES)
            valid = min(LANES, panel.channels - j * LANES)
            for i, pixel in enumerate(pixels):
                value = load(sums, (i * panel.vectors + j) * LANES, LANES, "int64")
                result = self.requantize.result(value, constants, LANES)
                target = out_at + pixel * self.geometry.channels + j * LANES
                store_partial(self.out, target, result, LANES, valid, self.requantize.dtype)


def pair_starts(run: int) -> list[int]:
    """Return the first element of each step of a run; the last one overlaps its neighbour where the run is odd."""
    starts = list(range(0, run - 1, 2))
    return [*starts, max(run - 2, 0)] if run % 2 else starts


def pack_pairs(weight: npt.NDArray[np.integer], starts: list[int], run: int, groups: int, vectors: int) -> Int16Array:
    """Return the weights in the order group, panel, step, vector, lane, pair; one-dimensional, the padding lanes 0.

    A weight that two steps read counts in the first.
    """
    outputs = weight.shape[3] // groups
    runs = weight.reshape(-1, run, groups, outputs)
    lanes = -(-outputs // LANES) * LANES
    steps = np.zeros((runs.shape[0], len(starts), 2, groups, lanes), np.int16)
    covered = 0
    for index, start in enumerate(starts):
        end = min(start + 2, run)
        steps[:, index, covered - start : end - start, :, :outputs] = runs[:, covered:end]
        covered = end
    # group, step, vector, lane, pair
    ordered = steps.reshape(-1, 2, groups, lanes // LANES, LANES).transpose(2, 0, 3, 4, 1)
    pieces: list[Int16Array] = []
    for group in ordered:
        start = 0
        for width in panel_widths(outputs, vectors):
            pieces.append(group[:, start : start + width].ravel())
            start += width
    return np.concatenate(pieces)


def _padded_lanes(values: npt.NDArray[Any], groups: int) -> npt.NDArray[Any]:
    """Return per-channel values with each group's filled up by 0 to whole vectors."""
    grouped = values.reshape(groups, -1)
    return np.pad(grouped, ((0, 0), (0, -grouped.shape[1] % LANES))).ravel()
