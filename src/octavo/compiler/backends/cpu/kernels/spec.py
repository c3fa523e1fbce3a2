"""What a kernel is asked to compute, and what a kernel is: plain values that know no graph.

Activations are uint8 or int16 here. An int8 tensor enters by relabelling: q + 128 with zero_point + 128 is the same real number,
and VNNI multiplies unsigned activations by signed weights; a uint16 one alike, as int16. Layouts are NHWC for activations and
HWIO for weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy.typing as npt
import tvm

from .....ir.composites.matrix_view import MatrixView
from .....ir.composites.outputs import FloatOutput, FunctionOutput, Output, SumOutput
from .....numerics import FloatMeanParameters, FloatSumParameters
from .....numerics.affine import TieRounding
from .....numerics.quantized.pool2d import PoolRounding
from .....numerics.rounding.fixed_point import FixedPointMultiplier
from .....numerics.rounding.narrow_accumulator import NarrowAccumulator
from ...tunable import Tunable


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

    `padding` is (top, left, bottom, right), filled with `input_zero_point`, which is unused where it comes at run time. `threads`
    is the number of chunks the work is cut into; 1 emits no parallel loop. int16 becomes int16 and nothing else, and its sums may
    leave an accumulator that is `narrow`. A core with `float_adders` adds floats while it multiplies integers.
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
    input_zero_point: int
    output: Output | FloatOutput | FunctionOutput | SumOutput
    dtype: Literal["uint8", "int16"] = "uint8"
    narrow: NarrowAccumulator | None = None
    threads: int = 1
    float_adders: bool = False

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
        return 0 if self.pixels_per_scale else self.input_zero_point

    @property
    def scales(self) -> int:
        """How many scales and zero points come at run time."""
        return self.batch * self.out_height * self.out_width // self.pixels_per_scale if self.pixels_per_scale else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One of two operands whose shapes broadcast, in the integers that kernels hold it in."""

    shape: tuple[int, ...]
    dtype: Literal["uint8", "int16"] = "uint8"
    scale: float
    zero_point: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class AddSpec:
    """uint8 a + uint8 b over `size` values of a; b has `b_size` values, repeated (size % b_size == 0).

    With `float_sum` the sum is formed in float32 and rounds half to even; its constants are about the source's integers, to which
    `relabelling` was added. Without, in integers from the scales, rounding half up.
    """

    size: int
    b_size: int
    a_scale: float
    a_zero_point: int
    b_scale: float
    b_zero_point: int
    out_scale: float
    output: Output
    float_sum: FloatSumParameters | None = None
    relabelling: int = 0
    threads: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool2dSpec:
    """Average or max pooling of NHWC, of `dtype` to itself.

    `multiplier` is float32 in_scale / out_scale (1.0 for "max", which leaves scale and zero point as they are). Padding never
    counts in a maximum; in an average it counts (as real 0) only if `count_include_pad`. `rounding` is that of an average:
    "half_even" of the real mean; "half_away", for a multiplier of 1 only, of the mean of x - input_zero_point (of int16: of the
    integers as stored); or, for uint8 alone, "half_even_stored", where a tie becomes an even integer as stored (which differs
    where the zero point is odd); or one of `SHIFTS`, exact with a power of two as the multiplier. With `float_mean` an
    average of uint8 is formed in float32, whatever `rounding` says; `multiplier` is then its ratio.
    """

    kind: Literal["avg", "max"]
    batch: int
    in_height: int
    in_width: int
    channels: int
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    out_height: int
    out_width: int
    count_include_pad: bool = False
    multiplier: float = 1.0
    input_zero_point: int
    output: Output
    dtype: Literal["uint8", "int16"] = "uint8"
    rounding: PoolRounding = "half_even"
    float_mean: FloatMeanParameters | None = None
    threads: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ConcatSpec:
    """Concatenation of inputs [outer, inner_i] into [outer, sum(inner_i)], each requantized to the output's parameters.

    `multipliers` are float32 scale_i / out_scale; inputs of int16 have the output's scale and zero point.
    """

    outer: int
    inners: tuple[int, ...]
    multipliers: tuple[float, ...]
    zero_points: tuple[int, ...]
    output: Output
    dtype: Literal["uint8", "int16"] = "uint8"
    threads: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchMatmulSpec:
    """a (..., rows, inner) @ b (..., inner, columns) of `dtype`; the batch axes broadcast.

    `multiplier` is float32 a_scale * b_scale / out_scale; a_scale * b_scale for a FloatOutput, and unread for a SumOutput.
    Parameters are constants here, so neither of these has `pixels_per_scale`. int16 has neither; its multiplier may be a
    fixed-point one, and its accumulator `narrow`.
    """

    a: MatrixView
    b: MatrixView
    y: MatrixView
    a_zero_point: int
    b_zero_point: int
    multiplier: float | FixedPointMultiplier
    output: Output | FloatOutput | SumOutput
    dtype: Literal["uint8", "int16"] = "uint8"
    narrow: NarrowAccumulator | None = None
    threads: int = 1

    @property
    def rows(self) -> int:
        """Rows of a and of the result."""
        return self.a.shape[-2]

    @property
    def inner(self) -> int:
        """Products of a sum."""
        return self.a.shape[-1]

    @property
    def columns(self) -> int:
        """Columns of b and of the result."""
        return self.b.shape[-1]


