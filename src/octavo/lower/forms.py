"""What a rule found: the plain facts from which a kernel is specified. No graph in here, only numbers and names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..numerics import QuantParams

Layout = Literal["NCHW", "NHWC"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TensorForm:
    """An activation: the name of its variable (its TensorId where it has one), shape in the source's layout, parameters."""

    name: str
    shape: tuple[int, ...]
    params: QuantParams


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class OutputForm:
    """The result: `qmin` and `qmax` are the activation's bounds in the result's own integers."""

    tensor: TensorForm
    qmin: int
    qmax: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WeightForm:
    """A constant operand: int8 `values` (HWIO, or [in, out]), zero point in that domain, source parameters for the record."""

    name: str
    values: npt.NDArray[np.int8]
    zero_point: npt.NDArray[np.int32]
    params: QuantParams
    bias_name: str
    bias: npt.NDArray[np.int32]
    bias_scale: npt.NDArray[np.float32]
    multiplier: npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ConvForm:
    """conv2d + bias + clamp."""

    x: TensorForm
    weight: WeightForm
    y: OutputForm
    layout: Layout
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference."""
        kh, kw, ci, _ = self.weight.values.shape
        return int(np.prod(self.y.tensor.shape)) * kh * kw * ci


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MatmulForm:
    """matmul with constant weights [in, out] + bias + clamp; x is [..., in]."""

    x: TensorForm
    weight: WeightForm
    y: OutputForm

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference."""
        return int(np.prod(self.y.tensor.shape)) * self.weight.values.shape[0]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AddForm:
    """a + b + clamp; b may be broadcast over leading dimensions, or be a constant (`b_values` in b's own integers)."""

    a: TensorForm
    b: TensorForm
    b_values: npt.NDArray[Any] | None
    y: OutputForm


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PoolForm:
    """Average or max pooling, or the mean over height and width."""

    kind: Literal["avg", "max"]
    x: TensorForm
    y: OutputForm
    layout: Layout
    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    count_include_pad: bool
    out_height: int
    out_width: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ConcatForm:
    """Concatenation along `axis` of the source's layout."""

    inputs: tuple[TensorForm, ...]
    y: OutputForm
    axis: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MoveForm:
    """Data movement (reshape, squeeze, transposition), or none at all (a clamp, a change of parameters).

    `axes` is the permutation of a transposition, None for a reshape.
    """

    x: TensorForm
    y: OutputForm
    axes: tuple[int, ...] | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class QuantizeForm:
    """float32 to integers at the edge of an integer region."""

    source: str
    y: OutputForm


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DequantizeForm:
    """Integers to float32 at the edge of an integer region."""

    x: TensorForm
    result: str


Form = ConvForm | MatmulForm | AddForm | PoolForm | ConcatForm | MoveForm | QuantizeForm | DequantizeForm
