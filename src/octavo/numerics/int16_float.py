"""Oracle of ops of two int16 tensors in float32, as ONNX Runtime has them: from DequantizeLinear to QuantizeLinear. No TVM here.

In fixed point, as TFLite has them, they are in `int16_elementwise`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

Int16Array = npt.NDArray[np.int16]
_REAL: Mapping[str, Callable[..., npt.NDArray[np.float32]]] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def float_pairwise_int16(
    kind: str,
    a: Int16Array,
    b: Int16Array,
    *,
    a_scale: float,
    a_zero_point: int,
    b_scale: float,
    b_zero_point: int,
    out_scale: float,
    zero_point: int,
    qmin: int = -32768,
    qmax: int = 32767,
) -> Int16Array:
    """Return the quantized a op b of int16 tensors whose shapes broadcast, every operation rounded to float32.

    Parameters
    ----------
    kind
        "add", "sub" or "mul"; "max" or "min" of the integers themselves, which share scale and zero point.
    a_scale, b_scale, out_scale
        Positive finite scales; used as float32.
    a_zero_point, b_zero_point, zero_point
        Of a, b and the result.

    Returns
    -------
    array
        clamp(rint(real / out_scale) + zero_point, qmin, qmax), half to even, of (a - a_zero_point) * a_scale op
        (b - b_zero_point) * b_scale.
    """
    if kind in ("max", "min"):
        return np.clip(np.maximum(a, b) if kind == "max" else np.minimum(a, b), qmin, qmax).astype(np.int16)

    def real(values: Int16Array, scale: float, zero: int) -> npt.NDArray[np.float32]:
        return (values.astype(np.int32) - np.int32(zero)).astype(np.float32) * np.float32(scale)

    steps = _REAL[kind](real(a, a_scale, a_zero_point), real(b, b_scale, b_zero_point)) / np.float32(out_scale)
    return np.clip(np.rint(steps).astype(np.float64) + zero_point, qmin, qmax).astype(np.int16)
