"""Composite ops: normalization. Plain facts of what one composite computes; nothing is matched and nothing emitted here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .base import UNQUANTIZED, Arithmetic, UnaryOp


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class L2NormalizeOp(UnaryOp):
    """x over its norm along `axis` of the source's layout; of "fixed_point" rounding where the norm is taken so."""

    axis: int
    rounding: Literal["half_even", "fixed_point"]

    def arithmetic(self) -> Arithmetic:
        """Return what an exact sum of squares is followed by."""
        return Arithmetic("fixed_point" if self.rounding == "fixed_point" else "float_multiplier", self.rounding, 32)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class NormalizationOp(UnaryOp):
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta; gamma and beta are float32 and of one axis, `names` theirs."""

    gamma: npt.NDArray[np.float32]
    beta: npt.NDArray[np.float32]
    names: tuple[str, str]
    epsilon: float

    def roles(self) -> dict[str, Any]:
        """Return its tensors by role; factors and addends are not quantized."""
        constants = {role: {"id": name, **UNQUANTIZED} for role, name in zip(("weight", "bias"), self.names, strict=True)}
        return {"input": self.x.info(), **constants, **self.y.roles()}

    def arithmetic(self) -> Arithmetic:
        """Return what exact sums of values and squares are followed by; n times a sum of n squares takes 64 bits."""
        return Arithmetic("float_multiplier", "half_even", 64)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LayerNormOp(NormalizationOp):
    """Statistics over the last axis, each row its own."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SoftmaxOp(UnaryOp):
    """softmax(beta * x), or its logarithm, along `axis` of the source's layout; that of int16 may round in "fixed_point"."""

    axis: int
    beta: float
    is_log: bool
    rounding: str

    def arithmetic(self) -> Arithmetic:
        """Return what the sum of exponentials, integers from a table, is followed by; logarithms are integers, too."""
        if self.is_log:
            return Arithmetic("fixed_point", "half_up", 32)
        if self.rounding == "fixed_point":
            return Arithmetic("fixed_point", self.rounding, 32)
        return Arithmetic("float_multiplier", self.rounding, 64 if self.y.kernel_dtype == "int16" else 32)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GroupNormOp(NormalizationOp):
    """Statistics over `groups` equal parts of the channels, which are `axis`, and all pixels of an image."""

    groups: int
    axis: int
