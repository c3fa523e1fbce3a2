"""Where Octavo and ONNX Runtime are known to differ by more than 0.1% of the values, why, and by how much they may."""

from __future__ import annotations

from tflite_allowances import Allowance

ALLOWANCES: dict[tuple[str, str], Allowance] = {}
"""(op, kind of tensors) -> what is allowed instead of 99.9% equal and none off by more than one step."""
