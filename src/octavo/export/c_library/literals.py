"""Literals and types of C: how names, numbers and dtypes stand in its text."""

from __future__ import annotations

_C_TYPES = {"float32": "float", "float64": "double", "bool": "uint8_t", "float16": "uint16_t", "bfloat16": "uint16_t"}


def c_type(dtype: str) -> str:
    """Return the C type of one element."""
    return _C_TYPES.get(dtype, f"{dtype}_t")


def c_string(text: str) -> str:
    """Return a C string literal; other bytes than plain ASCII are octal, "?" too, which could begin a trigraph."""
    plain = set(range(32, 127)) - set(b'"\\?')
    return '"' + "".join(chr(byte) if byte in plain else f"\\{byte:03o}" for byte in text.encode()) + '"'


def c_float(value: float) -> str:
    """Return a C literal of type float."""
    digits = f"{value:.9g}"
    return f"{digits if set(digits) & set('.e') else digits + '.0'}f"
