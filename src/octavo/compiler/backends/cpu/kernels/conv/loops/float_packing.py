"""Packing of float weights at compile time: panels of vectors in the order of the steps. NumPy only."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ......constant_block import packed_array
from ...language.lane_order import LANES
from .packing import panel_widths

FloatArray = npt.NDArray[np.float32]


def pack_weights(weight: FloatArray, groups: int, vectors: int) -> FloatArray:
    """Return weights HWIO as [groups][panels][steps][vectors of the panel][16], the padding lanes 0; one-dimensional."""
    return pack_panels(weight.reshape(-1, groups, weight.shape[3] // groups), vectors).astype(np.float32, copy=False)


def pack_panels(steps: npt.NDArray[Any], vectors: int) -> npt.NDArray[Any]:
    """Return [steps, groups, outputs] as [groups][panels][steps][vectors of the panel][16], the padding lanes 0."""
    _, groups, outputs = steps.shape
    pieces: list[npt.NDArray[Any]] = []
    for group in range(groups):
        start = 0
        for width in panel_widths(outputs, vectors):
            panel = steps[:, group, start : start + width * LANES]
            pieces.append(np.pad(panel, ((0, 0), (0, width * LANES - panel.shape[1]))).ravel())
            start += width * LANES
    return np.concatenate(pieces, out=packed_array(sum(piece.size for piece in pieces), steps.dtype))


def pack_bias(bias: FloatArray, groups: int) -> FloatArray:
    """Return the bias with each group's channels filled up with 0 to whole vectors."""
    grouped = bias.reshape(groups, -1)
    missing = -grouped.shape[1] % LANES
    return np.pad(grouped, ((0, 0), (0, missing))).astype(np.float32).ravel()
