"""Constants as a .tflite file has them, from the layouts that the frontend gives them. It knows no plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ...numerics import QuantParams
from .flatbuffer import Table

Array = npt.NDArray[Any]


def _depthwise(value: Array) -> Array:
    # HWOI, or HWIO of one group -> 1HWO
    return value.reshape(1, *value.shape[:2], -1)


_LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "CONV_2D": lambda value: value.transpose(3, 0, 1, 2),  # HWIO -> OHWI
    "DEPTHWISE_CONV_2D": _depthwise,
    "FULLY_CONNECTED": lambda value: value.T,
    # The convolution of a spread input has its kernel turned: HWIO -> OHWI, both ways.
    "TRANSPOSE_CONV": lambda value: value.transpose(3, 0, 1, 2)[:, ::-1, ::-1],
}


def weight_layout(op: str, value: Array) -> Array:
    """Return the weight of an op, by its name in the file, in the file's layout."""
    return np.ascontiguousarray(_LAYOUTS[op](value)) if op in _LAYOUTS else value


def quantization(params: QuantParams, axis: int = 0) -> Table:
    """Return the table of scales and zero points; `axis` is that of the file where there are several."""
    fields: dict[str, Any] = {
        "Scale": params.scale.reshape(-1).astype(np.float32),
        "ZeroPoint": params.zero_point.reshape(-1).astype(np.int64),
        "QuantizedDimension": axis if params.scale.size > 1 else 0,
    }
    return Table(kind="QuantizationParameters", fields=fields)
