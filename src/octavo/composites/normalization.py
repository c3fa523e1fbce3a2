"""Composite ops: normalization. Plain facts of what one composite computes; nothing is matched and nothing emitted here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .base import UNQUANTIZED, CompositeOp, QuantizedOutput, QuantizedTensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class L2NormalizeOp(CompositeOp):
    """x over its norm along `axis` of the source's layout; of "fixed_point" rounding where the norm is taken so."""

    x: QuantizedTensor
    y: QuantizedOutput
    axis: int
    rounding: Literal["half_even", "fixed_point"]

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role, and the rounding."""
        return {"input": self.x.info(), "output": self.y.info(), "rounding": self.rounding}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class NormalizationOp(CompositeOp):
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta; gamma and beta are float32 and of one axis, `names` theirs."""

    x: QuantizedTensor
    y: QuantizedOutput
    gamma: npt.NDArray[np.float32]
    beta: npt.NDArray[np.float32]
    names: tuple[str, str]
    epsilon: float

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role; factors and addends are not quantized."""
        constants = {role: {"id": name, **UNQUANTIZED} for role, name in zip(("weight", "bias"), self.names, strict=True)}
        return {"input": self.x.info(), **constants, "output": self.y.info()}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LayerNormOp(NormalizationOp):
    """Statistics over the last axis, each row its own."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SoftmaxOp(CompositeOp):
    """softmax(beta * x), or its logarithm, along `axis` of the source's layout; that of int16 may round in "fixed_point"."""

    x: QuantizedTensor
    y: QuantizedOutput
    axis: int
    beta: float
    is_log: bool
    rounding: str

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role, and the rounding."""
        return {"input": self.x.info(), "output": self.y.info(), "rounding": self.rounding}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GroupNormOp(NormalizationOp):
    """Statistics over `groups` equal parts of the channels, which are `axis`, and all pixels of an image."""

    groups: int
    axis: int
