"""Tables of functions of one int16 tensor as TFLite computes them: logistic, tanh, exp, log, rsqrt, gelu. No TVM here.

Each has an entry for every integer that the operand can be, least first: what a kernel looks up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from ..floats.elementwise import ELEMENTWISE
from .gemmlowp import gemmlowp_logistic, gemmlowp_tanh
from .rescale import integer_values
from .softmax import interpolated

IntegerArray = npt.NDArray[np.int64]

_SIGMOID_STEPS = 24
"""Entries of the sigmoid's table for each unit of its argument."""

_ONE_MORE = frozenset(
    {4, 8, 12, 14, 15, 16, 17, 19, 20, 21, 22, 25, 27, 28, 29, 30, 31, 33, 34, 35, 37, 39, 40, 41, 43, 44, 45, 46, 49, 50, 54}
    | {62, 63, 64, 66, 82, 86, 93, 100, 103, 112, 116, 135, 255}
)
"""Entries of TFLite's table of the sigmoid that are one above the nearest integer: read from LiteRT's tanh, which shows them."""


def _sigmoid_table() -> IntegerArray:
    """Return 65536 * sigmoid(i / 24) for i in [0; 255], 65535 at most, as TFLite has it."""
    exact = 65536 / (1 + np.exp(-np.arange(256) / _SIGMOID_STEPS))
    table = np.floor(exact + 0.5).astype(np.int64) + [index in _ONE_MORE for index in range(256)]
    return np.minimum(table, 65535)


def logistic_table(scale: float) -> npt.NDArray[np.int16]:
    """Return 32768 * sigmoid(scale * q) for every int16 q, by TFLite's interpolation (scale 2**-12: in fixed point)."""
    q = integer_values("int16")
    if float(np.float32(scale)) == 2.0**-12:
        return gemmlowp_logistic(q).astype(np.int16)
    scaled, table = _scaled(q, scale), _sigmoid_table()
    index = np.abs(scaled) >> 9
    at, part = np.minimum(index, 254), np.abs(scaled) & 511
    value = np.where(index >= 255, 0x7FFF << 10, (table[at] << 9) + part * (table[at + 1] - table[at]))
    rounded = np.where(scaled >= 0, value + (1 << 9), (1 << 25) - value + (1 << 9) - 1)
    return (rounded >> 10).astype(np.int16)


def tanh_table(scale: float) -> npt.NDArray[np.int16]:
    """Return 32768 * tanh(scale * q) for every int16 q, by TFLite's interpolation (scale 2**-12, 2**-11: in fixed point)."""
    q = integer_values("int16")
    for shift in (0, 1):
        if float(np.float32(scale)) == 2.0 ** (shift - 12):
            return gemmlowp_tanh(np.clip(q << shift, -32768, 32767)).astype(np.int16)
    scaled, table = _scaled(q, scale), _sigmoid_table()
    index = np.abs(scaled) >> 8
    at, part = np.minimum(index, 254), np.abs(scaled) & 255
    value = np.where(index >= 255, 0xFFFF << 8, (table[at] << 8) + part * (table[at + 1] - table[at]))
    rounded = np.where(scaled >= 0, value - (1 << 23) + (1 << 7), -value + (1 << 23) + (1 << 7) - 1)
    return (rounded >> 8).astype(np.int16)


_OUT_OF_DOMAIN: Mapping[str, Callable[[np.float32, np.float32], np.float32]] = {"rsqrt": max, "log": min}
"""What TFLite takes for the result outside a function's domain: the maximum of the result, or its minimum."""


def _gelu(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return x / 2 * erfc(-x / sqrt(2)), each product rounded to float32 (TFLite's GeluTransform)."""
    inner = (x * np.float32(-math.sqrt(0.5))).astype(np.float64)
    return np.float32(0.5) * x * np.vectorize(math.erfc, otypes=[np.float64])(inner).astype(np.float32)


def _gelu_tanh(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the approximation by tanh, each operation rounded to float32 in TFLite's order (GeluTransformApproximate)."""
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (np.float32(1) + np.tanh(inner.astype(np.float64)).astype(np.float32))


_FUNCTIONS: Mapping[str, Callable[..., npt.NDArray[np.float32]]] = {
    **{op: ELEMENTWISE[op] for op in ("exp", "log", "rsqrt")},
    "nn.gelu": _gelu,
    "nn.gelu_tanh": _gelu_tanh,
}
INTERPOLATED = tuple(_FUNCTIONS)
"""Functions that TFLite computes of int16 by `interpolated_table`."""


def interpolated_table(op: str, x_scale: float, out_scale: float) -> npt.NDArray[np.int16]:
    """Return a function of every int16 q, symmetric on both sides, by TFLite's interpolation between 513 points.

    Parameters
    ----------
    op
        One of `INTERPOLATED`.
    x_scale, out_scale
        Of operand and result.

    Notes
    -----
    Each point is moved by half the error that interpolation makes midway to the next (TFLite's LUTPopulate). Every step is
    rounded to float32, as there; transcendental functions are computed in float64.
    """
    f32, function = np.float32, _FUNCTIONS[op]
    bounds = np.asarray([-32768, 32767], f32)
    first, end = bounds * f32(x_scale)
    low, high = bounds * f32(out_scale)
    step = (end - first) / f32(512)
    per_step = f32(65536) / (high - low)
    here = (first + np.arange(513, dtype=f32) * step).astype(f32)

    def steps_at(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        with np.errstate(all="ignore"):
            values = function(x).astype(f32)
        if op in _OUT_OF_DOMAIN:
            values = np.where(x <= 0, _OUT_OF_DOMAIN[op](low, high), values)
        return (values * per_step).astype(f32)

    points, middle = _half_away(steps_at(here[:512])), steps_at((here[:512] + step / f32(2)).astype(f32))
    error = _half_away(((steps_at(here[1:]) + points) / f32(2)).astype(f32)) - _half_away(middle)
    last = _half_away(steps_at(np.asarray([end], f32)))
    table = np.concatenate([points - _half_away((error / f32(2)).astype(f32)), last])
    return interpolated(integer_values("int16"), np.clip(table, -32768, 32767).astype(np.int16)).astype(np.int16)


def _half_away(value: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return np.copysign(np.floor(np.abs(value.astype(np.float64)) + 0.5), value).astype(np.float32)


def _scaled(q: IntegerArray, scale: float) -> IntegerArray:
    """Return q * scale in units of 1 / 12288, by a factor of 15 bits that is cut, not rounded."""
    factor, shift = float(np.float32(scale)) * 4096.0 * 3.0, 0
    while factor <= 32767.0 / 2.0 and shift <= 30:
        factor, shift = factor * 2.0, shift + 1
    return (q * math.floor(factor) + ((1 << shift) >> 1)) >> shift
