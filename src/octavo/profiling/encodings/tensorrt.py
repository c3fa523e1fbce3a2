"""TensorRT's calibration cache: a line that names version and calibrator, then for each tensor "name: scale".

The scale is a float32 in hexadecimal digits, most significant first, without 0x; it is the largest magnitude / 127 (NVIDIA,
TensorRT sample sampleINT8, "Calibration file").
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping

import numpy as np

from ...runtime.json_values import Malformed

HEADER = "TRT-8601-EntropyCalibration2"
"""TensorRT takes a cache whose first line fits its version and the calibrator in use; edit it to yours."""
_HEADER = re.compile(r"TRT-\d+-\w+$")
BITS = 8
STEPS = 127


def write_cache(amplitudes: Mapping[str, float]) -> str:
    """Return the cache; names must be one line each."""
    lines = [HEADER]
    for name, value in amplitudes.items():
        if "\n" in name or "\r" in name:
            raise Malformed(f"a cache is made of lines, and the name {name!r} holds more than one")
        lines.append(f"{name}: {struct.pack('>f', np.float32(value / STEPS)).hex()}")
    return "\n".join(lines) + "\n"


def read_cache(text: str) -> dict[str, float]:
    """Return the largest magnitude of each tensor."""
    lines = text.splitlines()
    if not lines or not _HEADER.match(lines[0].strip()):
        raise Malformed(f"the first line must name TensorRT's version and calibrator ({HEADER}), got {(lines or [''])[0][:40]!r}")
    found: dict[str, float] = {}
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        name, separator, digits = line.rpartition(": ")
        if not separator or not re.fullmatch(r"[0-9a-fA-F]{1,8}", digits.strip()):
            raise Malformed(f"line {number} must be a name, a colon and 8 hexadecimal digits, got {line[:60]!r}")
        (scale,) = struct.unpack(">f", bytes.fromhex(digits.strip().zfill(8)))
        if not math.isfinite(scale * STEPS) or scale < 0:
            raise Malformed(f"line {number}: {name}: {scale:g} is no scale")
        found[name] = scale * STEPS
    return found
