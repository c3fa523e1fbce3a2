"""AIMET's encodings: JSON in the versions 0.6.1 (an object of lists by tensor) and 1.0.0 (a list of objects with a name).

An integer q stands for (q + offset) * scale, q in [0; 2^bits - 1]: the range is [offset * scale; (2^bits - 1 + offset) * scale]
(AIMET, Encoding Format Specification).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .checks import Malformed, Ranges, a_list, a_number, a_range, an_object, parsed

BITS = 8
_INTEGERS = ("int", "INT")


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """Parameters of one tensor, one number for each channel: `offset` is AIMET's, -zero_point for unsigned integers."""

    scales: tuple[float, ...]
    offsets: tuple[int, ...]
    symmetric: bool
    per_channel: bool


def write(activations: Mapping[str, Encoded], weights: Mapping[str, Encoded], version: str) -> str:
    """Return the file, of version "0.6.1" or "1.0.0"."""
    groups = {"activation_encodings": activations, "param_encodings": weights}
    if version == "1.0.0":
        parts: dict[str, Any] = {key: [_new(name, value) for name, value in group.items()] for key, group in groups.items()}
    else:
        parts = {key: {name: _old(value) for name, value in group.items()} for key, group in groups.items()}
    return json.dumps({"version": version, **parts}, indent=1) + "\n"


def _new(name: str, value: Encoded) -> dict[str, Any]:
    return {
        "name": name,
        "bw": BITS,
        "dtype": "INT",
        "enc_type": "PER_CHANNEL" if value.per_channel else "PER_TENSOR",
        "is_sym": value.symmetric,
        "scale": list(value.scales),
        "offset": list(value.offsets),
    }


def _old(value: Encoded) -> list[dict[str, Any]]:
    return [
        {
            "bitwidth": BITS,
            "dtype": "int",
            "is_symmetric": str(value.symmetric),
            "max": (2**BITS - 1 + offset) * scale,
            "min": offset * scale,
            "offset": offset,
            "scale": scale,
        }
        for scale, offset in zip(value.scales, value.offsets, strict=True)
    ]


def read(text: str) -> Ranges:
    """Return the range of each activation; float encodings have none and are left out."""
    data = parsed(text)
    group = data.get("activation_encodings")
    version = str(data.get("version", "0.4.0"))
    if version.split(".")[0] not in ("0", "1") or group is None:
        raise Malformed(f"it must hold activation_encodings of version 0 or 1, this is version {version[:20]}")
    ranges: Ranges = {}
    if isinstance(group, list):
        for place, value in enumerate(a_list(group, "activation_encodings")):
            entry = an_object(value, f"activation_encodings {place}")
            name = str(entry.get("name", ""))
            if not name:
                raise Malformed(f"activation_encodings {place} has no name")
            if entry.get("dtype", "INT") in _INTEGERS:
                ranges[name] = _new_range(entry, name)
    else:
        for name, value in an_object(group, "activation_encodings").items():
            (entry, *more) = [an_object(item, name) for item in a_list(value, name)] or [{}]
            if more:
                raise Malformed(f"{name} has {len(more) + 1} encodings; an activation has one")
            if entry.get("dtype", "int") in _INTEGERS:
                low, high = (a_number(entry.get(end), f"{name}: {end}") for end in ("min", "max"))
                ranges[name] = a_range(low, high, name)
    return ranges


def _new_range(entry: Mapping[str, Any], name: str) -> tuple[float, float]:
    scales, offsets = (a_list(entry.get(key), f"{name}: {key}") for key in ("scale", "offset"))
    bits = entry.get("bw")
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 32:
        raise Malformed(f"{name}: bw must be 1 to 32 bits, got {str(bits)[:20]}")
    if len(scales) != 1 or len(offsets) != 1:
        raise Malformed(f"{name} has {len(scales)} scales and {len(offsets)} offsets; an activation has one of each")
    scale, offset = a_number(scales[0], f"{name}: scale"), a_number(offsets[0], f"{name}: offset")
    low, high = offset * scale, (2**bits - 1 + offset) * scale
    return a_range(a_number(low, name), a_number(high, name), name)
