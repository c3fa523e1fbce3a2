"""What running a quantized model tells of its parameters, as data. It runs nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...ir.identity import TensorId
from .nearness import Nearness


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
    nearness
        How near the model is to the float one with them, on the samples that it was run on. It says what they bring and is none
        of them: files don't keep it.
    """

    bias_shifts: Mapping[TensorId, npt.NDArray[np.float32]] = field(default_factory=dict[TensorId, "npt.NDArray[np.float32]"])
    weight_values: Mapping[TensorId, npt.NDArray[Any]] = field(default_factory=dict[TensorId, "npt.NDArray[Any]"])
    weight_scales: Mapping[TensorId, npt.NDArray[np.float32]] = field(default_factory=dict[TensorId, "npt.NDArray[np.float32]"])
    nearness: Nearness = field(default_factory=Nearness)

    @property
    def sqnr_db(self) -> float:
        """Signal to noise ratio of the worst output, in dB; inf where that was not measured."""
        return self.nearness.sqnr_db

    @property
    def agreement(self) -> float | None:
        """Share of the samples of which the model names the float model's class, in [0; 1]; None where that was not measured."""
        return self.nearness.agreement

    @property
    def summary(self) -> str:
        """Say how many there are, and how near the model is to the float one with them; "" of none."""
        counts = {"biases corrected": len(self.bias_shifts), "weights rounded by what their layers read": len(self.weight_values)}
        said = [f"{count} {what}" for what, count in counts.items() if count]
        if math.isfinite(self.sqnr_db):
            said.append(f"outputs {self.sqnr_db:.1f} dB above their error on the profile's samples")
        return ", ".join(said)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.bias_shifts or self.weight_values)

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same numbers."""
        if not isinstance(other, Corrections):
            return NotImplemented
        pairs = ((self.bias_shifts, other.bias_shifts), (self.weight_values, other.weight_values))
        return all(
            mine.keys() == others.keys() and all(np.array_equal(mine[key], others[key]) for key in mine) for mine, others in pairs
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # it holds arrays
