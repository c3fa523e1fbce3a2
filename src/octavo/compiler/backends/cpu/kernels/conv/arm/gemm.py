"""Convolution and matmul on ARM64 as an implicit matrix product: register tiles of pixels x channels, walking NHWC in place.

The loops around the tiles are those of `loops.gemm_loops`, whose vectors of 16 lanes are four registers here. A layer multiplies
in one of the ways of `products`. Where that takes int8, activations lose their 128 when they are read, or when a padded copy is
made; the bias accounts for it. Weights less a zero point that have 9 bits are multiplied as they are: a vector of ones before the
channels sums the window, and that sum times the zero point is taken off at the end. A panel whose sums are too many for the
registers is computed in parts, each of which walks over the reduction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as T

from .......runtime.shapes import typical
from ...language.arm import vector as v
from ...language.isa import ARM_DOTPROD, ARM_I8MM, ARM_NEON
from ...language.kernel import Kernel
from ...language.lane_order import LANES
from ...language.schedule import NO_SCHEDULES, Schedules
from ...language.vectors import Expr, chunks_for, load, store
from ..layer_function import LayerBuffers, layer_function, weights_of_image
from ..loops.gemm_loops import GemmLoops, Panel, TilePlace, for_runs
from ..loops.geometry import geometry_of
from ..loops.packing import Weights, merge_groups
from ..loops.scratch import Scratch, padding_value
from ..loops.tiles import Core
from ..schedule_key import schedule_key
from ..spec import Conv2dSpec, gemm_kind
from .copies import FlippedScratch, flipped_padding
from .epilogue import Epilogue, Finish
from .pairs import COPY_CHANNELS, PairedCopy, geometry_in, paired_copy
from .products import DotProduct, MatrixProduct, Product, Tile, WideningProduct, adds_words


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmCore(Core):
    """A core whose products take so many `pixels_together`, of which an odd one counts as two.

    `accumulators` are pixels by vectors of 4 channels. Products and loads, `load_cycles` for each vector of weights, run side by
    side; what makes an activation ready does so again for each part of a panel, of `most_quads` at most. `sums_windows` where a
    vector of ones stands before the weights.
    """

    pixels_together: int = 1
    most_quads: int = 32
    load_cycles: float = 0.0
    sums_windows: bool = False

    def _quads(self, vectors: int) -> tuple[int, int]:
        """Return how many parts a panel of `vectors` has, and the quads of the widest."""
        quads = vectors * LANES // v.QUAD + self.sums_windows
        parts = -(-quads // self.most_quads)
        return parts, -(-quads // parts)

    def most_pixels(self, vectors: int) -> int:
        """Return how many pixels fit beside the weights of `vectors`, 0 if one is too many."""
        most = self.accumulators // self._quads(vectors)[1]
        return most - most % self.pixels_together

    def step_cycles(self, pixels: int, vectors: int) -> float:
        """Estimate the cycles of one step: products, or loads."""
        counted = -(-pixels // self.pixels_together) * self.pixels_together
        products = counted * (vectors * self.product_cycles + self._quads(vectors)[0] * self.activation_cycles)
        return max(products, vectors * self.load_cycles) + vectors * self.weight_cycles


CORES = {
    # With 24 accumulators LLVM reads ahead so much on a Neoverse N1 that it spills some.
    ARM_DOTPROD: ArmCore(accumulators=20, registers=20, product_cycles=2.0, weight_cycles=0.5),
    ARM_I8MM: ArmCore(
        accumulators=24,
        registers=24,
        activation_cycles=0.125,
        pixels_together=MatrixProduct.pixels_together,
        most_quads=MatrixProduct.most_quads,
        load_cycles=2.7,
    ),
    # The sums of each channel have a register of their own until the end; as many hold products.
    ARM_NEON: ArmCore(accumulators=4, registers=4, product_cycles=8.0, most_quads=WideningProduct.most_quads, weight_cycles=1.0),
}
"""By ISA, of a core with two pipes for vectors; in vectors of 16 channels."""


@dataclass(kw_only=True, slots=True)
class Ready:
    """What a tile's parts leave to later ones: sums of windows, and sums of channels from `channels` on that wait for more."""

    windows: list[Expr]
    sums: list[list[Expr]]
    channels: int = 0


