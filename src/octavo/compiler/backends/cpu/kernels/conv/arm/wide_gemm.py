"""Convolution and matmul of int16 activations on ARM64, by the products of bytes: x = 256 * high + low.

    for each block: split its rows into high and low bytes
      for each tile of pixels x channels:   sum = 256 * (weights @ high) + weights @ low      (two of int32, added in int64)

Each pixel is two to the loops of `gemm`. A product takes four or eight times the multiplications of smlal, and sums of bytes have
room for 65,000 products, so that none is spilled on its way. Where products are int8, the low byte loses 128; where they take
uint8, the high byte gains it; the bias accounts for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as T

from .......numerics.rounding.requantize import Multiplier
from .......runtime.shapes import typical
from ...language.arm import vector as v
from ...language.isa import ARM_I8MM, ARM_NEON
from ...language.kernel import Kernel
from ...language.lane_order import LANES
from ...language.schedule import NO_SCHEDULES, Schedules
from ...language.vectors import Expr, chunks_for, load, prim_func, store, store_partial
from ..channel_requantize import ChannelRequantize
from ..loops.gemm_loops import Panel, TilePlace
from ..loops.geometry import Geometry, geometry_of
from ..loops.packing import merge_groups
from ..loops.scratch import SLACK, Scratch
from ..schedule_key import schedule_key
from ..spec import Conv2dSpec
from .gemm import CORES, ArmGemm, Ready
from .products import DotProduct, MatrixProduct, Product, Tile, WideningProduct, adds_words


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitBytes:
    """Bytes of what a block reads: all high ones, then all low ones; or where they lie `in_pairs`, 8 and 8 by turns.

    `elements` are those of a block, of `padded` rows or of pixels of one long column of `pixels`, `channels` each.
    """

    padded: Scratch | None
    pixels: int
    block: int
    channels: int
    is_signed: bool
    in_pairs: bool

    @property
    def elements(self) -> int:
        """Elements of a block."""
        return self.block * self.channels if self.padded is None else self.padded.rows * self.padded.row_size

    @property
    def low(self) -> int:
        """Bytes from the high one of an element to its low one."""
        return v.PAIR_BYTES if self.in_pairs else self.elements

    def emit(self, x: Expr, image: Expr, first_row: Expr, padding: Expr | None = None, filled: Expr | None = None) -> Expr:
        """Allocate the copy, fill it for the output rows from `first_row` on, `filled` or a block's, and return its buffer."""
        copy = T.alloc_buffer((2 * self.elements + SLACK,), "uint8")
        if self.padded is not None:
            source, start, count = self.padded.emit(x, image, first_row, padding, filled), T.int32(0), T.int32(self.elements)
        else:
            if filled is not None:
                pixels = filled
            else:
                is_even = self.pixels % self.block == 0
                pixels = T.int32(self.block) if is_even else T.min(T.int32(self.block), self.pixels - first_row)
            source, start, count = x, T.Bind(first_row * self.channels), T.Bind(pixels * self.channels)
        with T.serial(0, T.Bind(T.floordiv(count, v.BYTES))) as part:
            self._emit_vector(source, T.Bind(start + part * v.BYTES), copy, part)
        if self.elements % v.BYTES or self.channels % v.BYTES:
            done = T.Bind(T.floordiv(count, v.BYTES) * v.BYTES)
            with T.serial(0, count - done) as index:
                element = T.Bind(done + index)
                word = T.Bind(source[start + element])
                at = T.floordiv(element, v.PAIR_BYTES) * v.PAIR_BYTES + element if self.in_pairs else element
                low, high = (self._flipped(T.cast(word >> T.int16(8 * byte), "uint8"), byte, 1) for byte in range(2))
                T.buffer_store(copy, high, [at])
                T.buffer_store(copy, low, [at + self.low])
        return copy

    def _emit_vector(self, source: Expr, start: Expr, copy: Expr, part: Expr) -> None:
        """Emit the bytes of 16 elements."""
        words = [T.reinterpret("uint8x16", load(source, start + half * 8, 8)) for half in range(2)]
        low, high = (self._flipped(v.shuffled(words, list(range(byte, 32, 2))), byte, v.BYTES) for byte in range(2))
        if not self.in_pairs:
            store(copy, part * v.BYTES, high, v.BYTES)
            store(copy, part * v.BYTES + self.low, low, v.BYTES)
            return
        halves = [T.reinterpret("int64x2", T.Bind(each)) for each in (high, low)]
        for half in range(2):
            value = T.reinterpret("uint8x16", v.shuffled(halves, [half, 2 + half]))
            store(copy, part * (2 * v.BYTES) + half * v.BYTES, value, v.BYTES)

    def _flipped(self, value: Expr, byte: int, lanes: int) -> Expr:
        """Return low (0) or high (1) bytes as products take them."""
        if bool(byte) == self.is_signed:
            return value
        return value ^ (T.uint8(128) if lanes == 1 else T.broadcast(T.uint8(128), lanes))


