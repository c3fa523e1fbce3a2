"""Parameters as AIMET and TensorRT have them, and what theirs make of a tensor's. It reads and writes no file."""

from __future__ import annotations

import numpy as np

from ...numerics import INTEGER_RANGE, PerAxis, PerTensor, QuantParams
from ...target.vocabulary import ACTIVATION_DTYPES
from . import tensorrt
from .records import Encoded, Encodings


def encoded(params: QuantParams) -> Encoded:
    """Return parameters as AIMET's encodings have them."""
    bits = 8 * np.dtype(params.dtype).itemsize
    if params.dtype == "int8" and params.is_symmetric and params.qmin == -params.qmax:
        bits = params.num_bits
    lowest = -(2 ** (bits - 1)) if params.dtype.startswith("int") else 0
    is_strict = params.is_symmetric and params.qmin == lowest + 1
    return Encoded(
        scales=tuple(np.atleast_1d(params.scale).astype(float).tolist()),
        offsets=tuple(int(lowest - point) + is_strict for point in np.atleast_1d(params.zero_point)),
        symmetric=params.is_symmetric and lowest < 0,
        per_channel=isinstance(params.granularity, PerAxis),
        bits=bits,
    )


def encodings_of_cache(text: str) -> Encodings:
    """Return what TensorRT's calibration cache holds, as symmetric encodings of 8 bits; Malformed."""
    scales = {name: amplitude / tensorrt.STEPS for name, amplitude in tensorrt.read_cache(text).items()}
    signed = -(2 ** (tensorrt.BITS - 1))
    return Encodings(
        tensors={
            name: Encoded(scales=(scale,), offsets=(signed,), symmetric=True, per_channel=False)
            for name, scale in scales.items()
            if scale > 0
        },
        left_out={name: "its scale is 0" for name, scale in scales.items() if not scale > 0},
    )


def params_of(entry: Encoded, now: QuantParams, *, is_weight: bool) -> QuantParams | str:
    """Return what an entry makes of a tensor's parameters, or why nothing."""
    is_axis = isinstance(now.granularity, PerAxis)
    if len(entry.scales) > 1 and (not is_axis or len(entry.scales) != now.scale.size):
        has = f"{now.scale.size} along axis {now.granularity.axis}" if isinstance(now.granularity, PerAxis) else "one"
        return f"it has {len(entry.scales)} scales there, the plan's tensor has {has}"
    is_few = is_weight and 2 <= entry.bits < 8 and np.dtype(now.dtype).itemsize == 1  # in the storage of 8
    dtype = now.dtype if is_few else f"{'u' if now.dtype.startswith('u') else ''}int{entry.bits}"
    if dtype not in ACTIVATION_DTYPES:
        return f"it has {entry.bits} bits, expected 8 or 16"
    lowest, highest = (-(2 ** (entry.bits - 1)), 2 ** (entry.bits - 1) - 1) if is_few else INTEGER_RANGE[dtype]
    # AIMET's strict symmetric encodings count from -127: the zero point is 0, and the least integer is left out.
    is_strict = entry.symmetric and lowest < 0 and set(entry.offsets) == {lowest + 1}
    points = np.array([0 if is_strict else lowest - offset for offset in entry.offsets], np.int64)
    if points.min() < lowest or points.max() > highest:
        return f"its offset {entry.offsets[0]} is a zero point beyond [{lowest}; {highest}] of {dtype}"
    is_narrow = not points.any() and (is_strict or now.qmin == -now.qmax)
    shape = now.scale.shape if len(entry.scales) == now.scale.size and (entry.per_channel or not is_axis) else ()
    return QuantParams(
        dtype=dtype,
        scale=np.array(entry.scales, np.float32).reshape(shape),
        zero_point=points.astype(np.int32).reshape(shape),
        granularity=now.granularity if shape else PerTensor(),
        qmin=lowest + 1 if is_weight and is_narrow else lowest,
        qmax=highest,
    )
