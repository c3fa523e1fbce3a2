"""The plan of a quantized model: which ops are integer, with which parameters, and why others are not. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy.typing as npt

from ..graph import Model
from ..identity import TensorId
from ..numerics import QuantParams


@dataclass(frozen=True, kw_only=True, slots=True)
class IntegerLayer:
    """One op that `quantize` made integer, with what runs in the same kernel.

    Parameters
    ----------
    op
        Relax op name without "relax." ("nn.conv2d").
    output
        Variable of the result, after the fused ops: a TensorId wherever the source has this tensor.
    inputs
        Variables of the activations it reads, in order.
    weight, bias
        Its constants, None where it has none.
    source
        The source's tensor that the result is, as it is or moved; None where the source has no such tensor, for the op is a step
        of a larger one.
    fused
        What follows within the kernel, in order: "bias", "nn.relu", "clip".
    constants
        Its operands that are constants, quantized as activations are.
    """

    op: str
    output: TensorId
    inputs: tuple[TensorId, ...]
    weight: TensorId | None = None
    bias: TensorId | None = None
    source: TensorId | None = None
    fused: tuple[str, ...] = ()
    constants: tuple[TensorId, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatOp:
    """One op that `quantize` left float: which op, the variable of its result, and why."""

    op: str
    tensor: TensorId
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Fold:
    """An op that `quantize` folded into a convolution: its output `tensor` now comes from the convolution, `gone` is no more.

    `op` is "nn.batch_norm" (folded into the convolution before it; `weight` and `bias` name its new constants) or "nn.pad" (into
    those behind it, which read `tensor` with `padding` (top, left, bottom, right) of their own more), or "nn.layer_norm" or
    "nn.group_norm" (a step of one that was written in several ops).
    """

    op: str
    tensor: TensorId
    gone: TensorId
    weight: TensorId | None = None
    bias: TensorId | None = None
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Adjustment:
    """A parameter that `quantize` had to choose otherwise than asked: which tensor, and what was done."""

    tensor: TensorId
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizationPlan:
    """Which tensors `quantize` made integer, and how: enough to repeat it on the source file.

    Parameters
    ----------
    activations
        Parameters of each tensor that gets a Q -> DQ pair where it is produced.
    weights
        Parameters of each weight, and `weight_values` its integers, in the layout of the Relax module.
    biases
        Parameters (int32, scale = s_x * s_w, zero point 0) of each bias, with its int32 integers in `weight_values`.
    layers
        The integer ops, in the order of the graph. Whoever reads the output of one reads it dequantized; the float consumers of
        a tensor that a float op made read it as it is.
    float_ops
        The ops that stay float, each with its reason.
    enclosed
        Results of ops without Q and DQ of their own that run in integers all the same: what they read and what reads them is
        quantized.
    folds
        The ops that were folded away before quantizing.
    adjustments
        Parameters that were chosen otherwise than asked.
    """

    activations: dict[TensorId, QuantParams]
    weights: dict[TensorId, QuantParams]
    biases: dict[TensorId, QuantParams]
    weight_values: dict[TensorId, npt.NDArray[Any]]
    layers: tuple[IntegerLayer, ...] = ()
    float_ops: tuple[FloatOp, ...] = ()
    enclosed: tuple[TensorId, ...] = ()
    folds: tuple[Fold, ...] = ()
    adjustments: tuple[Adjustment, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class QuantizedModel(Model):
    """A model that `quantize` brought into QDQ form, with the plan it followed.

    A model that was quantized before it was imported has no plan that could be repeated: it is a Model in QDQ form.
    """

    plan: QuantizationPlan

    @classmethod
    def of(cls, model: Model, plan: QuantizationPlan) -> QuantizedModel:
        """Return `model`, already in QDQ form, with its plan."""
        return cls(**{field.name: getattr(model, field.name) for field in fields(Model)}, plan=plan)