class ArmWideGemm(ArmGemm):
    """Emits one layer's PrimFunc; `build` is the entrance, the other methods emit one level of the loop nest each.

    Parameters
    ----------
    weight
        int8 HWIO, less the zero points, that `fits`.
    bias, multiplier, real_bias
        As `ChannelRequantize` takes them.
    """

    def __init__(
        self,
        spec: Conv2dSpec,
        weight: npt.NDArray[np.int8],
        bias: npt.NDArray[np.int64],
        multiplier: Multiplier,
        *,
        real_bias: npt.NDArray[np.float32] | None = None,
        isa: str,
        schedules: Schedules = NO_SCHEDULES,
    ) -> None:
        self.spec, self.isa, self.key = spec, isa, schedule_key(spec)
        self.is_signed, self.is_asymmetric, self.is_copied = isa != ARM_I8MM, False, True
        values, groups = merge_groups(weight, spec.groups)
        self.geometry = geometry = self._geometry(groups, values.shape[2])
        steps = geometry.reduction.runs * -(-geometry.reduction.run // 4)
        shape: dict[str, Any] = {"channels": geometry.group_outputs}
        one = CORES[isa]
        core = replace(
            one,
            accumulators=one.accumulators // 2,
            pixels_together=1,
            product_cycles=2 * one.product_cycles,
            activation_cycles=2 * one.activation_cycles,
        )
        self._choose_tile(self.key, schedules, core, {**shape, "steps": steps})
        self.threads = chunks_for(spec.threads, self.cycles, max(typical(geometry.images * geometry.rows), len(self.panels)))
        self.product = self._wide_product(values)
        self.element_bytes = 1 if self._in_pairs(geometry) else 2  # of either byte where they lie by turns, else of both
        self.block = self._block_rows()
        self.scratch = self.copy = self._split(self.block)
        # x = 256 * high + (low - 128) + 128, or 256 * (high + 128) + low - 32768.
        missing = spec.input_zero_point - (128 if self.is_signed else -32768)
        folded = bias - missing * weight.astype(np.int64).sum(axis=(0, 1, 2))
        self.requantize = ChannelRequantize(spec.output, folded, multiplier, narrow=spec.narrow, real_bias=real_bias)
        self.constants: dict[str, npt.NDArray[Any]] = {
            "weights": self._packed(values, groups),
            **{name: self._by_lane(each) for name, each in self.requantize.constants.items()},
        }

    def _split(self, block: int) -> SplitBytes:
        spec, geometry = self.spec, self.geometry
        padded = Scratch(spec=spec, block=block, channels=spec.in_channels) if geometry.reduction.taps else None
        in_pairs = self._in_pairs(geometry)
        return SplitBytes(
            padded=padded,
            pixels=geometry.rows,
            block=block,
            channels=spec.in_channels,
            is_signed=self.is_signed,
            in_pairs=in_pairs,
        )

    def _in_pairs(self, geometry: Geometry) -> bool:
        """Whether products take the bytes of a pixel as two pixels, that lie by turns."""
        is_matrix = self.isa == ARM_I8MM and geometry.reduction.run >= v.BYTES
        return is_matrix and geometry.groups == 1 and self.spec.in_channels % v.PAIR_BYTES == 0

    def _geometry(self, groups: int, group_inputs: int) -> Geometry:
        """Return the geometry in the bytes of a copy."""
        width = Scratch(spec=self.spec, block=1, channels=self.spec.in_channels).width
        geometry = geometry_of(self.spec, groups, group_inputs, padded_width=None)
        if geometry.reduction.taps:
            geometry = geometry_of(self.spec, groups, group_inputs, padded_width=width)
        if not self._in_pairs(geometry):
            return geometry
        taps = tuple((extent, 2 * distance) for extent, distance in geometry.reduction.taps)
        strides = {"row_stride": 2 * geometry.row_stride, "column_stride": 2 * geometry.column_stride}
        return replace(geometry, **strides, reduction=replace(geometry.reduction, taps=taps))

    def _wide_product(self, values: npt.NDArray[np.int8]) -> Product:
        run = self.geometry.reduction.run
        if self.isa == ARM_NEON:
            return WideningProduct(flips=False, adds_words=adds_words(values.reshape(-1, values.shape[-1]), run))
        if self.isa == ARM_I8MM and run >= v.BYTES:
            return MatrixProduct(flips=False, partner=v.PAIR_BYTES if self._in_pairs(self.geometry) else 0)
        return DotProduct(flips=False, is_mixed=self.isa == ARM_I8MM)

    def build(self, name: str) -> Kernel:
        """Emit the PrimFunc and return the kernel."""
        spec, geometry = self.spec, self.geometry
        in_size = spec.batch * spec.in_height * spec.in_width * spec.in_channels
        out_size = geometry.images * geometry.rows * geometry.columns * geometry.channels
        operands = [(label, value.size, str(value.dtype)) for label, value in self.constants.items()]
        func = prim_func([("x", in_size, "int16"), *operands, ("out", out_size, self.requantize.dtype)], self._emit_all)
        return Kernel(
            name=f"{name}.int16 {self.tile}",
            isa=self.isa,
            func=func,
            constants=tuple(self.constants.values()),
            tunable=self._tunable(self.key),
        )

    def _emit_all(self, x: Expr, *others: Expr) -> None:
        self.x, self.out = x, others[-1]
        self.operands = dict(zip(self.constants, others, strict=False))
        self._emit_threads()

    def _padding_value(self, image: Expr) -> Expr | None:
        del image
        return None

    def _starts(self, place: TilePlace) -> list[int]:
        """Return where the high and the low bytes of each window begin, one after the other."""
        return [start + low for start in super()._starts(place) for low in (0, self.copy.low)]

    def _emit_finish(self, tile: Tile, ready: Ready, targets: list[Expr], panel: Panel, *, is_last: bool) -> None:
        """Emit requantization and the stores of 16 channels at a time; fewer wait for the next part."""
        for number, sums in enumerate(ready.sums):
            high, low = (self.product.sums(tile.acc, 2 * number + byte, tile.quads) for byte in range(2))
            for each in zip(high, low, strict=True):
                first, second = (T.Cast(f"int64x{v.QUAD}", half) for half in each)
                sums.append((first << T.broadcast(T.int64(8), v.QUAD)) + second)
        per_vector, waiting = LANES // v.QUAD, len(ready.sums[0])
        vectors = -(-waiting // per_vector) if is_last else waiting // per_vector
        for vector in range(vectors):
            channel = ready.channels + vector * LANES
            constants = self.requantize.loaded(self.operands, panel.first * LANES + channel, LANES)
            valid = min(panel.channels - channel, LANES)
            for sums, target in zip(ready.sums, targets, strict=True):
                places = [min(vector * per_vector + quad, waiting - 1) for quad in range(per_vector)]
                total = v.concatenated([sums[place] for place in places], v.QUAD)
                result = self.requantize.result(total, constants, LANES)
                store_partial(self.out, target + channel, result, LANES, valid, self.requantize.dtype)
        ready.channels += vectors * LANES
        ready.sums = [sums[vectors * per_vector :] for sums in ready.sums]


def fits(weight: npt.NDArray[np.integer]) -> bool:
    """Return whether weights less their zero points are int8, and no sum of their products with bytes leaves int32."""
    magnitudes = np.abs(weight.astype(np.int64)).sum(axis=(0, 1, 2))
    is_int8 = bool(weight.min(initial=0) >= -128 and weight.max(initial=0) <= 127)
    return is_int8 and 255 * int(magnitudes.max(initial=0)) < 2**31
