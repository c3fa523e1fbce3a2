"""Scale, zero point, integer range and granularity of one quantized tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

INTEGER_RANGE: dict[str, tuple[int, int]] = {
    "int4": (-8, 7),
    "uint4": (0, 15),
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-32768, 32767),
    "uint16": (0, 65535),
    "int32": (-(2**31), 2**31 - 1),
}
"""Inclusive range [qmin; qmax] of each quantized dtype."""


@dataclass(frozen=True, slots=True)
class PerTensor:
    """One scale and zero point for the whole tensor."""


@dataclass(frozen=True, slots=True)
class PerAxis:
    """One scale and zero point for each index of `axis`."""

    axis: int


@dataclass(frozen=True, slots=True)
class PerBlock:
    """One scale and zero point for each `size` neighbours along `axis`, and each index of all other axes.

    As ONNX's DequantizeLinear has them with `block_size`; torchao's PerGroup along the last axis.
    """

    axis: int
    size: int


Granularity = PerTensor | PerAxis | PerBlock


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class QuantParams:
    """real = (q - zero_point) * scale, with q in [qmin; qmax].

    Parameters
    ----------
    dtype
        "int8", "uint8", "int16", "int32", "int4", ...
    scale
        float32, shape () per tensor, (channels,) per axis; per block of the tensor's rank, with as many along the axis as blocks.
        Finite and positive.
    zero_point
        int32, of the same shape as `scale`, each within the dtype's range.
    granularity
        PerTensor(), PerAxis(axis) or PerBlock(axis, size).
    qmin, qmax
        Inclusive integer range in use; the dtype's own by default (symmetric int8 weights use [-127; 127]).
    """

    dtype: str
    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.int32]
    granularity: Granularity = field(default_factory=PerTensor)
    qmin: int = -(2**63)
    qmax: int = 2**63 - 1

    def __post_init__(self) -> None:
        """Check every field; ValueError says which one is off and what it must be."""
        if self.dtype not in INTEGER_RANGE:
            raise ValueError(f"dtype must be one of {', '.join(INTEGER_RANGE)}, got {self.dtype!r}")
        scale = np.asarray(self.scale, np.float32)
        zero_point = np.asarray(self.zero_point, np.int32)
        if scale.shape != zero_point.shape:
            raise ValueError(f"scale {scale.shape} and zero_point {zero_point.shape} must have one shape")
        fits = {PerTensor: scale.ndim == 0, PerAxis: scale.ndim == 1, PerBlock: scale.ndim > 1}
        if not fits[type(self.granularity)]:
            raise ValueError(f"{self.granularity} does not fit a scale of shape {scale.shape}")
        if not _all_positive(scale):
            raise ValueError("every scale must be finite and positive")
        low, high = INTEGER_RANGE[self.dtype]
        if not _all_within(zero_point, low, high):
            raise ValueError(f"zero_point must lie in the range [{low}; {high}] of {self.dtype}")
        object.__setattr__(self, "scale", scale)
        object.__setattr__(self, "zero_point", zero_point)
        object.__setattr__(self, "qmin", max(self.qmin, low))
        object.__setattr__(self, "qmax", min(self.qmax, high))
        if self.qmin >= self.qmax:
            raise ValueError(f"qmin {self.qmin} must be below qmax {self.qmax}")

    def __eq__(self, other: object) -> bool:
        """Compare by value."""
        return self is other or (isinstance(other, QuantParams) and self._key == other._key)

    def __hash__(self) -> int:
        """Hash by value."""
        return hash(self._key)

    @property
    def _key(self) -> tuple[object, ...]:
        return self.dtype, self.scale.tobytes(), self.zero_point.tobytes(), self.granularity, self.qmin, self.qmax

    @property
    def is_symmetric(self) -> bool:
        """Whether every zero point is 0."""
        return not self.zero_point.any()

    @property
    def num_bits(self) -> int:
        """Width of the integers in use: 4 of [-7; 7] in int8."""
        return self.qmax.bit_length() + (self.qmin < 0)

    def to_json(self) -> dict[str, Any]:
        """Return plain values: scale and zero_point are numbers per tensor, lists per axis; axis is None per tensor.

        Of blocks they are lists of lists, and `block` is their size.
        """
        return {
            "dtype": self.dtype,
            "scale": self.scale.tolist(),
            "zero_point": self.zero_point.tolist(),
            "axis": None if isinstance(self.granularity, PerTensor) else self.granularity.axis,
            **({"block": self.granularity.size} if isinstance(self.granularity, PerBlock) else {}),
            "qmin": self.qmin,
            "qmax": self.qmax,
        }

    @staticmethod
    def per_tensor(dtype: str, scale: float, zero_point: int, *, qmin: int | None = None, qmax: int | None = None) -> QuantParams:
        """Make per-tensor parameters from plain numbers."""
        low, high = INTEGER_RANGE.get(dtype, (0, 1))
        return QuantParams(
            dtype=dtype,
            scale=np.asarray(scale, np.float32),
            zero_point=np.asarray(zero_point, np.int32),
            qmin=low if qmin is None else qmin,
            qmax=high if qmax is None else qmax,
        )


def bias_params(data: QuantParams, weight: QuantParams, axis: int) -> QuantParams:
    """Return a bias's int32 parameters: scale s_x * s_w, a float32 product, zero point 0; `axis` is that of its channels."""
    scale = np.asarray(data.scale * weight.scale, np.float32)
    granularity = PerAxis(axis) if scale.ndim else PerTensor()
    return QuantParams(dtype="int32", scale=scale, zero_point=np.zeros(scale.shape, np.int32), granularity=granularity)


def _all_positive(scale: npt.NDArray[np.float32]) -> bool:
    """Return whether every scale is finite and positive; nearly all are one number, for which Python is ten times as fast."""
    if scale.ndim == 0:
        return 0 < scale.item() < math.inf
    return bool(np.isfinite(scale).all() and (scale > 0).all())


def _all_within(zero_point: npt.NDArray[np.int32], low: int, high: int) -> bool:
    """Return whether every zero point lies in a range."""
    if zero_point.ndim == 0:
        return low <= zero_point.item() <= high
    return bool((zero_point >= low).all() and (zero_point <= high).all())
