"""Convolution of int16 activations of any kernel, stride, padding, dilation and group count, in plain TIR.

Oracle: `numerics.conv2d`. Vectors of output channels, one pixel at a time; no intrinsic of any CPU. Products
add up in int32 as long as that is proven not to overflow, and then in int64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as B

from .......numerics.rounding.requantize import Multiplier
from ...language.isa import GENERIC
from ...language.kernel import Kernel
from ...language.vectors import Buffer, Expr, chunked, for_each_vector, interior, load, prim_func, splat, split, store, worthwhile
from ..channel_requantize import ChannelRequantize, safe_steps
from ..spec import Conv2dSpec

_LANES = 16


def wide_conv2d_generic(
    spec: Conv2dSpec,
    *,
    weight: npt.NDArray[np.integer],
    bias: npt.NDArray[np.int64],
    multiplier: Multiplier,
    real_bias: npt.NDArray[np.float32] | None = None,
) -> Kernel:
    """Return the convolution kernel for any LLVM target.

    Parameters
    ----------
    spec
        What to compute.
    weight
        HWIO less the zero points, values of at most 9 bits.
    bias
        int64 (out_channels,).
    multiplier
        Fixed-point or float32, one for all channels or one for each.
    real_bias
        float32 (out_channels,), of a float32 result.
    """
    return _Writer(spec, weight, bias, multiplier, real_bias).build()


class _Writer:
    """Emits one layer."""

    def __init__(
        self,
        spec: Conv2dSpec,
        weight: npt.NDArray[np.integer],
        bias: npt.NDArray[np.int64],
        multiplier: Multiplier,
        real_bias: npt.NDArray[np.float32] | None,
    ) -> None:
        self.spec = spec
        self.group_in, self.group_out = spec.in_channels // spec.groups, spec.out_channels // spec.groups
        self.depthwise = self.group_in == 1 and self.group_out == 1
        self.run = spec.out_channels if self.depthwise else self.group_out  # channels that may share a vector
        self.requantize = ChannelRequantize(spec.output, bias, multiplier, narrow=spec.narrow, real_bias=real_bias)
        self.reach = max(32767 - spec.input_zero_point, spec.input_zero_point + 32768)
        steps = safe_steps(weight, 1, self.reach)
        self.block = self.group_in if steps is None else min(steps, self.group_in)
        self.spills = steps is not None
        narrow = int(np.abs(weight).max(initial=0)) <= 127
        # HWIO lies as the loops walk it: tap by tap, output channels innermost.
        packed = np.ascontiguousarray(weight, np.int8 if narrow else np.int16).ravel()
        self.constants: dict[str, npt.NDArray[Any]] = {"weights": packed, **self.requantize.constants}

    def build(self) -> Kernel:
        spec = self.spec
        rows = spec.batch * spec.out_height
        operations = rows * spec.out_width * spec.out_channels * spec.kernel[0] * spec.kernel[1] * self.group_in

        def emit(x: Buffer, *others: Buffer) -> None:
            self.x, self.y = x, others[-1]
            self.operands = dict(zip(self.constants, others, strict=False))
            row_threads = worthwhile(spec.threads, operations, rows)
            groups = spec.out_channels // self.run
            threads = spec.threads if row_threads == 1 and rows == 1 else 1
            with chunked(rows, row_threads) as row, B.serial(0, spec.out_width) as column, B.serial(0, groups) as group:
                for_each_vector(self.run, _LANES, threads, lambda start, lanes: self._pixel(row, column, group, start, lanes))

        operands = [(name, value.size, str(value.dtype)) for name, value in self.constants.items()]
        x_size = spec.batch * spec.in_height * spec.in_width * spec.in_channels
        arguments = [("x", x_size, "int16"), *operands, ("y", rows * spec.out_width * spec.out_channels, self.requantize.dtype)]
        kind = "depthwise" if self.depthwise else "grouped" if spec.groups > 1 else "direct"
        func = prim_func(arguments, emit)
        return Kernel(name=f"conv2d.{kind}.int16", isa=GENERIC, func=func, constants=tuple(self.constants.values()))

    def _pixel(self, row: Expr, column: Expr, group: Expr, start: Expr, lanes: int) -> None:
        """Emit `lanes` output channels of one pixel."""
        spec = self.spec
        image, out_row = (0, row) if spec.batch == 1 else split(row, spec.out_height)
        channel = group * self.run + start
        top, left = out_row * spec.strides[0] - spec.padding[0], column * spec.strides[1] - spec.padding[1]
        rows = interior(top, spec.kernel[0], spec.dilation[0], spec.in_height, always=not (spec.padding[0] or spec.padding[2]))
        columns = interior(left, spec.kernel[1], spec.dilation[1], spec.in_width, always=not (spec.padding[1] or spec.padding[3]))
        acc = B.alloc_buffer((lanes,), "int32", scope="local")
        total = B.alloc_buffer((lanes,), "int64", scope="local") if self.spills else None
        store(acc, 0, splat(B.int32(0), lanes), lanes)
        if total is not None:
            store(total, 0, splat(B.int64(0), lanes), lanes)
        with B.serial(*rows) as i, B.serial(*columns) as j:
            in_row = (image * spec.in_height + top + i * spec.dilation[0]) * spec.in_width
            source = (in_row + left + j * spec.dilation[1]) * spec.in_channels
            source = source + (channel if self.depthwise else group * self.group_in)
            tap = (i * spec.kernel[1] + j) * self.group_in

            def products(first: Expr, count: int) -> None:
                with B.serial(0, count) as k:
                    weight = load(self.operands["weights"], (tap + first + k) * spec.out_channels + channel, lanes, "int32")
                    store(acc, 0, load(acc, 0, lanes) + self._centered(source + first + k, lanes) * weight, lanes)
                if total is not None:
                    store(total, 0, load(total, 0, lanes) + load(acc, 0, lanes, "int64"), lanes)
                    store(acc, 0, splat(B.int32(0), lanes), lanes)

            full, rest = divmod(self.group_in, self.block)
            if full == 1:
                products(0, self.block)
            else:
                with B.serial(0, full) as part:
                    products(part * self.block, self.block)
            if rest:
                products(full * self.block, rest)
        constants = self.requantize.loaded(self.operands, channel, lanes)
        result = load(acc, 0, lanes, "int64") if total is None else load(total, 0, lanes)
        out = (row * spec.out_width + column) * spec.out_channels + channel
        store(self.y, out, self.requantize.result(result, constants, lanes), lanes)

    def _centered(self, at: Expr, lanes: int) -> Expr:
        zero_point = B.int32(self.spec.input_zero_point)
        if self.depthwise:
            return load(self.x, at, lanes, "int32") - splat(zero_point, lanes)
        return splat(self.x[at].astype("int32") - zero_point, lanes)
