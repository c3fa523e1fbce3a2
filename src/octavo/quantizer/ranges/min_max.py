"""The observed range itself."""

from __future__ import annotations

from dataclasses import dataclass

from .estimator import QuantScheme, TensorRange


@dataclass(frozen=True)
class MinMax:
    """Takes the observed range."""

    def range_of(self, tensor: TensorRange, _scheme: QuantScheme) -> tuple[float, float]:
        """Return [minimum; maximum]."""
        return float(tensor.minimum), float(tensor.maximum)
