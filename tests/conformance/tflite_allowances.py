"""Where Octavo and LiteRT are known to differ by more than 0.1% of the values, why, and by how much they may."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """Least share of equal values, largest difference (steps, or relative for floats), and the reason."""

    equal: float
    largest: float
    reason: str


ALLOWANCES: dict[tuple[str, str], Allowance] = {
    ("DIV", "uint8"): Allowance(
        equal=0.98,
        largest=255,
        reason="LiteRT shifts by more than 31 bits where the dividend is a few steps from 0, and is wrong there",
    ),
}
"""(op, kind of tensors) -> what is allowed instead of 99.9% equal and none off by more than one step."""
