"""Checks that readers of other tools' files share: nothing in a file is believed before it was looked at."""

from __future__ import annotations

import json
import math
from typing import Any, cast

Ranges = dict[str, tuple[float, float]]
"""(least, greatest) of each tensor, by its name in the source; float32 numbers."""

_LARGEST = 3.4028234663852886e38


class Malformed(Exception):
    """What is wrong with a file, in words; becomes an OctavoError that names it."""


def parsed(text: str) -> dict[str, Any]:
    """Return the object that a JSON text holds."""

    def refuse(name: str) -> float:
        raise Malformed(f"{name} is no range")

    try:
        data = json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not JSON, or cut short: {error}") from error
    return an_object(data, "the table")


def an_object(value: Any, where: str) -> dict[str, Any]:
    """Return `value` if it is an object."""
    if not isinstance(value, dict):
        raise Malformed(f"{where} must be an object, got {type(value).__name__}")
    return cast("dict[str, Any]", value)


def a_list(value: Any, where: str) -> list[Any]:
    """Return `value` if it is a list."""
    if not isinstance(value, list):
        raise Malformed(f"{where} must be a list, got {type(value).__name__}")
    return cast("list[Any]", value)


def a_number(value: Any, where: str) -> float:
    """Return `value` if it is a number that float32 holds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _LARGEST:
        raise Malformed(f"{where} must be a finite float32 number, got {str(value)[:40]}")
    return float(value)


def a_range(low: float, high: float, where: str) -> tuple[float, float]:
    """Return both ends if they are in order."""
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise Malformed(f"{where}: {low:g} to {high:g} is no range")
    return low, high
