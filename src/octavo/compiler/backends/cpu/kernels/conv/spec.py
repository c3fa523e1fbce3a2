"""What a convolution of integers is asked to compute: plain values that know no graph.

Activations are uint8 or int16 here. An int8 tensor enters by relabelling: q + 128 with zero_point + 128 is the same real number,
and VNNI multiplies unsigned activations by signed weights; a uint16 one alike, as int16. Layouts are NHWC for activations and
HWIO for weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from ......ir.composites.outputs import FloatOutput, FunctionOutput, Output, SumOutput
from ......numerics.rounding.narrow_accumulator import NarrowAccumulator


class Windows(Protocol):
    """What a convolution of any dtype says of its windows."""

    @property
    def kernel(self) -> tuple[int, int]:
        """Rows and columns."""
        ...

    @property
    def strides(self) -> tuple[int, int]:
        """Of rows and of columns."""
        ...

    @property
    def padding(self) -> tuple[int, int, int, int]:
        """Top, left, bottom, right."""
        ...

    @property
    def groups(self) -> int:
        """Of channels."""
        ...


def gemm_kind(spec: Windows) -> Literal["pointwise", "direct", "grouped"]:
    """Return what kind of matrix product a convolution is, which kernels are named by.

    A pointwise one has no border between rows or images: output pixels are input pixels, one long column.
    """
    if spec.kernel == (1, 1) and spec.strides == (1, 1) and not any(spec.padding):
        return "pointwise"
    return "direct" if spec.groups == 1 else "grouped"


@dataclass(frozen=True, kw_only=True, slots=True)
class Conv2dSpec:
    """A convolution of `dtype` [batch, in_height, in_width, in_channels], weights HWIO of in_channels / groups inputs.

    With `stack` so many images in a row have weights of their own, those of a pointwise one, and the images behind them the same
    again: then weights, and all that is said of output channels, are those of one after the other, `out_channels` each. With
    `index_dtype` an image has those that its index says, which come at run time and are clipped to [0; stack - 1].
    `padding` is (top, left, bottom, right), filled with `input_zero_point`, which is unused where it comes at run time. `threads`
    is the number of chunks the work is cut into; 1 emits no parallel loop. int16 becomes int16 and nothing else, and its sums may
    leave an accumulator that is `narrow`.
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
    stack: int = 1
    index_dtype: Literal["int32", "int64"] | None = None
    input_zero_point: int
    output: Output | FloatOutput | FunctionOutput | SumOutput
    dtype: Literal["uint8", "int16"] = "uint8"
    narrow: NarrowAccumulator | None = None
    threads: int = 1

    @property
    def out_height(self) -> int:
        """Rows of the output."""
        return (self.in_height + self.padding[0] + self.padding[2] - self.dilation[0] * (self.kernel[0] - 1) - 1) // self.strides[
            0
        ] + 1

    @property
    def out_width(self) -> int:
        """Columns of the output."""
        return (self.in_width + self.padding[1] + self.padding[3] - self.dilation[1] * (self.kernel[1] - 1) - 1) // self.strides[
            1
        ] + 1

    @property
    def pixels_per_scale(self) -> int:
        """Output pixels that share a scale and zero point given at run time; 0 where these are constants."""
        return 0 if isinstance(self.output, Output) else self.output.pixels_per_scale

    @property
    def folded_zero_point(self) -> int:
        """The zero point that the constants account for; 0 where it comes at run time."""
        return 0 if self.pixels_per_scale != 0 else self.input_zero_point

    @property
    def scales(self) -> int:
        """How many scales and zero points come at run time."""
        return self.batch * self.out_height * self.out_width // self.pixels_per_scale if self.pixels_per_scale != 0 else 0
