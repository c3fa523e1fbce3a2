"""Residual streams that no factors can even out, as norms read them: which of them eight bits are too few for. Runs nothing.

A few channels of a transformer's stream are often tens of times wider than the others. One scale for all leaves the others a few
steps, and a norm, which brings all channels to one scale, reads just these. No product reads such a tensor: it may stay float.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from ...ir.graph.dataflow import DataflowView, dtype_of, op_name, static_shape

NORMS = ("nn.layer_norm", "nn.rms_norm")
_READERS = (*NORMS, "add", "subtract", "reshape", "mean", "nn.dropout")
_STEPS = 255
MIN_STEPS = 32
"""Fewer for the median channel, of the steps that the whole range has, are too few: 30 dB, and layer upon layer adds to that."""


def find_streams(view: DataflowView) -> list[Var]:
    """Return the variables that a norm over the last axis reads, and no product."""
    found: list[Var] = []
    for binding in view.bindings:
        shape, readers = static_shape(binding.var), view.users(binding.var)
        names = [op_name(view.definition(reader)) for reader in readers]
        is_stream = any(name in NORMS for name in names) and all(name in _READERS for name in names)
        has_channels = shape is not None and len(shape) > 1 and dtype_of(binding.var) == "float32"
        if is_stream and has_channels and not view.is_returned(binding.var):
            found.append(binding.var)
    return found


class ChannelWidths:
    """How wide the channels of a tensor are, along its last axis."""

    def __init__(self) -> None:
        self._low: npt.NDArray[Any] = np.array(np.inf)
        self._high: npt.NDArray[Any] = np.array(-np.inf)

    def add(self, value: npt.NDArray[Any]) -> None:
        """Take one sample's values."""
        others = tuple(range(value.ndim - 1))
        self._low, self._high = np.minimum(self._low, value.min(axis=others)), np.maximum(self._high, value.max(axis=others))

    def steps(self) -> float:
        """Return how many steps of 8 bits the median channel has where one scale is for all."""
        width = float(max(self._high.max(), 0.0)) - float(min(self._low.min(), 0.0))
        return _STEPS * float(np.median(self._high - self._low)) / max(width, 1e-30)
