"""Says of a wrong result where it first differs and what kind of fault that looks like. It computes no result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...numerics.arrays import Array
from .case import is_tie


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """What is wrong with one output.

    Parameters
    ----------
    count, size
        Values that differ, of how many.
    index, got, expected
        The first of them, in the order of memory.
    accumulator, real
        Its sum, and its value before rounding, in the result's integers; None where they are not known.
    fault
        What it looks like, in words.
    """

    count: int
    size: int
    index: tuple[int, ...]
    got: int
    expected: int
    accumulator: int | None
    real: float | None
    fault: str

    def describe(self) -> str:
        """Return one line."""
        known = [
            *([f"accumulator {self.accumulator}"] if self.accumulator is not None else []),
            *([f"{self.real:.10g} before rounding and clamp"] if self.real is not None else []),
        ]
        about = f" ({', '.join(known)})" if known else ""
        first = f"first at {list(self.index)}: got {self.got}, expected {self.expected}{about}"
        return f"{self.fault}; {self.count} of {self.size} values differ, {first}"


def difference(
    got: Array, expected: Array, details: Mapping[str, Array], info: Mapping[str, Any], channel_axis: int | None
) -> Difference | None:
    """Return how integers differ from those expected, which have the same shape; None where all are equal.

    Parameters
    ----------
    details
        Of the case: "accumulator", "real", "touches_padding", as far as it has them.
    info
        The quantize_info of the op.
    """
    wrong = np.asarray(got != expected)
    if not wrong.any():
        return None
    index = tuple(int(at) for at in np.argwhere(wrong)[0])
    accumulator, real = details.get("accumulator"), details.get("real")
    return Difference(
        count=int(wrong.sum()),
        size=int(wrong.size),
        index=index,
        got=int(got[index]),
        expected=int(expected[index]),
        accumulator=None if accumulator is None else int(accumulator[index]),
        real=None if real is None else float(real[index]),
        fault=_fault(got.astype(np.int64), expected.astype(np.int64), wrong, details, info, channel_axis),
    )


def _fault(
    got: Array, expected: Array, wrong: Array, details: Mapping[str, Array], info: Mapping[str, Any], channel_axis: int | None
) -> str:
    """Return the narrowest description that all wrong values share."""
    output = info.get("output", {})
    off = np.abs(got - expected)[wrong]
    real, padding = details.get("real"), details.get("touches_padding")
    if real is not None:
        if (off == 1).all() and is_tie(real)[wrong].all():
            return f"off by one at ties ({_signs(real, wrong, output)}): another rounding of ties"
        low, high = output["qmin"], output["qmax"]
        if ((real < low - 0.5) | (real > high + 0.5))[wrong].all():
            return _saturation(got, expected, real, wrong, str(output["dtype"]))
    if padding is not None and np.broadcast_to(padding, wrong.shape)[wrong].all():
        return "only where the window touches the padding: the value of padding, or where it lies"
    if (off == 1).all():
        return "off by one, not at ties alone: precision of the multiplier or of the sum, or the order of roundings"
    found = _of_sums(wrong, details, info.get("accumulator_bits")) or _of_channels(
        got - expected, wrong, expected, output, channel_axis
    )
    return found or "values differ throughout: sums, scales or the order of data"


def _of_sums(wrong: Array, details: Mapping[str, Array], own: int | None) -> str:
    """Return the width of accumulator that explains which values are wrong, "" where none does."""
    accumulator = details.get("accumulator")
    if accumulator is None:
        return ""
    magnitude = np.abs(accumulator.astype(np.int64))
    for bits in dict.fromkeys((own or 32, 32, 31, 24, 20, 16)):
        beyond = magnitude >= 2 ** (bits - 1)
        if beyond[wrong].all() and wrong[beyond].mean() > 0.5 and not beyond.all():
            return f"only where sums leave {bits} bits: the width of the accumulator"
    return ""


def _of_channels(off: Array, wrong: Array, expected: Array, output: Mapping[str, Any], channel_axis: int | None) -> str:
    """Return what channels, or all values, have in common, "" where they have nothing."""
    clamped = (expected == output["qmin"]) | (expected == output["qmax"]) if output.get("scale") else np.zeros_like(wrong)
    free = off[~clamped]
    if free.size and free.min() == free.max():
        return f"every value is off by {int(free[0])}: a zero point"
    if channel_axis is None:
        return ""
    channels = _wrong_channels(wrong, channel_axis)
    if channels:
        return f"only in channels {', '.join(map(str, channels))}: the scale, bias or weights of a channel"
    rows, kept = (np.moveaxis(each, channel_axis, 0).reshape(wrong.shape[channel_axis], -1) for each in (off, ~clamped))
    spans = [np.ptp(row[keep]) for row, keep in zip(rows, kept, strict=True) if keep.sum() > 1]
    if spans and max(spans) <= 1:
        return "each channel is off by a number of its own: the bias, or what is summed with the zero point"
    return ""


def _signs(real: Array, wrong: Array, output: Mapping[str, Any]) -> str:
    above = (real > (output["zero_point"] or 0))[wrong]
    return "of both signs" if above.any() and not above.all() else "positive ones" if above.all() else "negative ones"


def _saturation(got: Array, expected: Array, real: Array, wrong: Array, dtype: str) -> str:
    """Return what became of values beyond the bounds."""
    wrapped = (np.rint(real).astype(np.int64) - got) % 2 ** np.iinfo(dtype).bits == 0
    beyond = ((got < expected) & (real < expected)) | ((got > expected) & (real > expected))
    if beyond[wrong].all():
        return "only beyond the bounds of the result: the clamp is missing, or has other bounds"
    if wrapped[wrong].mean() > 0.5:  # a float32 multiplier is not exact
        return "only beyond the bounds of the result: it wraps instead of saturating"
    return "only beyond the bounds of the result: saturation"


def _wrong_channels(wrong: Array, channel_axis: int) -> list[int]:
    """Return the channels with wrong values where as many have none at all."""
    others = tuple(axis for axis in range(wrong.ndim) if axis != channel_axis)
    found = wrong.any(axis=others)
    return [] if 2 * found.sum() > found.size else [int(channel) for channel in np.flatnonzero(found)]
