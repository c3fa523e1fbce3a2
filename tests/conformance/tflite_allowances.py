"""Where Octavo and LiteRT are known to differ by more than 0.1% of the values, why, and by how much they may."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """Least share of equal values, largest difference (steps, or relative for floats), and the reason."""

    equal: float
    largest: float
    reason: str


_FLOAT_16 = "no 16-bit kernel: a float island, where LiteRT multiplies by a factor of 15 bits"
_TABLE_16 = "no 16-bit kernel: a float island, where LiteRT interpolates in a table of 513 entries"

ALLOWANCES: dict[tuple[str, str], Allowance] = {
    **{
        (op, "int16"): Allowance(equal=0.8, largest=1, reason=_FLOAT_16)
        for op in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV")
    },
    ("LEAKY_RELU", "int16"): Allowance(equal=0.9, largest=1, reason=_FLOAT_16),
    ("AVERAGE_POOL_2D", "int16"): Allowance(
        equal=0.9, largest=1, reason="no 16-bit kernel: a float island rounds ties to even, LiteRT away from 0"
    ),
    ("LOGISTIC", "int16"): Allowance(equal=0.8, largest=1, reason=_TABLE_16),
    ("TANH", "int16"): Allowance(equal=0.5, largest=1, reason=_TABLE_16),
    ("SOFTMAX", "int16"): Allowance(equal=0.3, largest=4, reason=_TABLE_16),
    ("DIV", "uint8"): Allowance(
        equal=0.98,
        largest=255,
        reason="LiteRT shifts by more than 31 bits where the dividend is a few steps from 0, and is wrong there",
    ),
}
"""(op, kind of tensors) -> what is allowed instead of 99.9% equal and none off by more than one step."""
