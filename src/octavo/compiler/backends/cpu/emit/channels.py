"""Depthwise convolutions of activations whose channels have zero points of their own.

Kernels take one zero point. A sum of (x - z_c) * w over the taps of channel c is the sum of x * w less z_c times the sum of w.
The latter is a constant and goes into the bias, once every tap lies in the image: so the image is padded first, each channel by
its own zero point, and the kernel then reads integers of zero point 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var

from .....ir.composites.base import QuantizedTensor
from .....ir.composites.movement import full_axis, padded_axis
from .....ir.composites.weighted import DynamicTensor, QuantizedWeight
from .....numerics import check_accumulator
from .. import kernels
from ..context import KernelContext, shape_of
from ..kernels import GatherSpec


def channel_zero_points(x: QuantizedTensor | DynamicTensor) -> npt.NDArray[np.int32] | None:
    """Return the zero points of the channels as kernels see them, in the uint8 domain; None where one serves all."""
    if isinstance(x, DynamicTensor) or not np.ndim(x.params.zero_point) or np.ptp(x.params.zero_point) == 0:
        return None
    return x.params.zero_point.astype(np.int32) + np.int32(x.relabelling)


def pad_by_channel(
    context: KernelContext, name: str, x: Expr, padding: tuple[int, int, int, int], zero_points: npt.NDArray[np.int32]
) -> Expr:
    """Pad uint8 [batch, height, width, channels] by (top, left, bottom, right), each channel with its zero point."""
    if not any(padding):
        return x
    batch, height, width, channels = shape_of(x)
    top, left, bottom, right = padding
    maps = full_axis(batch), padded_axis(height, top, bottom), padded_axis(width, left, right), full_axis(channels)
    fill = tuple(int(zero_point) for zero_point in zero_points)
    spec = GatherSpec(shape=shape_of(x), maps=maps, fill=fill, threads=context.threads)
    shape = (batch, top + height + bottom, left + width + right, channels)
    padded: Var = context.call(name, kernels.gather(spec, isa=context.isa), [x], shape)
    return padded


def bias_for_zero_points(
    bias: npt.NDArray[Any], weight: QuantizedWeight, zero_points: npt.NDArray[np.int32], name: str
) -> npt.NDArray[Any]:
    """Return the bias less what the zero points add to each channel's sum: int32 in units of the accumulator, or float32.

    CompileError where an accumulator could then leave int32.
    """
    outputs = weight.values.shape[-1]
    sums = (weight.values.astype(np.int64) - weight.zero_point).reshape(-1, outputs).sum(axis=0)
    excess = np.repeat(zero_points.astype(np.int64), outputs // zero_points.size) * sums
    if bias.dtype == np.float32:
        check_accumulator(weight.values, weight.zero_point, weight.bias, 0, 0, 255, where=name)
        return (bias - excess * weight.multiplier.astype(np.float64)).astype(np.float32)
    # Far below the limits of int32 for any depthwise kernel; checked, since a bias may lie at them.
    moved = np.clip(bias - excess, -(2**31), 2**31 - 1).astype(np.int32)
    check_accumulator(weight.values, weight.zero_point, moved, 0, 0, 255, where=name)
    return moved
