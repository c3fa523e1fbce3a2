"""Error metrics between a reference tensor and its approximation; they judge, they choose nothing."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt


def sqnr_db(reference: npt.NDArray[np.floating], approximation: npt.NDArray[np.floating]) -> float:
    """Return the signal to quantization noise ratio, 10 * log10(sum(reference^2) / sum((reference - approximation)^2)), in dB.

    Equal tensors give inf; an all-zero reference that is missed gives -inf. Sums run in float64. ValueError if shapes differ.
    """
    signal, error = _pair(reference, approximation)
    return ratio_db(float(np.sum(signal**2)), float(np.sum(error**2)))


def ratio_db(power: float, noise: float) -> float:
    """Return 10 * log10(power / noise): inf without noise, -inf without power or of infinite noise, NaN where either is NaN."""
    if noise == 0:
        return math.inf
    if math.isinf(noise):
        return -math.inf
    return 10 * math.log10(power / noise) if power else -math.inf


def max_abs_error(reference: npt.NDArray[np.floating], approximation: npt.NDArray[np.floating]) -> float:
    """Return max |reference - approximation|, 0 for empty tensors. ValueError if shapes differ."""
    return float(np.abs(_pair(reference, approximation)[1]).max(initial=0.0))


def _pair(
    reference: npt.NDArray[np.floating], approximation: npt.NDArray[np.floating]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    if reference.shape != approximation.shape:
        raise ValueError(f"shapes differ: reference {reference.shape}, approximation {approximation.shape}")
    signal = reference.astype(np.float64)
    return signal, signal - approximation.astype(np.float64)