class ArmGemm(GemmLoops):
    """Emits one layer's PrimFunc; `build` is the entrance, the other methods emit one level of the loop nest each."""

    element_bytes = 1

    def __init__(self, spec: Conv2dSpec, weights: Weights, *, isa: str, schedules: Schedules = NO_SCHEDULES) -> None:
        key_of = spec
        if gemm_kind(spec) == "pointwise" and spec.stack == 1:
            pixels = spec.batch * spec.in_height * spec.in_width
            spec = replace(spec, batch=1, in_height=pixels, in_width=1)
        self.spec, self.isa, self.is_signed = spec, isa, isa != ARM_I8MM
        values, groups = self._int8_values(weights)
        padded = Scratch(spec=spec, block=1, channels=spec.in_channels) if self._copies else None
        self.is_copied = padded is not None
        width = None if padded is None else padded.width
        self.geometry = geometry = geometry_of(spec, groups, values.shape[2], padded_width=width)
        self.product = self._product(values)
        self.key = schedule_key(key_of, asymmetric=self.is_asymmetric)
        steps = geometry.reduction.runs * -(-geometry.reduction.run // 4)
        shape: dict[str, Any] = {"channels": geometry.group_outputs}
        core = replace(CORES[isa], sums_windows=self.is_asymmetric)
        self._choose_tile(self.key, schedules, core, {**shape, "steps": steps})
        copy = self._paired_copy()
        self.is_copied = self.is_copied or copy is not None
        pieces = max(typical(geometry.images * geometry.rows), len(self.panels))
        self.threads = chunks_for(spec.threads, self.cycles, pieces)
        self.block = self._block_rows()
        # As many rows as without the copy: what is copied again for the next block costs more than twice the cache.
        if copy is not None:
            self.geometry, self.product = geometry_in(copy, geometry), MatrixProduct(flips=False, partner=copy.partner)
        kind = FlippedScratch if self.is_signed else Scratch
        self.scratch = None if padded is None else kind(spec=spec, block=self.block, channels=spec.in_channels)
        self.scratch = self._paired_copy(self.block) or self.scratch
        self.epilogue = Epilogue(spec, weights, isa=isa)
        bias = weights.folded_bias(spec.folded_zero_point - (128 if self.is_signed else 0))
        self.constants: dict[str, npt.NDArray[Any]] = {
            "weights": self._packed(values, geometry.sets),
            "bias": self._by_lane(self.epilogue.biased(bias)),
            **{label: self._by_lane(each) for label, each in self.epilogue.channel_values.items()},
        }
        if self.is_asymmetric:
            self.constants["zero_point"] = self._by_lane(weights.zero_points)

    @property
    def _copies(self) -> bool:
        """Whether blocks read a copy of their rows: padded, or flipped once for many channels instead of once for each panel."""
        spec = self.spec
        return any(spec.padding) or (
            self.is_signed and spec.kernel == (1, 1) and spec.out_channels >= COPY_CHANNELS * spec.groups
        )

    def _paired_copy(self, block: int = 1) -> PairedCopy | None:
        """Return the copy in which pixels lie in pairs, if products take two and it pays."""
        if not isinstance(self.product, MatrixProduct):
            return None
        return paired_copy(self.spec, self.tile, self.geometry, element_bytes=1, block=block)

    # ---- what is multiplied

    def _int8_values(self, weights: Weights) -> tuple[npt.NDArray[np.int8], int]:
        """Return int8 weights (kernel_h, kernel_w, inputs of a group, out_channels) and the groups."""
        centered = weights.centered
        self.is_asymmetric = bool(centered.min(initial=0) < -128 or centered.max(initial=0) > 127)
        if self.is_asymmetric:
            return weights.values, self.spec.groups
        return merge_groups(centered.astype(np.int8), self.spec.groups)

    def _product(self, values: npt.NDArray[np.int8]) -> Product:
        geometry = self.geometry
        run, is_one = geometry.reduction.run, geometry.rows * geometry.columns == 1
        flips = self.is_signed and not self.is_copied
        if self.isa == ARM_NEON:
            return WideningProduct(flips=flips, adds_words=adds_words(values.reshape(-1, values.shape[-1]), run))
        if self.isa == ARM_I8MM and run >= v.BYTES and not is_one:
            return MatrixProduct(flips=False)
        return DotProduct(flips=flips, is_mixed=self.isa == ARM_I8MM)

    def _quads(self, panel_channels: int) -> int:
        """Return a panel's vectors of 4 channels, with the one that sums the window."""
        return -(-panel_channels // v.QUAD) + self.is_asymmetric

    def _packed(self, values: npt.NDArray[np.int8], groups: int) -> npt.NDArray[np.int8]:
        reduction = self.geometry.reduction
        by_group = values.reshape(reduction.runs, reduction.run, groups, -1)
        width, packed = self.tile.vectors * LANES, [np.zeros(0, np.int8)]
        for group in range(groups):
            for first in range(0, by_group.shape[3], width):
                panel = by_group[:, :, group, first : first + width]
                panel = np.pad(panel, ((0, 0), (0, 0), (0, -panel.shape[2] % v.QUAD)))
                if self.is_asymmetric:
                    panel = np.concatenate([np.ones((*panel.shape[:2], v.QUAD), np.int8), panel], axis=2)
                packed.append(self.product.packed(panel))
        return np.concatenate(packed)

    def _by_lane(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a value for each lane of each group's vectors, 0 where it holds no channel."""
        by_group = values.reshape(self.geometry.sets, -1)
        missing = self.geometry.group_vectors * LANES - by_group.shape[1]
        return np.ascontiguousarray(np.pad(by_group, ((0, 0), (0, missing))).ravel())

    # ---- emission, from the outside in

    def build(self, name: str) -> Kernel:
        """Emit the PrimFunc and return the kernel."""
        func = layer_function(self.spec, self.constants, self.epilogue.out_dtype, self._emit)
        return Kernel(
            name=f"{name} {self.tile}",
            isa=self.isa,
            func=func,
            constants=tuple(self.constants.values()),
            tunable=self._tunable(self.key),
        )

    def _emit(self, buffers: LayerBuffers) -> None:
        self.x, self.parameters, self.operands, self.out = buffers.x, buffers.parameters, buffers.operands, buffers.out
        self.indices = buffers.indices
        self._emit_threads()

    def _weights_of(self, image: Expr) -> Expr:
        return weights_of_image(self.spec, self.indices, image)

    def _padding_value(self, image: Expr) -> Expr | None:
        value = padding_value(self.spec, self.parameters, image)
        return flipped_padding(self.spec, value) if self.is_signed else value

    def _weights_at(self, panel: Panel) -> Expr:
        """Return where a panel's weights begin: all panels of a group but the last are as wide as the tile."""
        reduction, widths = self.geometry.reduction, self.panels
        full = reduction.runs * self.product.packed_bytes(reduction.run, self._quads(self.tile.vectors * LANES))
        if self.geometry.sets == 1:
            return T.Bind(T.int32(0) + panel.number * full)
        last_channels = self.geometry.group_outputs - (len(widths) - 1) * self.tile.vectors * LANES
        last = reduction.runs * self.product.packed_bytes(reduction.run, self._quads(last_channels))
        group, index = T.floordiv(panel.number, len(widths)), T.floormod(panel.number, len(widths))
        return T.Bind(group * ((len(widths) - 1) * full + last) + index * full)

    def _emit_rows(self, source: Expr, base: Expr, out_base: Expr, block: Expr, panel: Panel, shared: Expr | None) -> None:
        """Emit all tiles of one panel over one block."""
        del shared
        geometry, quads = self.geometry, self._quads(panel.channels)

        def body(place: TilePlace) -> None:
            pixel = T.Bind(place.row * geometry.columns + place.column)
            at = T.Bind(base + place.row * geometry.row_stride + place.column * geometry.column_stride)
            starts = self._starts(place)
            out_at = T.Bind(out_base + pixel * geometry.channels)
            targets = [out_at + (y * geometry.columns + x) * geometry.channels for y, x in place.pixels]
            weights = self._weights_at(panel)
            done, ready = 0, Ready(windows=[], sums=[[] for _ in targets])
            for part in self.product.parts(quads):
                tile = self._emit_sums(source, starts, at, weights + done * self._weights_of_quad, part)
                done += part
                self._emit_finish(tile, ready, targets, panel, is_last=done == quads)

        self._for_tiles(block, body, panel)

    def _starts(self, place: TilePlace) -> list[int]:
        """Return where the window of each pixel begins, from that of the first one on."""
        return [y * self.geometry.row_stride + x * self.geometry.column_stride for y, x in place.pixels]

    @property
    def _weights_of_quad(self) -> int:
        """Bytes of the weights of 4 channels."""
        reduction = self.geometry.reduction
        return reduction.runs * self.product.packed_bytes(reduction.run, 1)

    # ---- one tile

    def _emit_sums(self, source: Expr, starts: list[int], at: Expr, weights: Expr, quads: int) -> Tile:
        """Emit the sums of one part of a panel and return where they are."""
        registers = self.product.accumulators(len(starts), quads)
        acc = T.alloc_buffer((registers * v.QUAD,), "int32", scope="local")
        for register in range(registers):
            store(acc, register * v.QUAD, T.broadcast(T.int32(0), v.QUAD), v.QUAD)
        tile = Tile(acc=acc, source=source, starts=starts, weights=self.operands["weights"], quads=quads)
        self._emit_reduction(tile, at, weights)
        return tile

    def _emit_reduction(self, tile: Tile, at: Expr, weights: Expr) -> None:
        """Emit the loops over taps and steps."""
        reduction = self.geometry.reduction
        run_bytes = self.product.packed_bytes(reduction.run, tile.quads)
        for_runs(reduction.taps, at, weights, run_bytes, lambda byte, packed: self._emit_run(tile, byte, packed))

    def _emit_run(self, tile: Tile, byte: Expr, weights: Expr) -> None:
        """Emit the blocks of 16 bytes of one run, then its small steps."""
        product, run = self.product, self.geometry.reduction.run
        blocks, channels = run // v.BYTES, tile.quads * v.QUAD
        if blocks == 1:
            product.emit_block(tile, byte, weights)
        elif blocks:
            with T.serial(0, blocks) as index:
                product.emit_block(tile, byte + index * (v.BYTES * product.spread), weights + index * (v.BYTES * channels))
        done = blocks * v.BYTES * channels
        for number, start in enumerate(product.starts_of(run)):
            count = min(product.step, run - start)
            product.emit_step(tile, byte + start * product.spread, weights + done + number * (product.step * channels), count)

    def _emit_finish(self, tile: Tile, ready: Ready, targets: list[Expr], panel: Panel, *, is_last: bool) -> None:
        """Emit bias, zero points and the stores of a part's channels, with those of parts before it that wait for it."""
        for number, sums in enumerate(ready.sums):
            own = self.product.sums(tile.acc, number, tile.quads)
            if self.is_asymmetric and len(ready.windows) == number:
                ready.windows.append(T.Bind(own.pop(0)))
            sums.extend(own)
        if len(ready.sums[0]) * v.QUAD < LANES and not is_last:  # too few for the vectors of the end
            return
        channel = panel.first * LANES + ready.channels
        for number, (sums, target) in enumerate(zip(ready.sums, targets, strict=True)):
            quads: list[Expr] = []
            for quad, total in enumerate(sums):
                place = channel + quad * v.QUAD
                value = total + load(self.operands["bias"], place, v.QUAD)
                if self.is_asymmetric:
                    value = value - ready.windows[number] * load(self.operands["zero_point"], place, v.QUAD)
                quads.append(value)
            valid = min(panel.channels - ready.channels, len(quads) * v.QUAD)
            finish = Finish(target=target + ready.channels, channel=channel, quads=quads, valid=valid)
            self.epilogue.emit(self.out, self.operands, self.parameters, finish)
        ready.channels += len(ready.sums[0]) * v.QUAD
        ready.sums = [[] for _ in targets]
