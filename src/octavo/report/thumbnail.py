"""A small picture of what a model read, for a page that loads nothing: a PNG in a data URI. No image library is needed."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

SIZE = 44
"""The longer side, in pixels."""
_LEAST = 8
"""Planes smaller than this are no pictures."""


def thumbnail(values: npt.NDArray[Any]) -> str:
    """Return a data URI of one image, its darkest value black and its brightest white; "" for what is no image.

    An image is a batch of one with one or three channels, first or last: (1, 3, 224, 224), (1, 96, 96, 1).
    """
    if values.ndim != 4 or values.shape[0] != 1:
        return ""
    planes = values[0] if values.shape[1] in (1, 3) else values[0].transpose(2, 0, 1)
    channels, height, width = planes.shape
    if channels not in (1, 3) or min(height, width) < _LEAST or not np.isfinite(planes.astype(np.float64)).all():
        return ""
    every = max(-(-max(height, width) // SIZE), 1)
    small = np.stack([_means(plane.astype(np.float64), every) for plane in planes], axis=-1)
    low, high = float(small.min()), float(small.max())
    pixels = np.rint((small - low) / (high - low or 1.0) * 255).astype(np.uint8)
    return f"data:image/png;base64,{base64.b64encode(_png(pixels)).decode()}"


def _means(plane: npt.NDArray[np.float64], every: int) -> npt.NDArray[np.float64]:
    height, width = (size // every * every for size in plane.shape)
    return plane[:height, :width].reshape(height // every, every, width // every, every).mean(axis=(1, 3))


def _png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Encode (height, width, 1 or 3) as ISO/IEC 15948 (PNG) says: signature, IHDR, IDAT, IEND; rows unfiltered."""
    height, width, channels = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    chunks = [struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
