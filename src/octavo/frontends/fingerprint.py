"""Fingerprint of a model: a hash over what it computes, equal for equal models wherever and by whomever they were written.

What counts: ops with their attributes, the names that connect them, shapes and dtypes as the source states them, and constants.
What does not: file location, doc strings, producer, node labels, how constants are packed into the file.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import numpy.typing as npt

from ..runtime.mapped import SHARED_BYTES, forget_pages

_PREFIX = "sha256:"


class Fingerprint:
    """Feeds values to a hash so that no two different sequences of them look alike."""

    def __init__(self, source_format: str) -> None:
        self._hash = hashlib.sha256()
        self.add(source_format)

    def add(self, value: Any) -> None:
        """Add plain values: numbers, text, bytes, None, and lists, tuples and dicts of them."""
        text = json.dumps(value, sort_keys=True, default=_plain, ensure_ascii=True).encode()
        self._hash.update(len(text).to_bytes(8, "little"))
        self._hash.update(text)

    def add_array(self, value: npt.NDArray[Any]) -> None:
        """Add an array: dtype, shape and the bytes of its values in C order."""
        data = np.ascontiguousarray(value)
        self.add([str(data.dtype), list(data.shape)])
        self._hash.update(data.data if data.dtype.kind in "iufb" else data.tobytes())
        if data.nbytes >= SHARED_BYTES:
            forget_pages()  # it is not read again for long

    def digest(self) -> str:
        """Return "sha256:" and 64 hex digits."""
        return _PREFIX + self._hash.hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": str(value.dtype)}
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"cannot hash a {type(value).__name__}")
