"""Packing at compile time: weights in the order the kernel reads them, and everything constant folded into the bias.

NumPy only. A `Reduction` says in what order a kernel walks the inputs of one output pixel; packing follows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ......constant_block import packed_array
from ...language.lane_order import LANES, channel_order
from ..spec import Conv2dSpec

Int8Array = npt.NDArray[np.int8]
_AT_ONCE = 2**18
"""Weights that are looked at at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduction:
    """The walk over the inputs of one output pixel: nested loops over taps, then `run` contiguous elements, `step` to a step.

    Parameters
    ----------
    taps
        (extent, distance in elements) of each loop over taps, outermost first; their product counts the runs.
    run
        Contiguous elements at each tap.
    step
        Elements that one product of a lane adds up: 4 bytes, or 2 words.
    """

    taps: tuple[tuple[int, int], ...]
    run: int
    step: int = 4

    @property
    def step_starts(self) -> tuple[int, ...]:
        """First element of each step of a run. The last one overlaps its neighbour where the run is no whole steps, so as not
        to read past the run (a run shorter than a step has one, which reads `run` elements)."""
        starts = list(range(0, self.run - self.step + 1, self.step))
        if self.run % self.step:
            starts.append(max(self.run - self.step, 0))
        return tuple(starts)

    @property
    def runs(self) -> int:
        """Number of runs."""
        return int(np.prod([extent for extent, _ in self.taps], dtype=np.int64))

    @property
    def distances(self) -> tuple[int, ...]:
        """Distance of each step's first element from the window's first one, in the order of the walk."""
        starts = [0]
        for extent, distance in self.taps:
            starts = [start + tap * distance for start in starts for tap in range(extent)]
        return tuple(start + element for start in starts for element in self.step_starts)

    @property
    def steps(self) -> int:
        """Number of steps over all runs."""
        return self.runs * len(self.step_starts)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Weights:
    """The constant operands of a layer, as a caller gives them, checked.

    Parameters
    ----------
    values
        int8 (kernel_h, kernel_w, inputs of a group, out_channels).
    zero_points
        int32 (out_channels,) within [-128; 127].
    bias
        int32 (out_channels,).
    multiplier
        float32 (out_channels,).
    real_bias
        float32 (out_channels,), added after scaling where the output takes it so; then `bias` is 0.
    """

    values: Int8Array
    zero_points: npt.NDArray[np.int32]
    bias: npt.NDArray[np.int32]
    multiplier: npt.NDArray[np.float32]
    real_bias: npt.NDArray[np.float32]

    @staticmethod
    def of(
        spec: Conv2dSpec,
        *,
        weight: npt.NDArray[Any],
        weight_zero_point: Any,
        bias: npt.NDArray[Any],
        multiplier: npt.NDArray[Any],
    ) -> Weights:
        """Bring every operand to its shape and dtype; per-tensor values are repeated for each output channel."""
        channels = spec.out_channels * spec.stack
        shape = (*spec.kernel, spec.in_channels // spec.groups, channels)
        assert weight.dtype == np.int8, f"weights are int8, got {weight.dtype}"
        assert weight.shape == shape, f"weights are {shape}, got {weight.shape}"
        assert spec.in_channels % spec.groups == channels % spec.groups == 0, "channels are multiples of groups"
        zero_points = np.broadcast_to(np.asarray(weight_zero_point, np.int32), (channels,))
        assert np.array_equal(zero_points, np.clip(zero_points, -128, 127)), "weight zero points lie in [-128; 127]"
        is_real = spec.output.real_bias
        assert is_real == (bias.dtype == np.float32), f"a bias of {bias.dtype} does not fit {spec.output}"
        return Weights(
            values=weight,
            zero_points=zero_points,
            bias=np.broadcast_to(np.int32(0) if is_real else np.asarray(bias, np.int32), (channels,)),
            real_bias=np.broadcast_to(np.asarray(bias, np.float32), (channels,)),
            multiplier=np.broadcast_to(np.asarray(multiplier, np.float32), (channels,)),
        )

    @property
    def centered(self) -> npt.NDArray[np.int64]:
        """Weights less their zero points, in [-255; 255]."""
        return self.values.astype(np.int64) - self.zero_points

    @property
    def sums(self) -> npt.NDArray[np.int32]:
        """Sum of each output channel's weights less their zero points."""
        return self._sums.astype(np.int32)

    @property
    def _sums(self) -> npt.NDArray[np.int64]:
        count = self.values.size // max(self.values.shape[-1], 1)
        return self.values.sum(axis=(0, 1, 2), dtype=np.int64) - count * self.zero_points.astype(np.int64)

    def folded_bias(self, input_zero_point: int) -> npt.NDArray[np.int32]:
        """Return bias - input_zero_point * sum(w - w_zero_point): what remains of the accumulator for x = 0, wrapped to int32."""
        folded = self.bias.astype(np.int64) - input_zero_point * self._sums
        return folded.astype(np.int32)

    @property
    def most_sums(self) -> npt.NDArray[np.float64]:
        """What no |accumulator| of a channel exceeds, for activations in [0; 255] and any zero point: at most 2**31."""
        # Of int8 weights, which may be -128, in int16; block by block, for a large layer has many.
        rows = self.values.reshape(-1, self.values.shape[-1])
        magnitude = np.zeros(rows.shape[1], np.int64)
        for some in blocks_of_rows(rows):
            magnitude += np.abs(some - self.zero_points.astype(np.int16), dtype=np.int16).sum(axis=0, dtype=np.int64)
        return np.minimum(255.0 * magnitude + np.abs(self.bias.astype(np.float64)), 2.0**31)

    @property
    def most_real(self) -> float:
        """What no |accumulator * multiplier + real bias| exceeds."""
        real = self.most_sums * np.abs(self.multiplier.astype(np.float64))
        if not self.bias.any():
            real = real + np.abs(self.real_bias.astype(np.float64))
        return float(real.max(initial=0.0))

    def may_exceed_int32(self) -> bool:
        """Return whether |accumulator * multiplier| could reach 2**31, for activations in [0; 255] and any zero point."""
        return self.most_real >= 2**31 - 2**8


def blocks_of_rows(rows: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Yield a matrix some rows at a time: what is computed of so few stays in the processor's cache."""
    step = max(1, _AT_ONCE // max(rows.shape[1], 1))
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


def split_terms(weights: Weights) -> list[Int8Array]:
    """Return int8 arrays whose sum is the weights less their zero points, values in [-255; 255]: one where that fits, mostly two,
    three for 255."""
    if not weights.zero_points.any():
        return [weights.values]
    terms: list[Int8Array] = []
    centered = weights.centered
    while not terms or centered.any():
        term = np.clip(centered, -128, 127)
        terms.append(term.astype(np.int8))
        centered = centered - term
    return terms


def merge_groups(values: npt.NDArray[Any], groups: int) -> tuple[npt.NDArray[Any], int]:
    """Join neighbouring groups into one with zeros between them, until the 16 lanes of a vector are used.

    Parameters
    ----------
    values
        (kernel_h, kernel_w, inputs of a group, out_channels), symmetric: a 0 must be no weight.
    groups
        How many groups there are.

    Returns
    -------
    values
        The same type, (kernel_h, kernel_w, inputs of a joined group, out_channels).
    groups
        How many joined groups remain.
    """
    kernel_h, kernel_w, inputs, channels = values.shape
    outputs = channels // groups
    factor = 1
    while groups % (2 * factor) == 0 and factor * outputs < LANES:
        factor *= 2
    if factor == 1:
        return values, groups
    joined = np.zeros((kernel_h, kernel_w, inputs * factor, channels), values.dtype)
    for group in range(groups):
        rows = slice(group % factor * inputs, (group % factor + 1) * inputs)
        columns = slice(group * outputs, (group + 1) * outputs)
        joined[:, :, rows, columns] = values[:, :, :, columns]
    return joined, groups // factor


def panel_widths(channels: int, vectors: int) -> list[int]:
    """Return the widths, in vectors of 16 lanes, of the panels that cover `channels`: all `vectors` but a narrower last one."""
    total = -(-channels // LANES)
    return [vectors] * (total // vectors) + ([total % vectors] if total % vectors else [])


def lane_channels(channels: int, vectors: int) -> npt.NDArray[np.int64]:
    """Return the channel that each lane of each vector holds, (all vectors, 16); padding lanes hold numbers >= `channels`."""
    orders: list[npt.NDArray[np.int64]] = []
    start = 0
    for width in panel_widths(channels, vectors):
        orders.append(start + channel_order(width))
        start += width * LANES
    return np.concatenate(orders)


def pack_lanes(values: npt.NDArray[Any], groups: int, vectors: int) -> npt.NDArray[Any]:
    """Return per-channel values in the order of the lanes, one-dimensional; padding lanes hold 0."""
    per_group = values.reshape(groups, -1)
    order = lane_channels(per_group.shape[1], vectors)
    padded = np.zeros((groups, order.size), values.dtype)
    padded[:, : per_group.shape[1]] = per_group
    return np.ascontiguousarray(padded[:, order.ravel()].ravel())


def pack_weights(values: npt.NDArray[Any], reduction: Reduction, groups: int, vectors: int) -> npt.NDArray[Any]:
    """Return the weights in the order group, panel, step, vector, lane, element of the step; one-dimensional.

    `values` is (kernel_h, kernel_w, inputs of a group, out_channels); its first three axes are `reduction.runs` runs of
    `reduction.run` elements. One that two steps read counts in the first.
    """
    channels = values.shape[-1] // groups
    runs = values.reshape(reduction.runs, reduction.run, groups, channels)
    starts = reduction.step_starts
    order = lane_channels(channels, vectors)
    steps = np.zeros((reduction.runs, len(starts), reduction.step, groups, order.size), values.dtype)
    covered = 0
    for index, start in enumerate(starts):
        end = min(start + reduction.step, reduction.run)
        steps[:, index, covered - start : end - start, :, :channels] = runs[:, covered:end]
        covered = end
    by_step = steps.reshape(reduction.steps, reduction.step, groups, order.size)
    packed = packed_array(by_step.size, values.dtype)
    done = 0
    for group in range(groups):
        start = 0
        for width in panel_widths(channels, vectors):
            panel = by_step[:, :, group, order[start : start + width]]  # step, element, vector, lane
            end = done + panel.size
            packed[done:end].reshape(len(panel), width, LANES, reduction.step)[...] = panel.transpose(0, 2, 3, 1)
            start, done = start + width, end
    return packed


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ExtraSteps:
    """Steps of single vectors beyond the reduction, for the few weights that leave int8: what is left of them.

    Parameters
    ----------
    places
        (panel among those of all groups, vector within it, distance of the step's bytes from the window's first byte) of each.
    weights
        int8 (steps * 64,): lane, byte.
    """

    places: tuple[tuple[int, int, int], ...]
    weights: Int8Array

    @staticmethod
    def of(terms: list[Int8Array], reduction: Reduction, groups: int, vectors: int) -> ExtraSteps:
        """Collect the steps of every vector in which some weight of `terms` (int8 HWIO each) is not 0."""
        places: list[tuple[int, int, int]] = []
        weights = [np.zeros(0, np.int8)]
        distances = reduction.distances
        for term in terms:
            packed = pack_weights(term, reduction, groups, vectors)
            start = 0
            for panel, width in enumerate(panel_widths(term.shape[-1] // groups, vectors) * groups):
                end = start + width * reduction.steps * 4 * LANES
                steps = packed[start:end].reshape(reduction.steps, width, 4 * LANES)
                start = end
                for step, vector in zip(*steps.any(axis=2).nonzero(), strict=True):
                    places.append((panel, int(vector), distances[step]))
                    weights.append(steps[step, vector])
        return ExtraSteps(places=tuple(places), weights=np.concatenate(weights))
