"""AIMET's encodings: JSON in the versions 0.6.1 (an object of lists by tensor), 1.0.0 (a list of objects with a name) and 2.0.0
(such a list in the terms of ONNX's QuantizeLinear; it is read only).

An integer q stands for (q + offset) * scale, q in [0; 2^bits - 1]: the range is [offset * scale; (2^bits - 1 + offset) * scale]
(AIMET, Encoding Format Specification).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ...runtime.json_values import Malformed, a_list, a_mapping, a_real, parsed
from .checks import Ranges, a_range
from .records import Encoded, Encodings

_INTEGERS = ("int", "INT")
_MAX_BITS = 32
_SMALLEST_FLOAT32 = 2.0**-149


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
        "bw": value.bits,
        "dtype": "INT",
        "enc_type": "PER_CHANNEL" if value.per_channel else "PER_TENSOR",
        "is_sym": value.symmetric,
        "scale": list(value.scales),
        "offset": list(value.offsets),
    }


def _old(value: Encoded) -> list[dict[str, Any]]:
    return [
        {
            "bitwidth": value.bits,
            "dtype": "int",
            "is_symmetric": str(value.symmetric),
            "max": (2**value.bits - 1 + offset) * scale,
            "min": offset * scale,
            "offset": offset,
            "scale": scale,
        }
        for scale, offset in zip(value.scales, value.offsets, strict=True)
    ]


def read(text: str) -> Ranges:
    """Return the range of each activation; float encodings have none and are left out."""
    data = a_mapping("the table", parsed(text))
    group = data.get("activation_encodings")
    version = str(data.get("version", "0.4.0"))
    if version.split(".")[0] not in ("0", "1") or group is None:
        raise Malformed(f"it must hold activation_encodings of version 0 or 1, this is version {version[:20]}")
    ranges: Ranges = {}
    if isinstance(group, list):
        for place, value in enumerate(a_list("activation_encodings", group)):
            entry = a_mapping(f"activation_encodings {place}", value)
            name = str(entry.get("name", ""))
            if not name:
                raise Malformed(f"activation_encodings {place} has no name")
            if entry.get("dtype", "INT") in _INTEGERS:
                ranges[name] = _new_range(entry, name)
    else:
        for name, value in a_mapping("activation_encodings", group).items():
            (entry, *more) = [a_mapping(name, item) for item in a_list(name, value)] or [{}]
            if more:
                raise Malformed(f"{name} has {len(more) + 1} encodings; an activation has one")
            if entry.get("dtype", "int") in _INTEGERS:
                low, high = (a_real(f"{name}: {end}", entry.get(end)) for end in ("min", "max"))
                ranges[name] = a_range(low, high, name)
    return ranges


def _new_range(entry: Mapping[str, Any], name: str) -> tuple[float, float]:
    scales, offsets = (a_list(f"{name}: {key}", entry.get(key)) for key in ("scale", "offset"))
    bits = entry.get("bw")
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 32:
        raise Malformed(f"{name}: bw must be 1 to 32 bits, got {str(bits)[:20]}")
    if len(scales) != 1 or len(offsets) != 1:
        raise Malformed(f"{name} has {len(scales)} scales and {len(offsets)} offsets; an activation has one of each")
    scale, offset = a_real(f"{name}: scale", scales[0]), a_real(f"{name}: offset", offsets[0])
    low, high = offset * scale, (2**bits - 1 + offset) * scale
    return a_range(a_real(name, low), a_real(name, high), name)


def read_encodings(text: str) -> Encodings:
    """Return the parameters of each activation and weight."""
    data = a_mapping("the table", parsed(text))
    version = str(data.get("version", "0.4.0"))
    if version.split(".")[0] == "2":
        groups, read = [data.get("encodings")], _of_version_2
    else:
        groups, read = [data.get("activation_encodings"), data.get("param_encodings", {})], _of_version_1
    if version.split(".")[0] not in ("0", "1", "2") or groups[0] is None:
        expected = "activation_encodings of version 0 or 1, or encodings of version 2"
        raise Malformed(f"it must hold {expected}, this is version {version[:20]}")
    tensors: dict[str, Encoded] = {}
    left_out: dict[str, str] = {}
    for group in groups:
        for name, entries in _by_name(group):
            if name in tensors or name in left_out:
                raise Malformed(f"{name} stands twice")
            found = read(name, entries)
            if isinstance(found, str):
                left_out[name] = found
            else:
                tensors[name] = found
    return Encodings(tensors=tensors, left_out=left_out)


def _by_name(group: Any) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """Return the encodings of each tensor: a list of one, where the version does not split channels."""
    if not isinstance(group, list):
        found = a_mapping("encodings by tensor", group)
        return [(name, [a_mapping(name, item) for item in a_list(name, value)]) for name, value in found.items()]
    result: list[tuple[str, list[Mapping[str, Any]]]] = []
    for place, value in enumerate(a_list("encodings", group)):
        entry = a_mapping(f"encodings[{place}]", value)
        if not isinstance(entry.get("name"), str) or not entry["name"]:
            raise Malformed(f"encodings[{place}] has no name")
        result.append((entry["name"], [entry]))
    return result


def _of_version_1(name: str, entries: list[Mapping[str, Any]]) -> Encoded | str:
    """Read an entry of 1.0.0, whose fields hold lists, or those of 0.6.1, one for each channel."""
    if not entries:
        return "it has no encoding"
    first = entries[0]
    if first.get("dtype", "int") not in _INTEGERS:
        return f"it is {first.get('dtype')}"
    is_new = "bw" in first
    kind = str(first.get("enc_type", "PER_TENSOR"))
    if kind not in ("PER_TENSOR", "PER_CHANNEL"):
        return f"it is quantized {kind}, of which there is none here"
    scales = a_list(f"{name}: scale", first.get("scale")) if is_new else [entry.get("scale") for entry in entries]
    offsets = a_list(f"{name}: offset", first.get("offset")) if is_new else [entry.get("offset") for entry in entries]
    symmetric = str(first.get("is_sym" if is_new else "is_symmetric"))
    if symmetric not in ("True", "False"):
        raise Malformed(f"{name}: {'is_sym' if is_new else 'is_symmetric'} must be true or false, got {symmetric[:20]}")
    return _encoded(
        name,
        scales,
        offsets,
        bits=first.get("bw" if is_new else "bitwidth"),
        symmetric=symmetric == "True",
        per_channel=kind == "PER_CHANNEL" or len(scales) > 1,
    )


def _of_version_2(name: str, entries: list[Mapping[str, Any]]) -> Encoded | str:
    entry = entries[0]
    dtype = re.fullmatch(r"(u?)int(\d+)", str(entry.get("output_dtype")))
    if dtype is None:
        return f"it is {str(entry.get('output_dtype'))[:20]}"
    if entry.get("block_size"):
        return "it is quantized by blocks, of which there is none here"
    per_channel = isinstance(entry.get("y_scale"), list)
    scales = a_list(f"{name}: y_scale", entry["y_scale"]) if per_channel else [entry.get("y_scale")]
    given = entry.get("y_zero_point", [0] * len(scales) if per_channel else 0)
    points = [_integer(point, f"{name}: y_zero_point") for point in (given if isinstance(given, list) else [given])]
    bits = int(dtype[2])
    lowest = 0 if dtype[1] else -(2 ** (bits - 1))
    offsets = [lowest - point for point in points]
    return _encoded(name, scales, offsets, bits=bits, symmetric=not any(points), per_channel=per_channel)


def _encoded(name: str, scales: list[Any], offsets: list[Any], *, bits: Any, symmetric: bool, per_channel: bool) -> Encoded:
    width = _integer(bits, f"{name}: number of bits")
    if not 1 <= width <= _MAX_BITS:
        raise Malformed(f"{name}: expected 1 to {_MAX_BITS} bits, got {width}")
    if not scales or len(scales) != len(offsets) or (len(scales) > 1 and not per_channel):
        raise Malformed(f"{name} has {len(scales)} scales and {len(offsets)} offsets; they must be as many, and one for a tensor")
    read = tuple(a_real(f"{name}: scale", scale) for scale in scales)
    if min(read) < _SMALLEST_FLOAT32:
        raise Malformed(f"{name}: {min(read):g} is no scale")
    found = tuple(_integer(offset, f"{name}: offset") for offset in offsets)
    return Encoded(scales=read, offsets=found, symmetric=symmetric, per_channel=per_channel, bits=width)


def _integer(value: Any, where: str) -> int:
    number = a_real(where, value)
    if number != int(number):
        raise Malformed(f"{where} must be a whole number, got {number:g}")
    return int(number)
