"""Oracle of products with weights that have a scale for each block of inputs. No TVM here.

Activations of a block become integers of 1, 2 or 3 bytes that share a scale: sums of their products with a block's weights are
exact whatever their order, and 3 bytes are as exact as float32. A number of several bytes is written in digits in [-128; 127].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from ..rounding.fused_multiply_add import fused_multiply_add

_F = np.float32

BlockActivations = Literal["float32", "bfloat16", "int8"]
"""How exact the activations beside weights in blocks are, at least."""

BLOCK_ACTIVATIONS: tuple[BlockActivations, ...] = get_args(BlockActivations)

ACTIVATION_DIGITS: Mapping[BlockActivations, int] = {"float32": 3, "bfloat16": 2, "int8": 1}
"""Bytes of the integers of a block. Two are nearer to the largest magnitudes than bfloat16, and err as much in small ones."""

DIGIT_LIMITS = {1: 127, 2: 32639, 3: 8355711}
"""The largest magnitude of integers, by their bytes: of those whose digits all lie in [-127; 127]."""

TOP_BITS = {2: 14, 3: 22}
"""log2 of the integer that the power of two at or below a block's largest magnitude becomes, by bytes."""

HEADROOM = _F(1.004)
"""The largest magnitude times this stays below a power of two wherever its integer is within DIGIT_LIMITS."""

FIRST_EXPONENT = 23
"""Of the scales of 2 and 3 bytes, as float32 biases it: neither the scale nor its inverse is subnormal."""


def block_integers(x: npt.NDArray[np.float32], block: int, digits: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Return the integers of float32 (rows, inputs), and their scales (rows, blocks).

    Of one byte the scale is the largest magnitude of the block / 127, of more it is a power of two. A block that holds NaN or
    infinity has the scale NaN, and integers that mean nothing.
    """
    rows, inputs = x.shape
    blocks = x.reshape(rows, inputs // block, block)
    largest = np.abs(blocks).max(axis=2)
    finite = np.isfinite(largest)
    largest = np.where(finite, largest, _F(0))
    if digits == 1:
        scale = np.maximum(largest / _F(127), np.finfo(_F).tiny)
        factor = _F(1) / scale
    else:
        with np.errstate(over="ignore"):
            exponent = np.maximum((largest * HEADROOM).view(np.int32) >> 23, FIRST_EXPONENT)
        scale = ((exponent - TOP_BITS[digits]) << 23).view(_F)
        factor = ((254 + TOP_BITS[digits] - exponent) << 23).view(_F)
    limit = _F(DIGIT_LIMITS[digits])
    with np.errstate(invalid="ignore", over="ignore"):
        steps = np.where(finite[..., np.newaxis], np.rint(np.clip(blocks * factor[..., np.newaxis], -limit, limit)), _F(0))
    return steps.reshape(x.shape).astype(np.int32), np.where(finite, scale, _F(np.nan)).astype(_F)


def block_matmul(
    x: npt.NDArray[np.int32],
    x_scale: npt.NDArray[np.float32],
    weight: npt.NDArray[np.integer],
    scale: npt.NDArray[np.float32],
    zero_point: npt.NDArray[np.integer],
    digits: int,
) -> npt.NDArray[np.float32]:
    """Return the sum over blocks of x @ (weight - zero_point) * (scale * x_scale), float32 (rows, outputs).

    Parameters
    ----------
    x, x_scale
        (rows, inputs) and (rows, blocks), as `block_integers` gives them; `digits` are the bytes of an integer.
    weight
        (inputs, outputs).
    scale, zero_point
        (blocks, outputs).

    Notes
    -----
    Each block's sum is rounded to float32, one of 3 bytes as fma(those of the high bytes, 2**16, those of the others); it times
    scale * x_scale, rounded, is added to those of the blocks before it by a fused multiply-add.
    """
    size = len(weight) // len(scale)
    total = np.zeros((len(x), weight.shape[1]), _F)
    for block in range(len(scale)):
        inputs = slice(block * size, (block + 1) * size)
        steps = weight[inputs].astype(np.int64) - zero_point[block].astype(np.int64)
        value = _sums(x[:, inputs].astype(np.int64), steps, digits)
        total = fused_multiply_add(value, scale[block] * x_scale[:, block : block + 1], total)
    return total


def _sums(x: npt.NDArray[np.int64], steps: npt.NDArray[np.int64], digits: int) -> npt.NDArray[np.float32]:
    if digits < 3:
        return (x @ steps).astype(_F)
    high = (x + 0x8080) >> 16
    low = x - (high << 16)
    return fused_multiply_add((high @ steps).astype(_F), _F(1 << 16), (low @ steps).astype(_F))
