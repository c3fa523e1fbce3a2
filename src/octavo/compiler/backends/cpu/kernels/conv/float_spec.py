"""What a convolution of float32 is asked to compute: plain values that know no graph.

Layouts are NHWC for activations and HWIO for weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ......numerics.floats.float_function import FloatFunction


@dataclass(frozen=True, kw_only=True, slots=True)
class Interleave:
    """Where a convolution's outputs lie among those of others, which together are one image.

    Output (row, column) is pixel (row * strides[0] + first[0], column * strides[1] + first[1]) of an image of height x width.
    """

    strides: tuple[int, int]
    first: tuple[int, int]
    height: int
    width: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatConv2dSpec:
    """A convolution of float32 [batch, in_height, in_width, in_channels], weights HWIO of in_channels / groups inputs.

    `padding` is (top, left, bottom, right), filled with 0; below 0, as many inputs are not read. With
    `adds`, a tensor of the result's shape is added to the sums. The result is clamped to [low; high]. `threads` is the number of
    chunks the work is cut into; 1 emits no parallel loop. With `interleave`, the result is some of the pixels of an image. With
    `function`, it is that of the sum and the addend, instead of their sum clamped. Weights lie in memory as
    `weight_dtype`, which holds them all.
    """

    batch: int
    in_height: int
    in_width: int
    in_channels: int
    out_channels: int
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    adds: bool = False
    low: float = -math.inf
    high: float = math.inf
    threads: int = 1
    interleave: Interleave | None = None
    function: FloatFunction | None = None
    weight_dtype: Literal["float32", "bfloat16", "float16"] = "float32"

    @property
    def out_height(self) -> int:
        """Rows of the output."""
        reach = self.dilation[0] * (self.kernel[0] - 1) + 1
        return (self.in_height + self.padding[0] + self.padding[2] - reach) // self.strides[0] + 1

    @property
    def out_width(self) -> int:
        """Columns of the output."""
        reach = self.dilation[1] * (self.kernel[1] - 1) + 1
        return (self.in_width + self.padding[1] + self.padding[3] - reach) // self.strides[1] + 1
