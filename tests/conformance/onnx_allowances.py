"""Where Octavo and ONNX Runtime are known to differ by more than 0.1% of the values, why, and by how much they may."""

from __future__ import annotations

from tflite_allowances import Allowance

_TIES = (
    "equal parameters make ties: ONNX Runtime sums dequantized float32 values, whose rounding errors then decide; Octavo's sums "
    "of integers are exact"
)

ALLOWANCES: dict[tuple[str, str], Allowance] = {
    **{("Resize", kind): Allowance(equal=0.98, largest=1, reason=_TIES) for kind in ("u8", "s8")},
}
"""(op, kind of tensors) -> what is allowed instead of 99.9% equal and none off by more than one step."""
