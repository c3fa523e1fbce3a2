"""Sums over many pairs of arrays from which error metrics follow, so that no array has to be kept. NumPy only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .metrics import ratio_db


@dataclass(slots=True)
class ErrorSums:
    """What pairs of a reference and its approximation add up to, in float64.

    Parameters
    ----------
    signal, other
        Sums of squares of the reference, and of the approximation.
    noise, product
        Sums of the squares of their difference, and of their products.
    largest
        The largest magnitude of a difference.
    low, high
        Ends of the reference.
    count
        Values.
    """

    signal: float = 0.0
    other: float = 0.0
    noise: float = 0.0
    product: float = 0.0
    largest: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    count: int = 0

    def add(self, reference: npt.NDArray[Any], approximation: npt.NDArray[Any]) -> None:
        """Add a pair. ValueError if shapes differ."""
        if reference.shape != approximation.shape:
            raise ValueError(f"shapes differ: reference {reference.shape}, approximation {approximation.shape}")
        real, found = reference.astype(np.float64).ravel(), approximation.astype(np.float64).ravel()
        error = real - found
        self.signal += float(real @ real)
        self.other += float(found @ found)
        self.noise += float(error @ error)
        self.product += float(real @ found)
        self.largest = float(np.fmax(self.largest, np.abs(error).max(initial=0.0)))
        self.low = min(self.low, float(real.min(initial=math.inf)))
        self.high = max(self.high, float(real.max(initial=-math.inf)))
        self.count += real.size

    def add_sums(self, others: ErrorSums) -> None:
        """Add what other pairs add up to."""
        self.signal += others.signal
        self.other += others.other
        self.noise += others.noise
        self.product += others.product
        self.largest = max(self.largest, others.largest)
        self.low, self.high = min(self.low, others.low), max(self.high, others.high)
        self.count += others.count

    @property
    def sqnr_db(self) -> float:
        """Signal to noise ratio in dB, as `metrics.sqnr_db` defines it."""
        return ratio_db(self.signal, self.noise)

    @property
    def cosine(self) -> float:
        """Cosine of the angle between both, in [-1; 1]; 1 where both are all zeros, 0 where one is."""
        if not self.signal or not self.other:
            return float(self.signal == self.other)
        return self.product / math.sqrt(self.signal * self.other)

    @property
    def psnr_db(self) -> float:
        """Peak signal to noise ratio in dB, the peak being the width of the reference's range."""
        return ratio_db((self.high - self.low) ** 2 * self.count, self.noise)
