"""Convolutions, and products with constant weights as convolutions of one tap: what kernels are made for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ......ir.composites.base import QuantizedTensor
from ......ir.composites.weighted import Conv2dOp, DynamicTensor, MatmulOp, WeightedOp
from ...kernel import Argument, Number
from ..language.calls import Input, Operand
from ..matmuls.output import Output, output_of, start_of_sums

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Conv2dSpec:
    """A convolution of NHWC integers, as kernels take it.

    Parameters
    ----------
    weights
        int8 (kernel height, kernel width, input channels / groups, output channels).
    bias
        int32 (output channels,): what the sums start from, zero points in it (`start_of_sums`).
    weight_zero_point
        int32 (output channels,).
    """

    batch: int
    in_height: int
    in_width: int
    in_channels: int
    out_height: int
    out_width: int
    out_channels: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    pad: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    dtype: str
    x_zero_point: int
    weights: npt.NDArray[np.int8]
    bias: npt.NDArray[np.int32]
    weight_zero_point: npt.NDArray[np.int32]
    output: Output

    @property
    def pixels(self) -> int:
        """Of all results, over the batch."""
        return self.batch * self.out_height * self.out_width

    @property
    def has_weight_zero_point(self) -> bool:
        """Whether any channel's is not 0."""
        return bool(self.weight_zero_point.any())

    def parameters(self) -> dict[str, Number]:
        """Return what every kernel's structure of parameters holds."""
        return {
            "batch": self.batch,
            "in_height": self.in_height,
            "in_width": self.in_width,
            "in_channels": self.in_channels,
            "out_height": self.out_height,
            "out_width": self.out_width,
            "out_channels": self.out_channels,
            "kernel_height": self.kernel[0],
            "kernel_width": self.kernel[1],
            "stride_height": self.strides[0],
            "stride_width": self.strides[1],
            "pad_top": self.pad[0],
            "pad_left": self.pad[1],
            "dilation_height": self.dilation[0],
            "dilation_width": self.dilation[1],
            "groups": self.groups,
            "x_zero_point": self.x_zero_point,
            "has_weight_zero_point": self.has_weight_zero_point,
            **self.output.parameters,
            **self.output.rows(self.out_channels),
        }

    def arguments(self, weights: str) -> tuple[Argument, ...]:
        """Return what every kernel takes, its weights of this dtype."""
        read = [("x", self.dtype), ("w", weights), ("bias", "int32"), ("multiplier", "float32"), ("real_bias", "float32")]
        read.append(("weight_zero_point", "int32"))
        return *(Argument(name=name, dtype=dtype) for name, dtype in read), *self.output.arguments()

    @property
    def types(self) -> dict[str, str]:
        """Types that every kernel's structure holds."""
        return {"X": self.dtype, **self.output.types}

    def constants(self) -> tuple[Array, ...]:
        """Return what lies behind the weights, one element for each output channel, in the order of the arguments."""
        return self.bias, self.output.multiplier, self.output.real_bias, self.weight_zero_point.astype(np.int32)

    def operands(self, weights: Array, constants: tuple[Array, ...]) -> tuple[Operand, ...]:
        """Return what the arguments are."""
        return Input(0), weights, *constants, *self.output.operands(1)


def has_own_zero_points(x: QuantizedTensor | DynamicTensor) -> bool:
    """Return whether channels of an activation differ in their zero points."""
    return isinstance(x, QuantizedTensor) and np.ndim(x.params.zero_point) > 0 and np.ptp(x.params.zero_point) != 0


def conv2d_spec(op: Conv2dOp) -> Conv2dSpec:
    """Return a convolution's spec."""
    x = _quantized_input(op)
    op.weight.check_overflow(x, op.roles()["output"]["id"])
    batch, height, width, channels = _nhwc(x.shape, op.layout)
    _, out_height, out_width, out_channels = _nhwc(op.y.shape, op.layout)
    return Conv2dSpec(
        batch=batch,
        in_height=height,
        in_width=width,
        in_channels=channels,
        out_height=out_height,
        out_width=out_width,
        out_channels=out_channels,
        kernel=(op.weight.values.shape[0], op.weight.values.shape[1]),
        strides=op.strides,
        pad=(op.padding[0], op.padding[1]),
        dilation=op.dilation,
        groups=op.groups,
        dtype=x.params.dtype,
        x_zero_point=_zero_point(x),
        weights=op.weight.values,
        bias=start_of_sums(op.weight, _zero_point(x)),
        weight_zero_point=np.broadcast_to(op.weight.zero_point, (out_channels,)),
        output=output_of(op, out_channels),
    )


def matmul_spec(op: MatmulOp) -> Conv2dSpec:
    """Return a product with constant weights."""
    x, weight = _quantized_input(op), op.weight
    weight.check_overflow(x, op.roles()["output"]["id"])
    outputs = weight.values.shape[1]
    return product_spec(
        math.prod(x.shape[:-1]),
        weight.values,
        dtype=x.params.dtype,
        x_zero_point=_zero_point(x),
        bias=start_of_sums(weight, _zero_point(x)),
        weight_zero_point=np.broadcast_to(weight.zero_point, (outputs,)),
        output=output_of(op, outputs),
    )


def product_spec(
    rows: int,
    weights: npt.NDArray[np.int8],
    *,
    dtype: str,
    x_zero_point: int,
    bias: npt.NDArray[np.int32],
    weight_zero_point: npt.NDArray[np.int32],
    output: Output,
) -> Conv2dSpec:
    """Return a product of so many rows with weights (inputs, outputs) as a convolution of one tap whose pixels are the rows."""
    inputs, outputs = weights.shape
    return Conv2dSpec(
        batch=1,
        in_height=1,
        in_width=rows,
        in_channels=inputs,
        out_height=1,
        out_width=rows,
        out_channels=outputs,
        kernel=(1, 1),
        strides=(1, 1),
        pad=(0, 0),
        dilation=(1, 1),
        groups=1,
        dtype=dtype,
        x_zero_point=x_zero_point,
        weights=weights[None, None],
        bias=bias,
        weight_zero_point=weight_zero_point,
        output=output,
    )


def _zero_point(x: QuantizedTensor) -> int:
    assert np.ptp(x.params.zero_point) == 0, f"{x.name}: zero points of channels have become one before"
    return int(np.ravel(x.params.zero_point)[0])


def _quantized_input(op: WeightedOp) -> QuantizedTensor:
    assert isinstance(op.x, QuantizedTensor), "what is quantized at run time has become integers before"
    return op.x


def _nhwc(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    return shape if layout == "NHWC" else (shape[0], shape[2], shape[3], shape[1])
