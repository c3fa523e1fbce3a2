"""The mean of the ranges that the samples had."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .estimator import QuantScheme, TensorRange


@dataclass(frozen=True)
class Mean:
    """Takes the means of the least and of the greatest values of the buckets of samples.

    It clips what single samples alone reach, their outliers among it: the more, the fewer buckets reach as far. A profile keeps
    ranges by bucket (`octavo.profile`), so up to 32 samples weigh about alike, and of many more a bucket's range is that of its
    widest sample. Without ranges by bucket it takes the observed range.
    """

    def range_of(self, tensor: TensorRange, _scheme: QuantScheme) -> tuple[float, float]:
        """Return the mean range, within the observed one."""
        low, high = float(tensor.minimum), float(tensor.maximum)
        seen = np.isfinite(tensor.bucket_minimum)
        if not seen.any():
            return low, high
        ends = (float(np.mean(each[seen].astype(np.float64))) for each in (tensor.bucket_minimum, tensor.bucket_maximum))
        mean_low, mean_high = ends
        return max(low, mean_low), min(high, mean_high)
