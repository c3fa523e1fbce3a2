"""What running a quantized model tells of its parameters, as data. It runs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...ir.identity import TensorId
from ...numerics.arrays import equal_arrays


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Corrections:
    """Parameters in place of those that follow from the model's constants and ranges alone.

    Parameters
    ----------
    bias_shifts
        Real numbers that are added to the bias of a layer, float32 (output channels,), by the layer's output.
    weight_values
        Integers of weights, of their parameters' shapes, by name.
    weight_scales
        Scales of weights in place of those that their values ask for, by name; a plan's parameters have them.
    """

    bias_shifts: Mapping[TensorId, npt.NDArray[np.float32]] = field(default_factory=dict[TensorId, "npt.NDArray[np.float32]"])
    weight_values: Mapping[TensorId, npt.NDArray[Any]] = field(default_factory=dict[TensorId, "npt.NDArray[Any]"])
    weight_scales: Mapping[TensorId, npt.NDArray[np.float32]] = field(default_factory=dict[TensorId, "npt.NDArray[np.float32]"])

    @property
    def summary(self) -> str:
        """Say how many there are; "" of none."""
        counts = {"biases corrected": len(self.bias_shifts), "weights rounded by what their layers read": len(self.weight_values)}
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.bias_shifts or self.weight_values)

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same numbers."""
        if not isinstance(other, Corrections):
            return NotImplemented
        return equal_arrays(self.bias_shifts, other.bias_shifts) and equal_arrays(self.weight_values, other.weight_values)

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # it holds arrays
