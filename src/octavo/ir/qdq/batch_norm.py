"""Batch normalization in inference as a product and a sum by channel, with constant factors. Reads; rewrites nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr

from ...numerics.floats.batch_norm import fold_batch_norm
from ..graph.dataflow import DataflowView, dtype_of, static_shape
from .cluster import real_of
from .values import constant_value


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Line:
    """x * factor + shift; both float32, of one element for each channel, aligned with x."""

    x: Expr
    factor: npt.NDArray[np.float32]
    shift: npt.NDArray[np.float32]


def line_of(view: DataflowView, norm: Any) -> Line | None:
    """Return a call of batch_norm as a product and a sum; None where it trains, is not float32 or has factors that vary."""
    shape = static_shape(norm.args[0])
    if norm.attrs.training or shape is None or dtype_of(norm.args[0]) != "float32":
        return None
    constants = [constant_value(view, arg) for arg in norm.args[1:]]
    if any(constant is None for constant in constants):
        return None
    gamma, beta, mean, variance = (real_of(constant).reshape(-1) for constant in constants if constant is not None)
    gamma = gamma if norm.attrs.scale else np.ones_like(gamma)
    beta = beta if norm.attrs.center else np.zeros_like(beta)
    with np.errstate(all="ignore"):
        # That of a convolution by 1, without bias.
        one = np.ones_like(gamma)
        factor, shift = fold_batch_norm(one, None, gamma, beta, mean, variance, epsilon=float(norm.attrs.epsilon), axis=0)
    if not (np.isfinite(factor).all() and np.isfinite(shift).all()):
        return None
    along = [1] * len(shape)
    along[int(norm.attrs.axis) % len(shape)] = -1
    return Line(x=norm.args[0], factor=factor.reshape(along), shift=shift.reshape(along))
