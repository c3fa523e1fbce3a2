"""float32 depthwise convolution on ARM64: two registers of channels, so that more outputs share a kernel row's weights.

The loops, and the order of every sum, are those of `depthwise.float_depthwise`.
"""

from __future__ import annotations

from typing import ClassVar

from ...language.arm import vector as v
from ..float_depthwise import FloatDepthwise

COLUMNS = 8
"""Columns of a tile: 16 registers of sums, beside the weights of a row of 5 taps and an input."""


class ArmFloatDepthwise(FloatDepthwise):
    """Emits one layer's PrimFunc."""

    lanes: ClassVar[int] = 2 * v.QUAD
