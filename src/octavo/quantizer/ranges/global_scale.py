"""One range for all tensors, whatever their values: that of Relay's `qconfig(calibrate_mode="global_scale")`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...numerics.statistics.ranges import SMALLEST_RANGE
from .estimator import QuantScheme, TensorRange

_LARGEST = 2.0**127
"""Both ends and the width of the range stay finite in float32."""


@dataclass(frozen=True)
class GlobalScale:
    """Gives every activation the range [-half_width; half_width].

    The default is Relay's. It looks at no value: for comparison with Relay, and for hardware of one scale.
    """

    half_width: float = 8.0

    def __post_init__(self) -> None:
        """Check the width."""
        half_width: Any = self.half_width  # callers may not check types
        if not isinstance(half_width, (int, float)) or not SMALLEST_RANGE <= half_width < _LARGEST:
            raise ValueError(f"half_width must lie in [2^-100; 2^127), got {half_width!r}")

    def range_of(self, _tensor: TensorRange, _scheme: QuantScheme) -> tuple[float, float]:
        """Return [-half_width; half_width]."""
        return -float(self.half_width), float(self.half_width)
