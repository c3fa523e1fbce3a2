"""Accumulators that sums may leave: what becomes of a sum that does. Which sums do is shown elsewhere. No TVM here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Overflow = Literal["proven", "saturates", "wraps"]
"""What is known of sums that leave their accumulator: that there are none, or what becomes of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NarrowAccumulator:
    """A register of so many bits, in two's complement.

    "wraps" is modulo 2**bits, after each addition or after all alike. "saturates" is once: products and bias add up in a wider
    register, and the sum moves to the nearest number of the narrow one. (An accumulator that saturates after each addition gives
    what depends on the order of the additions; nothing in a graph says that.)
    """

    bits: int
    overflow: Literal["saturates", "wraps"]

    @property
    def bounds(self) -> tuple[int, int]:
        """Its least and its greatest number."""
        return -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1

    def hold(self, sums: npt.NDArray[np.signedinteger]) -> npt.NDArray[np.int64]:
        """Return what it holds of exact sums."""
        exact, rest = sums.astype(np.int64), np.int64(64 - self.bits)
        return np.clip(exact, *self.bounds) if self.overflow == "saturates" else (exact << rest) >> rest
