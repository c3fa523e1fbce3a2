"""Oracle of the fused multiply-add in float32. No TVM here."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def fused_multiply_add(x: npt.ArrayLike, y: npt.ArrayLike, z: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Return float32 x * y + z, rounded once.

    The product of two float32 numbers is exact in float64. The sum is rounded to odd there, with the error that Knuth's two-sum
    gives, and an odd result rounds on to float32 as the exact sum would (Boldo and Melquiond, "When double rounding is odd").
    """
    product = np.asarray(x, np.float32).astype(np.float64) * np.asarray(y, np.float32).astype(np.float64)
    addend = np.asarray(z, np.float32).astype(np.float64)
    total = np.asarray(product + addend)
    addend_seen = total - product
    error = (product - (total - addend_seen)) + (addend - addend_seen)
    is_even = (total.view(np.int64) & 1) == 0
    odd = np.where((error != 0) & is_even, np.nextafter(total, np.where(error > 0, np.inf, -np.inf)), total)
    return odd.astype(np.float32)
