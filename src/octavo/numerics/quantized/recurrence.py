"""What a recurrence by int8 weights makes of a hidden state at each step: integers of 16 bits, exact sums, real products.

The scale is that of the state's largest magnitude, found when the model runs; it leaves room for every sum in int32. No TVM here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

STATE_MAX = 2**15 - 1
"""The largest integer of a state, unless a column of weights asks for less."""
MIN_SCALE = float(np.finfo(np.float32).tiny)
_F = np.float32


def state_limit(weights: npt.NDArray[np.int8]) -> int:
    """Return the largest integer that a state may have beside weights (width, columns), so that every sum fits int32."""
    largest = int(np.abs(weights.astype(np.int64)).sum(axis=0).max(initial=1))
    return max(1, min(STATE_MAX, (2**31 - 1) // max(largest, 1)))


def recurrent_products(
    state: npt.NDArray[np.float32], weights: npt.NDArray[np.int8], scale: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Return products of float32 states (rows, width) with weights (width, columns) whose columns have scales (columns,).

    Each row is rounded to integers in [-limit; limit], half to even. One that holds NaN or infinity gives NaN.
    """
    limit = _F(state_limit(weights))
    unit = np.maximum(np.abs(state).max(axis=1, keepdims=True) / limit, _F(MIN_SCALE))
    unit[~np.isfinite(unit)] = np.nan
    with np.errstate(invalid="ignore"):
        steps = np.rint(np.where(np.isnan(unit), -limit, state * (_F(1) / unit))).clip(-limit, limit)
    sums = steps.astype(np.int64) @ weights.astype(np.int64)
    return sums.astype(np.int32).astype(np.float32) * unit * scale
