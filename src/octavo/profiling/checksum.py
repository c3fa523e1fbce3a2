"""The checksum of a profile file: over what it says, not over how it is laid out. It catches accidents, it is no signature."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

KEY = "checksum"


def compact(value: Any) -> str:
    """Return JSON without white space, ASCII, keys sorted by code points: the form that the checksum is taken of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def checksum_of(data: Mapping[str, Any]) -> str:
    """Return the checksum of a profile as JSON gives it, whose own checksum is left out."""
    return checksum_of_parts([compact({key: value for key, value in data.items() if key != KEY})])


def checksum_of_parts(parts: Iterable[str]) -> str:
    """Return the checksum of the compact form of a profile, given in pieces."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode("ascii"))
    return f"sha256:{digest.hexdigest()}"