@dataclass(frozen=True, kw_only=True, slots=True)
class SoftmaxSpec:
    """[rows, columns] of `dtype` to themselves; `scale` is the input's times a factor beta.

    `rounding` "fixed_point", of int16 alone, is to a scale of 1 / 32768, whatever `out_scale` says; it takes `beta` for itself.
    """

    rows: int
    columns: int
    scale: float
    beta: float = 1.0
    out_scale: float
    output: Output
    dtype: Literal["uint8", "int16"] = "uint8"
    rounding: Literal["half_even", "fixed_point"] = "half_even"
    threads: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class RequantizeSpec:
    """uint8 to uint8 of other parameters, over `size` values; `multiplier` is float32 in_scale / out_scale."""

    size: int
    multiplier: float
    input_zero_point: int
    output: Output
    threads: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizeSpec:
    """float32 to `dtype`, over `size` values: saturate(round(x / scale) + zero_point), whose ties go where `ties` says."""

    size: int
    scale: float
    zero_point: int
    dtype: Literal["uint8", "int8", "int16"] = "uint8"
    ties: TieRounding = "half_even"
    threads: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class DequantizeSpec:
    """`dtype` to float32, over `size` values: float32(q - zero_point) * scale."""

    size: int
    scale: float
    zero_point: int
    dtype: Literal["uint8", "int8", "int16"] = "uint8"
    threads: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class RelabelSpec:
    """int8 to uint8 or uint16 to int16, or back, over `size` values: the same real number under a zero point moved alike."""

    size: int
    in_dtype: Literal["uint8", "int8", "uint16", "int16"]
    threads: int = 1

    @property
    def out_dtype(self) -> str:
        """The dtype of as many bits with the other sign."""
        return {"uint8": "int8", "int8": "uint8", "uint16": "int16", "int16": "uint16"}[self.in_dtype]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Kernel:
    """A compiled-to-be kernel.

    Parameters
    ----------
    name
        Says what runs, for people: "conv2d.pointwise 6x4".
    isa
        One of `isa.KNOWN_ISAS`.
    func
        PrimFunc over flat one-dimensional buffers: the activation inputs, then `constants`, then the output.
    constants
        Packed weights, folded biases, multipliers: one-dimensional arrays, passed after the activations.
    tunable
        How it walks its work, where there is a choice.
    """

    name: str
    isa: str
    func: tvm.tirx.PrimFunc
    constants: tuple[npt.NDArray[Any], ...] = ()
    tunable: Tunable | None = None
