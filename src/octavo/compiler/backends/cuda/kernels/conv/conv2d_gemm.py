"""Convolutions as products of matrices by tiles: `device/conv2d_gemm.cuh`."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ...isa import Isa
from ...kernel import BYTES, Argument, Kernel
from ..language.calls import KernelCall, Scratch
from ..matmuls.gemm import CHUNK, Tiling, packed_tiles, padded_columns
from ..matmuls.output import SUMS, Output
from .spec import Array, Conv2dSpec

MAX_WINDOW = 16
"""Rows and columns of a window whose taps fit into the masks of `device/rows.cuh`."""

_SPLIT_THREADS = 128


def gemm_takes(spec: Conv2dSpec) -> bool:
    """Return whether the kernel has a window of this size, and counts elements in 32 bits."""
    elements = max(spec.batch * spec.in_height * spec.in_width * spec.in_channels, spec.pixels * spec.out_channels)
    return max(spec.kernel) <= MAX_WINDOW and elements < 2**31


def vector_bytes(channels: int) -> int:
    """Return the bytes that one copy can take of rows of so many: 16, 8 or 4, or 1 where they are gathered."""
    return next(size for size in (16, 8, 4, 1) if channels % size == 0)


def has_padding(spec: Conv2dSpec) -> bool:
    """Return whether any window reaches beyond the input."""
    ends = [
        (count - 1) * stride - pad + (taps - 1) * dilation >= size
        for count, stride, pad, taps, dilation, size in zip(
            (spec.out_height, spec.out_width),
            spec.strides,
            spec.pad,
            spec.kernel,
            spec.dilation,
            (spec.in_height, spec.in_width),
            strict=True,
        )
    ]
    return any(spec.pad) or any(ends)


def depth_of(spec: Conv2dSpec) -> int:
    """Return the depth of a convolution as a product: its taps' channels, or runs of gathered bytes up to whole chunks."""
    runs, run = _runs(spec)
    return runs * run if vector_bytes(spec.in_channels // spec.groups) > 1 else runs * _tiles(run, CHUNK) * CHUNK


def _runs(spec: Conv2dSpec) -> tuple[int, int]:
    """Return how many runs of contiguous bytes lie below a window, and their bytes: as `device/rows.cuh` gathers them."""
    taps = spec.kernel[1] if spec.dilation[1] == 1 and spec.groups == 1 else 1
    return spec.kernel[0] * spec.kernel[1] // taps, taps * spec.in_channels // spec.groups


def _by_group(spec: Conv2dSpec) -> npt.NDArray[np.int8]:
    """Return weights as (groups, output channels of one, depth), in the order in which the kernel takes the depth."""
    runs, run = _runs(spec)
    weights = spec.weights.reshape(runs, run, -1)
    padded = np.zeros((runs, depth_of(spec) // runs, weights.shape[2]), np.int8)
    padded[:, :run] = weights
    return padded.reshape(-1, spec.groups, spec.out_channels // spec.groups).transpose(1, 2, 0)


def gemm_conv2d(spec: Conv2dSpec, isa: Isa, tiling: Tiling) -> tuple[KernelCall, ...]:
    """Return the launches of a convolution cut so: one, or with splits another one that adds their sums."""
    if tiling.splits == 1:
        kernel, weights, constants = _product(spec, isa, tiling)
        return (KernelCall(kernel=kernel, operands=spec.operands(weights, constants)),)
    ones = np.ones(spec.out_channels, np.float32)
    parameters = {**spec.output.parameters, "result": SUMS, "has_real_bias": False}
    first = replace(spec, output=Output(dtype="int32", parameters=parameters, multiplier=ones, real_bias=0 * ones))
    kernel, weights, constants = _product(first, isa, tiling)
    sums = Scratch(4 * tiling.splits * spec.pixels * spec.out_channels)
    operands = (*first.operands(weights, constants)[:-1], sums)
    return KernelCall(kernel=kernel, operands=operands), _splits(spec, isa, tiling, sums)


def _product(spec: Conv2dSpec, isa: Isa, tiling: Tiling) -> tuple[Kernel, Array, tuple[Array, ...]]:
    """Return the kernel, its weights, and the constants behind them."""
    group_in, group_out = spec.in_channels // spec.groups, spec.out_channels // spec.groups
    size, tile = BYTES[spec.output.dtype], tiling.tile
    by_group = _by_group(spec)
    depth = by_group.shape[2]
    assert (tiling.splits - 1) * -(-_tiles(depth, tile[2]) // tiling.splits) < _tiles(depth, tile[2]), "a split has no tile"
    outside = np.full(CHUNK, spec.x_zero_point, spec.dtype).view(np.int8)
    weights = np.concatenate([packed_tiles(by_group, tiling, isa, size).ravel(), outside])
    constants = tuple(padded_columns(each, spec.groups, tile[1]) for each in spec.constants())
    kernel = Kernel(
        name=f"conv2d_gemm{spec.output.suffix}",
        header="conv2d_gemm.cuh",
        function="conv2d_gemm",
        parameters={
            **spec.parameters(),
            **tiling.parameters(isa, size, math.gcd(group_out, spec.out_channels)),
            **spec.output.rows(spec.groups * _tiles(group_out, tile[1]) * tile[1]),
            "has_row_sums": spec.has_weight_zero_point,
            "has_column_sums": False,
            "has_padding": has_padding(spec),
            "vector": vector_bytes(group_in),
        },
        types={**spec.types, "W": "int8"},
        structures=spec.output.tail.structures(),
        members=spec.output.function,
        arguments=spec.arguments("int8"),
        grid=(_tiles(spec.pixels, tile[0]), spec.groups * _tiles(group_out, tile[1]), tiling.splits),
        block=(tiling.threads, 1, 1),
        shared_bytes=tiling.shared_bytes,
        isa=isa.name,
    )
    return kernel, weights, constants


def _tiles(size: int, tile: int) -> int:
    return -(-size // tile)


def _splits(spec: Conv2dSpec, isa: Isa, tiling: Tiling, sums: Scratch) -> KernelCall:
    """Return the launch that adds the sums of all splits."""
    store = math.gcd(CHUNK // BYTES[spec.output.dtype], spec.out_channels, 4)
    read = [("sums", "int32"), ("multiplier", "float32"), ("real_bias", "float32")]
    kernel = Kernel(
        name=f"conv2d_splits{spec.output.suffix}",
        header="conv2d_gemm.cuh",
        function="conv2d_splits",
        parameters={
            **spec.output.parameters,
            **spec.output.rows(spec.out_channels),
            "pixels": spec.pixels,
            "out_channels": spec.out_channels,
            "splits": tiling.splits,
            "store": store,
            "threads": _SPLIT_THREADS,
        },
        types=spec.output.types,
        structures=spec.output.tail.structures(),
        members=spec.output.function,
        arguments=(*(Argument(name=name, dtype=dtype) for name, dtype in read), *spec.output.arguments()),
        grid=(_tiles(spec.pixels * spec.out_channels // store, _SPLIT_THREADS), 1, 1),
        block=(_SPLIT_THREADS, 1, 1),
        isa=isa.name,
    )
    constants = spec.output.multiplier, spec.output.real_bias
    return KernelCall(kernel=kernel, operands=(sums, *constants, *spec.output.operands(1)))
