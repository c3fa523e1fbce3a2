"""Composite ops: products with 4-bit weights in blocks. Plain facts of what one composite computes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...numerics import QuantParams
from ...numerics.quantized.block_matmul import BlockActivations
from .base import UNQUANTIZED, Arithmetic, CompositeOp, FloatResult
from .weighted import DynamicTensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatTensor:
    """A float32 activation that is read as it is."""

    name: str
    shape: tuple[int, ...]

    def info(self) -> dict[str, Any]:
        """Return its entry of a quantize_info."""
        return {"id": self.name, **UNQUANTIZED}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BlockWeight:
    """uint8 `values` [in, out] in [0; 15]; float32 `scale` and int32 `zero_point` [in / block, out], in that domain.

    `params` are the source's, of [in, out], for the record.
    """

    name: str
    values: npt.NDArray[np.uint8]
    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.int32]
    params: QuantParams

    def info(self) -> dict[str, Any]:
        """Return its entry of a quantize_info."""
        return {"id": self.name, **self.params.to_json()}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BlockMatmulOp(CompositeOp):
    """matmul with 4-bit weights in blocks + bias + clamp; x is [..., in], float32, or quantized per row when run.

    `activations` says as what blocks of a float32 x are read (`numerics.quantized.block_matmul`).
    """

    x: FloatTensor | DynamicTensor
    weight: BlockWeight
    y: FloatResult
    activations: BlockActivations = "float32"

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference."""
        return math.prod(self.y.shape) * self.weight.values.shape[0]

    def roles(self) -> dict[str, Any]:
        """Return its tensors by role."""
        return {"input": self.x.info(), "weight": self.weight.info(), **self.y.roles()}

    def arithmetic(self) -> Arithmetic:
        """Return how sums become the result: those of blocks are scaled in float32, and added."""
        return Arithmetic("float_multiplier", "none", 32)
