"""Limits of hardware on the attributes and shapes of an op, as data. It knows no op: who checks brings the facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import TargetError, brief
from .vocabulary import from_fields

LIMITS = {
    "rank": "rank of the result",
    "batch": "first dimension of the result",
    "elements": "elements of the result",
    "kernel": "rows and columns of the window",
    "stride": "its strides, in rows and columns",
    "dilation": "its dilations",
    "padding": "its padding, on each of the four sides",
    "groups": "groups of a convolution",
    "input_channels": "channels, or features, that the op reads",
    "output_channels": "channels, or features, that it makes",
    "inputs": "how many tensors it reads, constants not counted",
}
"""What can be limited, and of what numbers it speaks; each of them must lie within the limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """What a number may be.

    Parameters
    ----------
    minimum, maximum
        Inclusive bounds; None where there is none.
    multiple_of
        What it must be a multiple of.
    one_of
        The only numbers allowed; empty: all.

    Raises
    ------
    TargetError
        A field is no whole number, or no number at all fits.
    """

    minimum: int | None = None
    maximum: int | None = None
    multiple_of: int = 1
    one_of: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the fields."""
        for field in ("minimum", "maximum"):
            bound: object = getattr(self, field)
            if bound is not None and not _is_count(bound):
                raise TargetError(f"{field}: expected a whole number of 0 or more, got {brief(bound)}")
        if not _is_count(self.multiple_of) or self.multiple_of < 1:
            raise TargetError(f"multiple_of: expected a whole number of 1 or more, got {brief(self.multiple_of)}")
        numbers: Any = self.one_of
        if not isinstance(numbers, tuple) or not all(map(_is_count, self.one_of)):
            raise TargetError(f"one_of: expected a list of whole numbers, got {brief(numbers)}")
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise TargetError(f"minimum {self.minimum} is above maximum {self.maximum}")
        if self.one_of and not any(self.allows(number) for number in self.one_of):
            raise TargetError(f"one_of: no number of {brief(self.one_of)} keeps to the other fields")

    def allows(self, number: int) -> bool:
        """Return whether a number lies within the limit."""
        low, high = self.minimum, self.maximum
        is_within = (low is None or number >= low) and (high is None or number <= high)
        return is_within and number % self.multiple_of == 0 and (not self.one_of or number in self.one_of)

    def describe(self) -> str:
        """Return the limit in words."""
        words = [
            *([f"at least {self.minimum}"] if self.minimum is not None else []),
            *([f"at most {self.maximum}"] if self.maximum is not None else []),
            *([f"a multiple of {self.multiple_of}"] if self.multiple_of > 1 else []),
            *([f"one of {', '.join(map(str, self.one_of))}"] if self.one_of else []),
        ]
        return " and ".join(words) or "any number"

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `from_json` reads back."""
        return {field: list(value) if isinstance(value := getattr(self, field), tuple) else value for field in Limit.__slots__}

    @staticmethod
    def from_json(where: str, data: Any) -> Limit:
        """Read an object, or one number, which is the only one allowed."""
        return Limit(one_of=(data,)) if _is_count(data) else from_fields(Limit, where, data)


def beyond(limits: Mapping[str, Limit], facts: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return in words the first fact of an op that a limit does not allow, None where all keep to theirs."""
    for name, limit in limits.items():
        for number in facts.get(name, ()):
            if not limit.allows(number):
                return f"{name} is {number}, expected {limit.describe()}"
    return None


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0
