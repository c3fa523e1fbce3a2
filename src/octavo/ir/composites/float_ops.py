"""Composite ops: float ops. Plain facts of what one composite computes; nothing is matched and nothing emitted here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var

from ...numerics.affine import TieRounding
from ...numerics.floats.float_function import FloatFunction
from ...numerics.floats.half import HalfDtype
from .base import NO_ARITHMETIC, UNQUANTIZED, Arithmetic, CompositeOp, FloatOp, Layout, QuantizedOutput
from .matrix_view import MatrixView


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatBatchMatmulOp(FloatOp):
    """a @ b * factor; a and b are the variables that `a_view` and `b_view` see, by their names, or the numbers of one of them."""

    a: str | npt.NDArray[np.float32]
    b: str | npt.NDArray[np.float32]
    a_view: MatrixView
    b_view: MatrixView
    y_view: MatrixView
    factor: float
    output_shape: tuple[int, ...]

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference."""
        return self.y_view.size * self.a_view.shape[-1]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatSoftmaxOp(FloatOp):
    """softmax over an axis of x, or its logarithm; with an `addend`, of x + addend, or of x * factor + addend, over the last.

    Parameters
    ----------
    x, shape
        The tensor that is read, and its shape.
    axis
        Not negative.
    factor
        None where x is only added to.
    addend
        A tensor, by its name, or numbers; it broadcasts to the shape, and has all of its columns.
    addend_shape
        Of the addend; () where there is none.
    y
        What the result is quantized to; None where it stays float32.
    rounding
        Where ties of the result go.
    """

    x: str
    shape: tuple[int, ...]
    axis: int
    factor: float | None = None
    addend: str | npt.NDArray[np.float32] | None = None
    addend_shape: tuple[int, ...] = ()
    y: QuantizedOutput | None = None
    rounding: TieRounding = "half_even"

    @property
    def is_of_rows(self) -> bool:
        """Whether it is over the last axis."""
        return self.axis == len(self.shape) - 1

    @property
    def is_log(self) -> bool:
        """Whether it is the logarithm."""
        return self.op == "nn.log_softmax"

    @property
    def gives_weights(self) -> bool:
        """Whether its rows are shares of 1, as attention weighs values by them."""
        return self.is_of_rows and not self.is_log

    def quantize_info(self) -> dict[str, Any]:
        """Return that of the result, nothing where it stays float32."""
        return {} if self.y is None else CompositeOp.quantize_info(self)

    def roles(self) -> dict[str, Any]:
        """Return the result where it is quantized."""
        return {} if self.y is None else {"input": {"id": self.x, **UNQUANTIZED}, **self.y.roles()}

    def arithmetic(self) -> Arithmetic:
        """Return the rounding of real / scale; none of a result that stays float32."""
        return NO_ARITHMETIC if self.y is None else Arithmetic("float_multiplier", self.rounding)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatLayerNormOp(FloatOp):
    """layer_norm over the last axis, by constants."""

    x: str
    shape: tuple[int, ...]
    gamma: npt.NDArray[np.float32]
    beta: npt.NDArray[np.float32]
    epsilon: float


