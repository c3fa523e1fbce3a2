"""The two float formats of 16 bits, bfloat16 and float16: rounding float32 to them, and the sum of products of bfloat16.

Rounding is half to even. bfloat16 follows Intel's instructions (Intel 64 and IA-32 Architectures Software Developer's Manual,
volume 2, VCVTNEPS2BF16 and VDPBF16PS): subnormal numbers count as zero of their sign, whatever the processor's state says.
float16 is that of IEEE 754, subnormal numbers included. A NaN stays one, made quiet, with its sign and its leading digits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..window import UNIT_WINDOW, Window

HalfDtype = Literal["bfloat16", "float16"]
HALF_DTYPES: tuple[HalfDtype, ...] = ("bfloat16", "float16")
Floats = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint16]
BfloatDot = Callable[[Floats, Bits, Bits], Floats]

MAX_FINITE: dict[HalfDtype, float] = {"bfloat16": float.fromhex("0x1.fep127"), "float16": 65504.0}
"""The largest finite number of each format."""

MIN_NORMAL: dict[HalfDtype, float] = {"bfloat16": 2.0**-126, "float16": 2.0**-14}
"""The smallest number of each format that has its full precision."""

_TINY = np.float32(2.0**-126)


def to_half(x: npt.ArrayLike, dtype: HalfDtype) -> Bits:
    """Return the bits of float32 numbers rounded half to even; beyond the largest they become infinite."""
    values = np.asarray(x, np.float32)
    bits = values.view(np.uint32)
    if dtype == "float16":
        quiet = ((bits >> np.uint32(16)) & np.uint32(0x8000)) | np.uint32(0x7E00) | ((bits >> np.uint32(13)) & np.uint32(0x1FF))
        with np.errstate(over="ignore", invalid="ignore"):
            return np.where(np.isnan(values), quiet, values.astype(np.float16).view(np.uint16)).astype(np.uint16)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    zero = (bits >> np.uint32(16)) & np.uint32(0x8000)
    kept = np.where(np.isnan(values), quiet, np.where(np.abs(values) < _TINY, zero, rounded))
    return kept.astype(np.uint16)


def from_half(bits: Bits, dtype: HalfDtype) -> Floats:
    """Return the float32 numbers that these bits stand for, exact."""
    if dtype == "float16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def round_half(x: npt.ArrayLike, dtype: HalfDtype) -> Floats:
    """Return float32 numbers rounded to the format, as float32."""
    return from_half(to_half(x, dtype), dtype)


def bfloat16_dot(acc: Floats, a: Bits, b: Bits) -> Floats:
    """Return acc + sum(a * b over the last axis) as VDPBF16PS forms it, in float32.

    Parameters
    ----------
    acc
        (...,).
    a, b
        (..., steps) bits of bfloat16; they broadcast. Of each pair the second product is added first, each in one fused
        multiply-add; an odd last product counts as the first of a pair whose second is 0 * 0.
    """
    x, y = (_flushed(from_half(value, "bfloat16")) for value in (a, b))
    total = _flushed(np.asarray(acc, np.float32))
    steps = max(x.shape[-1], y.shape[-1])
    for pair in range(0, steps, 2):
        for step in (pair + 1, pair):
            if step < steps:
                total = _multiply_add(total, x[..., step], y[..., step])
    return total


def bfloat16_odd_dot(acc: Floats, a: Bits, b: Bits) -> Floats:
    """Return acc + sum(a * b over the last axis) as BFDOT and BFMMLA form it, in float32; shapes are as for `bfloat16_dot`.

    The two products of a pair are added first, then their sum to the total, each time rounded to odd: cut, and the last digit 1
    where something was cut off (Arm Architecture Reference Manual for A-profile, BFDotAdd with FPCR.EBF 0). An odd last product
    is paired with 0 * 0.
    """
    x, y = (_flushed(from_half(value, "bfloat16")) for value in (a, b))
    total = _flushed(np.asarray(acc, np.float32))
    steps = max(x.shape[-1], y.shape[-1])
    for pair in range(0, steps, 2):
        with np.errstate(over="ignore", under="ignore"):
            products = [_flushed(x[..., step] * y[..., step]) for step in range(pair, min(pair + 2, steps))]
        total = _add_to_odd(total, products[0] if len(products) == 1 else _add_to_odd(products[0], products[1]))
    return total


def bfloat16_conv2d(
    x: Bits, weight: Bits, *, window: Window = UNIT_WINDOW, groups: int = 1, dot: BfloatDot = bfloat16_dot
) -> Floats:
    """Return the float32 sums of a convolution of bfloat16, NHWC by HWIO; `dot` says how a processor adds products.

    The products of a window are paired as they lie in memory: over a whole row of taps where the taps are neighbours and there
    is one group, else over the channels of each tap.
    """
    kernel_h, kernel_w, inputs, outputs = weight.shape
    padded = window.pad(x)
    out_shape = window.out_shape(padded, weight.shape[:2])
    result = np.zeros((x.shape[0], *out_shape, outputs), np.float32)
    group_outputs = outputs // groups
    joined = groups == 1 and (window.dilation[1] == 1 or kernel_w == 1)
    for group in range(groups):
        own = slice(group * group_outputs, (group + 1) * group_outputs)
        channels = slice(group * inputs, (group + 1) * inputs)
        for i in range(kernel_h):
            taps = [window.tap(padded, i, j, out_shape)[..., channels] for j in range(kernel_w)]
            weights = [weight[i, j, :, own] for j in range(kernel_w)]
            runs = [(np.concatenate(taps, -1), np.concatenate(weights, 0))] if joined else list(zip(taps, weights, strict=True))
            for values, factors in runs:
                result[..., own] = dot(result[..., own], values[..., np.newaxis, :], factors.T)
    return result


def bfloat16_depthwise(x: Bits, weight: Bits, bias: Floats, *, window: Window) -> Floats:
    """Return a depthwise convolution of bfloat16, NHWC by (kernel_h, kernel_w, 1, channels), in float32.

    The bias comes first, then one product after the other, row by row of the window, each added with one rounding: float32 holds
    the product.
    """
    padded, factors = from_half(window.pad(x), "bfloat16"), from_half(weight, "bfloat16")
    out_shape = window.out_shape(padded, weight.shape[:2])
    total = np.broadcast_to(bias, (x.shape[0], *out_shape, x.shape[3])).astype(np.float32)
    for i, j in np.ndindex(weight.shape[:2]):
        total = total + window.tap(padded, i, j, out_shape) * factors[i, j, 0]
    return total


def half_pool2d(
    x: Bits,
    dtype: HalfDtype,
    kind: Literal["max", "avg"],
    *,
    kernel: tuple[int, int],
    window: Window = UNIT_WINDOW,
    count_include_pad: bool = False,
) -> Bits:
    """Return the pooling of NHWC by windows; padding is left out of a maximum.

    An average is the float32 sum of the window, row by row, divided by the count of its pixels, rounded to the format: of those
    inside the image, or with `count_include_pad` of all.
    """
    fill = -np.inf if kind == "max" else 0.0
    padded = window.pad(from_half(x, dtype), fill)
    within = window.pad(np.ones((1, *x.shape[1:3], 1), np.float32))
    out_shape = window.out_shape(padded, kernel)
    total, count = np.float32(fill), np.float32(0)
    for i, j in np.ndindex(kernel):
        taps = window.tap(padded, i, j, out_shape)
        total = np.maximum(total, taps) if kind == "max" else total + taps
        count = count + window.tap(within, i, j, out_shape)
    if kind == "max":
        return to_half(total, dtype)
    return to_half(total / (np.float32(kernel[0] * kernel[1]) if count_include_pad else count), dtype)


def _multiply_add(total: Floats, x: Floats, y: Floats) -> Floats:
    """Return total + x * y rounded once; subnormal results become zero.

    A product of two bfloat16 has 16 significant bits, so float32 holds it unless it leaves the range. Then float64 does.
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        exact = x.astype(np.float64) * y.astype(np.float64)
        product = exact.astype(np.float32)
        is_exact = product.astype(np.float64) == exact
        return _flushed(np.where(is_exact, total + product, (total + exact).astype(np.float32)))


def _add_to_odd(a: Floats, b: Floats) -> Floats:
    """Return the sum cut to float32, its last digit 1 where something was cut off; subnormal results become zero.

    float64 holds the sum but for what is left of it, which says on which side of it the sum is.
    """
    x, y = np.broadcast_arrays(a.astype(np.float64), b.astype(np.float64))
    total = x + y
    part = total - x
    left = (x - (total - part)) + (y - part)
    with np.errstate(over="ignore"):
        nearest = total.astype(np.float32)
    back = nearest.astype(np.float64)
    is_beyond = (np.abs(back) > np.abs(total)) | ((back == total) & (left * total < 0))
    bits = nearest.view(np.uint32) - is_beyond.astype(np.uint32)
    is_cut = (back != total) | (left != 0)
    return _flushed((bits | is_cut.astype(np.uint32)).view(np.float32))


def _flushed(values: Floats) -> Floats:
    return np.where(np.abs(values) < _TINY, np.copysign(np.float32(0), values), values)
