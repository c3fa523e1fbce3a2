"""The steps that ModelBuilder records, and how each is written in QDQ form. Checks nothing.

A step reads tensors and makes one. Where they are quantized, their variables hold integers::

    lv = R.dequantize(x, ...); lv1 = R.dequantize(conv.weight, ...); lv2 = R.nn.conv2d(lv, lv1)
    conv = R.quantize(lv2, ...)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tvm import relax

from ...ir.untyped import ops
from ...numerics import PerAxis, QuantParams
from .checks import Window

Activation = Literal["relu", "relu6"]
FLOAT = "float32"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BuilderTensor:
    """A tensor of a model under construction: what the builder's methods take and return.

    Parameters
    ----------
    name
        As the user gave it; its TensorId, if it is an identifier.
    shape
        Dimensions, e.g. (1, 28, 28, 8); images are NHWC.
    dtype
        "int8", "uint8" or "float32".
    params
        Scale and zero point; None if it is float.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    params: QuantParams | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Step:
    """How one tensor is computed: from the Relax values of `inputs`, with a builder to bind steps in between."""

    tensor: BuilderTensor
    op: str
    inputs: tuple[BuilderTensor, ...]
    make: Callable[[Any, list[Any]], Any]


_ON_INTEGERS = ("max_pool2d", "reshape")
"""Ops that keep scale and zero point, and so work on the integers themselves."""


def write_step(builder: Any, step: Step, values: dict[str, Any]) -> Any:
    """Return the result of one step: dequantize what it reads, compute in float, quantize. `values` are by name."""
    operands = [values[tensor.name] for tensor in step.inputs]
    if step.op in _ON_INTEGERS:
        return step.make(builder, operands)
    reals = [
        operand if tensor.params is None else builder.emit(dequantized(operand, tensor.params))
        for tensor, operand in zip(step.inputs, operands, strict=True)
    ]
    result = step.make(builder, reals)
    params = step.tensor.params
    if params is None:
        return result
    result = builder.emit(result)
    return ops.quantize(result, *_literals(params), axis=0, out_dtype=params.dtype)


def _literals(params: QuantParams) -> tuple[Any, Any]:
    return relax.const(params.scale, "float32"), relax.const(params.zero_point, "int32")


def dequantized(value: Any, params: QuantParams) -> Any:
    """Return real values of integers."""
    axis = params.granularity.axis if isinstance(params.granularity, PerAxis) else 0
    return ops.dequantize(value, *_literals(params), axis=axis)


def add_activation(value: Any, activation: Activation | None) -> Any:
    """Return a float value after its activation."""
    if activation is None:
        return value
    return ops.nn.relu(value) if activation == "relu" else ops.clip(value, 0.0, 6.0)


def convolution(taps: Window) -> dict[str, Any]:
    """Return the attributes of a convolution, without its groups."""
    lattice = {"strides": list(taps.strides), "padding": list(taps.padding), "dilation": list(taps.dilation)}
    return {**lattice, "data_layout": "NHWC", "kernel_layout": "HWIO"}


def pooling(taps: Window) -> dict[str, Any]:
    """Return the attributes of a pooling."""
    return {
        "pool_size": list(taps.kernel),
        "strides": list(taps.strides),
        "padding": list(taps.padding),
        "layout": "NHWC",
    }