Line = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatConcatOp(FloatOp):
    """clamp(concat(inputs) * factor + addend) along `axis` of the source's layout, the factors and addends along it, too.

    Of another `dtype` than float32, a state's that grows, it is the concatenation alone, of the source's own elements.
    """

    inputs: tuple[str, ...]
    shape: tuple[int, ...]
    axis: int
    line: Line | None
    low: float
    high: float
    dtype: str = "float32"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatWeightedOp(FloatOp):
    """clamp(op(x, weight) + bias + addend), or function(op(x, weight) + bias, addend).

    What is observed is the sum, before the clamp; then there is neither addend nor function.
    """

    x: str
    addend: str | None
    weight: Floats
    bias: Floats
    low: float
    high: float
    output_shape: tuple[int, ...]
    observation: Observation | None
    function: FloatFunction | None = None

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference."""
        return math.prod(self.output_shape) * math.prod(self.weight.shape[:-1])


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatConv2dOp(FloatWeightedOp):
    """A convolution; weight is HWIO."""

    layout: Layout
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatMatmulOp(FloatWeightedOp):
    """A matmul; weight is (in, out), x (..., in)."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatConv2dTransposeOp(FloatWeightedOp):
    """A transposed convolution; weight is HWIO with the inputs of one group, `padding` (top, left)."""

    x_shape: tuple[int, ...]
    layout: Layout
    strides: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference: each element of the input meets each tap, for the outputs of its group."""
        rows, columns, _, outputs = self.weight.shape
        return math.prod(self.x_shape) * rows * columns * outputs // self.groups


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatElementwiseOp(FloatOp):
    """function(x, ...) of tensors of one shape."""

    inputs: tuple[str, ...]
    function: FloatFunction


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatGroupNormOp(FloatOp):
    """function(group_norm(x), ...) in groups of the channels, `axis` of the source's layout."""

    inputs: tuple[str, ...]
    groups: int
    axis: int
    gamma: npt.NDArray[np.float32]
    beta: npt.NDArray[np.float32]
    epsilon: float
    function: FloatFunction | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatReduceOp(FloatOp):
    """A sum, mean or extreme over `axes` of the source's layout, or the first place of an extreme.

    Means over height and width of NCHW are those of NHWC.
    """

    kind: Literal["sum", "mean", "max", "min", "argmax", "argmin"]
    x: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    output_shape: tuple[int, ...]


Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatRecurrenceOp(FloatOp):
    """The steps of an LSTM, a GRU or a plain recurrent layer, as `ir.graph.recurrence` defines them.

    `hidden` and `cell`, before the first step, are a variable, a constant (batch, width) or absent: zeros. `bias` and `peepholes`
    may be absent. Those per row have int8 weights (`weighted.RecurrenceOp`).
    """

    x: str
    weights: Floats
    bias: Floats | None
    hidden: str | Floats | None
    cell: str | Floats | None
    peepholes: Floats | None
    kind: Literal["LSTM", "GRU", "RNN"]
    activations: tuple[str, ...]
    backwards: bool
    resets_products: bool
    states: int
    clip: float
    output_shape: tuple[int, ...]

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference: each step's hidden state meets all weights."""
        return recurrent_macs(self.output_shape, self.states, self.weights.size)


def recurrent_macs(output_shape: tuple[int, ...], states: int, weights: int) -> int:
    """Return the multiply-accumulates of a recurrence by so many weights, whose results stand behind the states."""
    steps, batch, _ = output_shape
    return (steps - states) * batch * weights


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatSuppressionOp(FloatOp):
    """The choice of boxes, as `ir.graph.suppression` defines it; `scores_shape` is (batch, classes, boxes)."""

    boxes: str
    scores: str
    most: int
    overlap: float
    score: float | None
    reached: bool
    sigma: float
    scores_shape: tuple[int, int, int]

    @property
    def macs(self) -> int:
        """None: it compares."""
        return 0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PlacesOp(FloatOp):
    """Where booleans `x` are true, as `ir.graph.places` defines it."""

    x: str
    shape: tuple[int, ...]

    @property
    def macs(self) -> int:
        """None: it counts."""
        return 0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Bfloat16Op(FloatOp):
    """A convolution or matmul as `float_op` says it, from 16 bits `x`; `addend` and the result are 16 bits wide or float32."""

    float_op: FloatConv2dOp | FloatMatmulOp
    x: str
    addend: str | None
    addend_dtype: Literal["uint16", "float32"]
    output_dtype: Literal["uint16", "float32"]

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference."""
        return self.float_op.macs


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class HalfPool2dOp(FloatOp):
    """Max or average pooling from 16 bits to 16 bits."""

    x: str
    dtype: HalfDtype
    kind: Literal["max", "avg"]
    layout: Layout
    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    count_include_pad: bool
    output_shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """The parameters that an observer writes to, by name, and the channel axis of the tensor in the source's layout."""

    ranges: str
    counts: str
    channel_axis: int | None

    def states(self, inputs: dict[str, Var]) -> list[Expr]:
        """Return the parameters that the observer writes to."""
        return [inputs[self.ranges], inputs[self.counts]]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ObserveOp(FloatOp):
    """An observed float32 tensor; what it computes is the tensor itself."""

    tensor: str
    observation: Observation
