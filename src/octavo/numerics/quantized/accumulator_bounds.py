"""Proof that int32 accumulators cannot overflow: the largest magnitude that the weights and ranges allow.

It bounds, it does not compute: nothing here looks at activations. No TVM here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...errors import CompileError

INT32_MAX = 2**31 - 1


def max_accumulator(
    w: npt.NDArray[np.integer],
    w_zero_point: npt.ArrayLike,
    bias: npt.NDArray[np.int32] | None,
    x_zero_point: int,
    x_qmin: int,
    x_qmax: int,
) -> npt.NDArray[np.int64]:
    """Return the largest |sum((x - x_zero_point) * (w - w_zero_point)) + bias| of each output channel.

    Parameters
    ----------
    w
        Integer weights, output channels last: HWIO (kernel_h, kernel_w, inputs of a group, out_channels), or (in, out).
    w_zero_point
        A number or (out_channels,).
    bias
        int32 (out_channels,), or None for zeros.
    x_zero_point, x_qmin, x_qmax
        Of the activations: every x lies in [x_qmin; x_qmax]. Padding counts as x = x_zero_point, which need not lie there.

    Returns
    -------
    array
        int64 (out_channels,). No input exceeds it; where x_zero_point lies in [x_qmin; x_qmax], some input reaches it.
    """
    centered, zero_points = w.reshape(-1, w.shape[-1]), np.asarray(w_zero_point, np.int64)
    if zero_points.any():
        centered = centered.astype(np.int64) - zero_points
    low, high = min(x_qmin - x_zero_point, 0), max(x_qmax - x_zero_point, 0)
    positive = np.maximum(centered, 0).sum(axis=0, dtype=np.int64)
    negative = np.minimum(centered, 0).sum(axis=0, dtype=np.int64)
    start = np.zeros(w.shape[-1], np.int64) if bias is None else bias.astype(np.int64)
    largest = start + high * positive + low * negative
    smallest = start + low * positive + high * negative
    return np.maximum(np.abs(largest), np.abs(smallest))


def check_accumulator(
    w: npt.NDArray[np.integer],
    w_zero_point: npt.ArrayLike,
    bias: npt.NDArray[np.int32] | None,
    x_zero_point: int,
    x_qmin: int = 0,
    x_qmax: int = 255,
    *,
    where: str,
) -> None:
    """Raise CompileError if an accumulator of the layer could exceed int32; the arguments are `max_accumulator`'s.

    `where` names the layer in the message, e.g. its TensorId.
    """
    bounds = max_accumulator(w, w_zero_point, bias, x_zero_point, x_qmin, x_qmax)
    if bounds.size and int(bounds.max()) > INT32_MAX:
        channel = int(bounds.argmax())
        raise CompileError(
            f"{where}: the int32 accumulator of output channel {channel} can reach {int(bounds[channel])}, above {INT32_MAX}; "
            "keep this layer in float, or use a smaller bias or narrower weights"
        )
