"""The observer: a PrimFunc that reads one float32 tensor twice and leaves its statistics in a small int32 vector.

It runs inside the compiled graph and knows no other tensor. Every statistic is an integer, so nothing depends on the order in
which a machine adds. Layout of the vector of a tensor with C channels (C = 1 without a channel axis):

    [0]                     histogram exponent e: the smallest (at least -64) with max|x| < 2^e
    [1]                     zeros
    [2]                     values that are NaN or infinite
    [3 : 3 + C]             least key of each channel
    [3 + C : 3 + 2 C]       greatest key of each channel
    [3 + 2 C : ]            histogram of the finite values (see numerics/histogram.py)

The key of a float is its bits as an int32 with the lower 31 inverted where the sign is set: keys order as the floats do, and
integer minima and maxima become vector instructions where float ones wait for NaN rules.
"""
# pyright: reportInvalidTypeForm=false, reportUnusedExpression=false
# (TVMScript: annotations are buffers and its statements are staged, not executed)

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import tvm
from tvm.script import tirx as T

from ..numerics.histogram import BINS, MAX_EXPONENT, MIN_EXPONENT, ZERO_BIN, Histogram

HEADER = 3
OPAQUE = 8
"""TVM's kOpaque operator pattern: FuseOps leaves the observer alone, and AnnotateTIROpPattern takes it as given."""
_MIN_INT32, _MAX_INT32 = -(2**31), 2**31 - 1
_MAGNITUDE = 0x7FFFFFFF
_INFINITY = 0x7F800000
# Biased exponent E of max|x| gives max|x| < 2^(E - 126); scale 2^(10 - e) has biased exponent 137 - e.
_EXPONENT_BIAS = 126
_SCALE_BIAS = 127 + ZERO_BIN.bit_length() - 1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Observed:
    """What one run says of one tensor: zeros, non-finite values, float32 (C,) channel minima and maxima, and the histogram."""

    zeros: int
    non_finite: int
    minimum: npt.NDArray[np.float32]
    maximum: npt.NDArray[np.float32]
    histogram: Histogram


def statistics_size(channels: int) -> int:
    """Return the length of the statistics vector of a tensor with `channels` channels."""
    return HEADER + 2 * channels + BINS


def keys_to_floats(keys: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """Return the floats of ordering keys; -0.0 becomes 0.0, so that equal minima are equal bytes."""
    bits = np.where(keys < 0, keys ^ np.int32(_MAGNITUDE), keys).astype(np.int32)
    return bits.view(np.float32) + np.float32(0.0)


def decode(vector: npt.NDArray[np.int32], channels: int) -> Observed:
    """Return what a statistics vector says; minima and maxima mean nothing where `non_finite` is not 0."""
    assert vector.shape == (statistics_size(channels),), f"{vector.shape} is not a statistics vector of {channels} channels"
    counts = vector[HEADER + 2 * channels :].astype(np.int64)
    return Observed(
        zeros=int(vector[1]),
        non_finite=int(vector[2]),
        minimum=keys_to_floats(vector[HEADER : HEADER + channels]),
        maximum=keys_to_floats(vector[HEADER + channels : HEADER + 2 * channels]),
        histogram=Histogram(exponent=int(vector[0]), counts=counts),
    )


def observer(shape: tuple[int, ...], channel_axis: int | None) -> tvm.tirx.PrimFunc:
    """Return the PrimFunc (float32 `shape` -> int32 statistics vector) of tensors with at least one element.

    It is one opaque block, which TVM's default pipelines neither fuse nor split.
    """
    size = math.prod(shape)
    assert 0 < size < _MAX_INT32, f"a tensor of {size} elements cannot be observed"
    channels = 1 if channel_axis is None else shape[channel_axis]
    inner = size if channel_axis is None else math.prod(shape[channel_axis + 1 :])
    outer = size // (channels * inner)
    least, greatest, bins = HEADER, HEADER + channels, HEADER + 2 * channels
    everything = tuple(slice(0, dim) for dim in shape)

    @T.prim_func(private=True, s_tir=True)
    def observe(data: T.Buffer(shape, "float32"), statistics: T.Buffer((bins + BINS,), "int32")):
        T.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE})
        with T.sblock("observe"):
            T.reads(data[everything])
            T.writes(statistics[0 : bins + BINS])
            x = T.decl_buffer((size,), "float32", data=data.data)
            magnitude = T.alloc_buffer((1,), "int32", scope="local")
            zeros = T.alloc_buffer((1,), "int32", scope="local")
            non_finite = T.alloc_buffer((1,), "int32", scope="local")
            magnitude[0] = 0
            zeros[0] = 0
            non_finite[0] = 0
            for i in range(BINS):
                statistics[bins + i] = 0
            for c in range(channels):
                statistics[least + c] = _MAX_INT32
                statistics[greatest + c] = _MIN_INT32
            for o in range(outer):
                for c in range(channels):
                    for i in range(inner):
                        bits: T.int32 = T.reinterpret("int32", x[(o * channels + c) * inner + i])
                        absolute: T.int32 = T.bitwise_and(bits, _MAGNITUDE)
                        key: T.int32 = T.bitwise_xor(bits, T.bitwise_and(T.shift_right(bits, 31), _MAGNITUDE))
                        statistics[least + c] = T.min(statistics[least + c], key)
                        statistics[greatest + c] = T.max(statistics[greatest + c], key)
                        magnitude[0] = T.max(magnitude[0], absolute)
                        zeros[0] = zeros[0] + T.cast(absolute == 0, "int32")
            exponent: T.int32 = T.max(T.min(T.shift_right(magnitude[0], 23) - _EXPONENT_BIAS, MAX_EXPONENT), MIN_EXPONENT)
            scale: T.float32 = T.reinterpret("float32", T.shift_left(_SCALE_BIAS - exponent, 23))
            statistics[0] = exponent
            statistics[1] = zeros[0]
            for i in range(size):
                value: T.float32 = x[i]
                if T.bitwise_and(T.reinterpret("int32", value), _MAGNITUDE) < _INFINITY:
                    floor: T.int32 = T.cast(T.floor(value * scale), "int32")
                    # A negative value so small that the product vanishes still belongs below zero.
                    index: T.int32 = T.if_then_else(value < T.float32(0), T.min(floor, -1), floor) + ZERO_BIN
                    statistics[bins + index] = statistics[bins + index] + 1
                else:
                    non_finite[0] = non_finite[0] + 1
            statistics[2] = non_finite[0]

    return observe
