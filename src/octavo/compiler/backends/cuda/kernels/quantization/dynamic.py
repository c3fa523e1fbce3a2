"""Quantization at run time, `numerics.dynamic`, and what follows a product of such integers: `device/dynamic.cuh`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ......ir.composites.base import FloatResult, SumResult
from ......numerics.dynamic import DynamicStyle, TorchStyle, style_bounds
from ...isa import Isa
from ...kernel import Argument, BoundKernel, Kernel, Number

ONNX, LITERT, TORCH, TORCH_SYMMETRIC = range(4)
"""The enumeration `DynamicStyle` of the header."""

_THREADS = 256
_PART = 16 * _THREADS
"""Values of a block that looks for their range."""
_PARTS = 1024
"""Of a row at most: beyond, blocks take more values each."""


def _style(style: DynamicStyle) -> dict[str, Number]:
    low, high = style_bounds(style)
    least = float(np.float32(style.eps)) if isinstance(style, TorchStyle) else 0.0
    if isinstance(style, TorchStyle):
        number = TORCH_SYMMETRIC if style.is_symmetric else TORCH
    else:
        number = LITERT if style == "litert" else ONNX
    return {"style": number, "qmin": low, "qmax": high, "least": least}


def parts_of(size: int) -> int:
    """Return into how many parts a row of so many values is cut to look for its range."""
    return min(_PARTS, -(-size // _PART))


def ranges(rows: int, size: int, isa: Isa) -> BoundKernel:
    """Return the kernel from float32 [rows, size] to the range of each part, [rows, parts, 2]."""
    parts = parts_of(size)
    threads = 32 if size <= 32 * 32 else _THREADS
    kernel = Kernel(
        name="range_at_run_time",
        header="dynamic.cuh",
        function="dynamic_ranges",
        parameters={"size": size, "parts": parts, "part": -(-size // parts), "threads": threads},
        arguments=(Argument(name="x", dtype="float32"), Argument(name="ranges", dtype="float32", writes=True)),
        grid=(rows * parts, 1, 1),
        block=(threads, 1, 1),
        shared_bytes=4 * threads,
        isa=isa.name,
    )
    return kernel, ()


def parameters(rows: int, size: int, style: DynamicStyle, isa: Isa) -> BoundKernel:
    """Return the kernel from those ranges to scale and zero point of each row, float32 [rows, 2]."""
    kernel = Kernel(
        name="parameters_at_run_time",
        header="dynamic.cuh",
        function="dynamic_parameters",
        parameters={"parts": parts_of(size), **_style(style)},
        arguments=(Argument(name="ranges", dtype="float32"), Argument(name="parameters", dtype="float32", writes=True)),
        grid=(rows, 1, 1),
        block=(32, 1, 1),
        shared_bytes=4 * 32,
        isa=isa.name,
    )
    return kernel, ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """float32 [images, lines, columns, channels], as it lies: `steps` along these axes, in elements."""

    sizes: tuple[int, int, int, int]
    steps: tuple[int, int, int, int]

    def padded(self, padding: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
        """Return the sizes with lines and columns around: (top, left, bottom, right) of them."""
        images, lines, columns, channels = self.sizes
        return images, lines + padding[0] + padding[2], columns + padding[1] + padding[3], channels


def quantize_at_run_time(
    image: Image, padding: tuple[int, int, int, int], rows: int, style: DynamicStyle, isa: Isa
) -> BoundKernel:
    """Return the kernel from x and its parameters to uint8, dense, with the zero point around each image."""
    images, lines, columns, channels = image.padded(padding)
    steps = zip(("image", "line", "column", "channel"), image.steps, strict=True)
    kernel = Kernel(
        name="quantize_at_run_time",
        header="dynamic.cuh",
        function="dynamic_quantize",
        parameters={
            **_style(style),
            **{f"{name}_step": step for name, step in steps},
            "items": images * lines * columns * channels,
            "threads": _THREADS,
            "lines": lines,
            "columns": columns,
            "channels": channels,
            "top": padding[0],
            "left": padding[1],
            "x_lines": image.sizes[1],
            "x_columns": image.sizes[2],
            "images_of_row": images // rows,
        },
        arguments=(
            Argument(name="x", dtype="float32"),
            Argument(name="parameters", dtype="float32"),
            Argument(name="y", dtype="uint8", writes=True),
        ),
        grid=(-(-images * lines * columns * channels // _THREADS), 1, 1),
        block=(_THREADS, 1, 1),
        isa=isa.name,
    )
    return kernel, ()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DynamicResult:
    """What follows int32 sums of products with integers whose parameters are known at run time.

    Parameters
    ----------
    rows
        Of parameters; the pixels are cut into as many equal parts.
    pixels
        Of the sums, each of as many channels as `weights` has.
    weights
        int32 (channels,): the sum of all weights that a channel's products have, less their zero points.
    multiplier
        float32 (channels,): the real value of a unit of the sums, the input's scale left out.
    y
        What it gives.
    """

    rows: int
    pixels: int
    weights: npt.NDArray[np.int32]
    multiplier: npt.NDArray[np.float32]
    y: FloatResult | SumResult


def dynamic_result(spec: DynamicResult, isa: Isa) -> BoundKernel:
    """Return the kernel from sums and parameters to the result, float32 or int32."""
    y, channels = spec.y, spec.weights.size
    gives_sums = isinstance(y, SumResult)
    ends: dict[str, Number] = {"gives_sums": gives_sums, "is_stepwise": False}
    ends |= {"has_low": False, "has_high": False, "low": 0.0, "high": 0.0}
    bias = np.zeros(channels, np.float32)
    if not isinstance(y, SumResult):
        ends |= {"is_stepwise": y.rounding == "stepwise", "has_low": math.isfinite(y.low), "has_high": math.isfinite(y.high)}
        ends |= {name: value for name, value in (("low", y.low), ("high", y.high)) if math.isfinite(value)}
        bias = np.ascontiguousarray(np.broadcast_to(y.bias, (channels,)), np.float32)
    items = spec.pixels * channels
    dtype = "int32" if gives_sums else "float32"
    read = [("sums", "int32"), ("parameters", "float32"), ("weights", "int32"), ("multiplier", "float32"), ("bias", "float32")]
    kernel = Kernel(
        name="result_at_run_time",
        header="dynamic.cuh",
        function="dynamic_result",
        parameters={
            **ends,
            "items": items,
            "channels": channels,
            "pixels_of_row": spec.pixels // spec.rows,
            "threads": _THREADS,
        },
        types={"Y": dtype},
        arguments=(
            *(Argument(name=name, dtype=each) for name, each in read),
            Argument(name="y", dtype=dtype, writes=True),
        ),
        grid=(-(-items // _THREADS), 1, 1),
        block=(_THREADS, 1, 1),
        isa=isa.name,
    )
    return kernel, (spec.weights, spec.multiplier, bias)
