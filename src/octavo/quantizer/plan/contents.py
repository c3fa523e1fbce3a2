"""What a plan holds, as plain data; it reads and writes no file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from ...ir.identity import TensorId
from ...ir.simplify import Fold
from ...numerics import QuantParams
from ..recipe import Recipe
from .corrections import Corrections
from .entries import Adjustment, FloatOp, IntegerLayer
from .equalization import Equalization
from .journal import Journal


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanContents:
    """Which tensors `quantize` made integer, and how: enough to repeat it on the model.

    Parameters
    ----------
    fingerprint
        Of the float model.
    recipe
        What was asked for, less its `tensors`: their parameters stand below.
    names
        Names that tensors of the plan have in the source, by TensorId; steps within a larger op have none.
    activations
        Parameters of each tensor that gets a Q -> DQ pair where it is produced.
    roundings
        How each of them is rounded, names of `target.vocabulary.ROUNDINGS`; by default as its op's target does first.
    weights
        Parameters of each weight.
    weight_values
        Integers of weights and biases, in the layout of the Relax module. They follow from the model's constants: a plan that was
        read from a file has none.
    biases
        Parameters (int32, scale = s_x * s_w, zero point 0) of each bias. They follow from those of inputs and weights.
    corrections
        What running the model told of biases and weights.
    equalization
        By what the channels of tensors were divided before anything was quantized. Parameters are those of the divided tensors.
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
    shared
        Tensors that have one scale and zero point, for ops move values between them.
    journal
        Which steps were tried, and what the referee said of them.
    """

    fingerprint: str
    recipe: Recipe
    activations: dict[TensorId, QuantParams]
    weights: dict[TensorId, QuantParams]
    biases: dict[TensorId, QuantParams] = field(default_factory=dict["TensorId", "QuantParams"])
    weight_values: dict[TensorId, npt.NDArray[Any]] = field(default_factory=dict["TensorId", "npt.NDArray[Any]"])
    corrections: Corrections = field(default_factory=Corrections)
    equalization: Equalization = field(default_factory=Equalization)
    names: Mapping[TensorId, str] = field(default_factory=dict["TensorId", "str"])
    roundings: Mapping[TensorId, str] = field(default_factory=dict["TensorId", "str"])
    layers: tuple[IntegerLayer, ...] = ()
    float_ops: tuple[FloatOp, ...] = ()
    enclosed: tuple[TensorId, ...] = ()
    folds: tuple[Fold, ...] = ()
    adjustments: tuple[Adjustment, ...] = ()
    shared: tuple[tuple[TensorId, ...], ...] = ()
    journal: Journal = field(default_factory=Journal, compare=False)
