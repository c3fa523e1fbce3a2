"""Factors that even out the channels of tensors: candidates in closed form, and what each costs in rounding. It runs nothing.

A site is what shares factors: tensors of one chain or one residual stream, with all that makes and reads them. Per-tensor
parameters give each channel the step of the widest; dividing channels by factors brings them nearer to each other, and what reads
them multiplies its weights by the same factors, which makes those more uneven.

* r^alpha, of the ranges r of the channels (Nagel et al., Data-Free Quantization Through Weight Equalization and Bias Correction,
  2019, with the activations' ranges in place of the weights');
* r^alpha / w^(1 - alpha), of the largest weights w that read a channel, too (Xiao et al., SmoothQuant, 2023, equation 4).

The one with the least noise in what the readers compute is taken, "as it is" among them. Or the second, of a strength that is
given, where neither convolutions nor functions take part: of a scale for each row, and of products of two activations, that
estimate knows nothing. Groups that meet in such a product, channels of queries and keys, are then divided by (r / r')^alpha, r'
the range of the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from ...ir.channels import ChannelGroups, Reader, Site, weight_groups
from ...ir.graph import Model
from ...ir.graph.constants import Constants
from ...ir.graph.dataflow import DataflowView, call_to
from ...ir.graph.weighted import CONVOLUTIONS

Floats = npt.NDArray[np.float64]

ALPHAS = (0.25, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1.0)
_SLACK = 1.5
_LEASTS = (0.05, 0.02, 0.01, 0.005)
"""What a channel's range is taken for, of what was seen, and at least as a share of the widest: samples that were not seen may go
beyond, and saturate. Per-tensor parameters leave them the range of the widest channel. Functions like SiLU give all channels the
same negative values, which small factors would make the range's lower end: how small is tried."""
_SMALLEST = 1e-2
"""The least that ranges and weights of a channel are taken for, as shares: what channels without either would be divided by."""
_GAIN = 0.7
"""A site is scaled where that leaves less than this share of its noise: estimates of less are within their error."""
_DEAD = 1e-6
"""An output with less than this share of the power of the strongest counts as having so much."""
_STEPS = 255


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ChannelValues:
    """What samples say of a tensor, by group: float64 (groups,), of groups that it doesn't have 0; bool `is_there`.

    A model has many groups, and a tensor few of them: `groups` are those that are held, in order.
    """

    groups: npt.NDArray[np.int64]
    is_there: npt.NDArray[np.bool_]
    minimum: Floats
    maximum: Floats
    variance: Floats

    @classmethod
    def of(cls, groups: npt.NDArray[np.int64], low: Floats, high: Floats, variance: Floats) -> ChannelValues:
        """Return what is said of groups whose least and greatest values these are; infinite where there are none."""
        is_there = np.isfinite(low)
        ends = np.where(is_there, low, 0.0), np.where(is_there, high, 0.0)
        return cls(groups=groups, is_there=is_there, minimum=ends[0], maximum=ends[1], variance=variance)

    def only(self, groups: npt.NDArray[np.int64]) -> ChannelValues:
        """Return what is said of some groups."""
        places = np.searchsorted(self.groups, groups).clip(max=self.groups.size - 1)
        is_own = self.groups[places] == groups
        low, high, variance = (np.where(is_own, each[places], 0.0) for each in (self.minimum, self.maximum, self.variance))
        is_there = is_own & self.is_there[places]
        return ChannelValues(groups=groups, is_there=is_there, minimum=low, maximum=high, variance=variance)


def is_smoothed(view: DataflowView, found: ChannelGroups, site: Site) -> bool:
    """Return whether factors of a site are of a given strength: neither a convolution nor a function takes part in it."""
    calls = [*map(view.definition, site.tensors), *(reader.op.call for reader in site.readers)]
    return found.functions.isdisjoint(site.tensors) and all(call_to(each, *CONVOLUTIONS) is None for each in calls)


def best_factors(
    model: Model,
    found: ChannelGroups,
    sites: Sequence[Site],
    values: Mapping[Var, ChannelValues],
    weight_bits: int,
    strength: float | None,
) -> list[Floats | None]:
    """Return of each site factors by group, 1 for those of other sites; None where none are worth it.

    The strength is alpha where `is_smoothed`; None takes what has the least noise there, too.
    """
    view = DataflowView(model.module["main"])
    constants = Constants(view, model.params)
    best: list[Floats | None] = []
    for site in sites:
        cost = _Cost(constants, found, site, values, weight_bits)
        factors = cost.best() if strength is None or not is_smoothed(view, found, site) else cost.smoothing(strength)
        by_group = np.ones(found.count)
        by_group[cost.groups] = 1.0 if factors is None else factors
        best.append(None if factors is None else by_group)
    return best


class _Cost:
    """The noise in what the readers of a site compute, for factors.

    Of all groups of a model it knows those of the site alone: `groups` are their numbers, ascending. Factors are of these.
    """

    def __init__(
        self, constants: Constants, found: ChannelGroups, site: Site, values: Mapping[Var, ChannelValues], weight_bits: int
    ) -> None:
        self.groups = np.unique(np.concatenate([site.groups, *(found.of[var].reshape(-1) for var in site.tensors)]))
        self._found, self._site, self._weight_steps = found, site, 2 ** (weight_bits - 1) - 1
        behind = {var for reader in site.readers for var in found.noise.get(reader.data, ())}
        self._values = {var: values[var].only(self.groups) for var in {*site.rounded, *behind} if var in values}
        self._readers = [_ReaderCost(found, reader, constants, self._values, self.groups) for reader in site.readers]
        self._is_of_functions = not found.functions.isdisjoint(site.tensors)

    def best(self) -> Floats | None:
        """Return the factors with the least noise; None where that is about what there is without any."""
        best, least = None, _GAIN * self.of(np.ones(self.groups.size))
        for factors in self.candidates():
            noise = self.of(factors)
            if noise < least and self.saturates(factors):
                best, least = factors, noise
        return best

    def of(self, factors: Floats) -> float:
        """Return the noise, as a share of what the readers compute, summed over these."""
        rounding: dict[Var, Floats] = {}
        for var in self._site.rounded:
            low, high = self._ends(var, factors)
            # A channel that rounds to one number is off by no more than it varies: the mean of that is corrected.
            rounding[var] = np.minimum(((high - low) / _STEPS) ** 2 / 12, self._values[var].variance / factors**2)
        total = 0.0
        for each in self._readers:
            behind = [rounding[var] for var in self._found.noise.get(each.data, ()) if var in rounding]
            if behind:
                noise, signal = each.noise(factors, np.sum(behind, axis=0), self._weight_steps)
                # Channels of a function that bends keep their values apart where those of others are hundreds of times as large.
                total += float((noise / signal).mean()) if self._is_of_functions else float(noise.sum() / signal.sum())
        return total

    def _ends(self, var: Var, factors: Floats) -> tuple[float, float]:
        seen = self._values[var]
        return float(min((seen.minimum / factors).min(), 0.0)), float(max((seen.maximum / factors).max(), 0.0))

    def saturates(self, factors: Floats) -> bool:
        """Return whether the ranges of all tensors that are clipped end at or below each channel's own bound."""
        for var, bound in self._found.clamps.items():
            if var in self._site.tensors and var in self._values:
                own = bound / factors[np.searchsorted(self.groups, np.unique(self._found.of[var]))]
                if self._ends(var, factors)[1] > float(own.min()) * (1 + 1e-6):
                    return False
        return True

    def candidates(self) -> Iterator[Floats]:
        """Yield factors by group, the greatest of them 1."""
        ranges, weights = self._ranges_and_weights()
        mine = np.searchsorted(self.groups, self._site.groups)
        weights = np.maximum(weights[mine], 1e-3)
        for least in _LEASTS if self._is_of_functions else _LEASTS[:1]:
            widths = np.clip(_SLACK * ranges[mine], least, 1.0)
            for alpha in ALPHAS:
                for own in (widths**alpha, widths**alpha / weights ** (1 - alpha)):
                    factors = np.ones(self.groups.size)
                    factors[mine] = own / own.max()
                    yield factors

    def smoothing(self, strength: float) -> Floats | None:
        """Return factors by group of a strength; None where integers would not saturate at a bound."""
        ranges, weights = (np.clip(each, _SMALLEST, 1.0) for each in self._ranges_and_weights())
        mine = np.searchsorted(self.groups, self._site.groups)
        other = np.array([self._found.opposites.get(group, 0) for group in self._site.groups.tolist()])
        factors, met, read = np.ones(self.groups.size), mine[other > 0], mine[other == 0]
        factors[met] = (ranges[met] / ranges[np.searchsorted(self.groups, other[other > 0])]) ** strength
        if read.size:
            own = ranges[read] ** strength / weights[read] ** (1 - strength)
            factors[read] = own / own.max()
        return factors if self.saturates(factors) else None

    def _ranges_and_weights(self) -> tuple[Floats, Floats]:
        """Return, by group, ranges and the largest weights that read them, as shares of the tensor's and the reader's."""
        ranges, weights = np.zeros(self.groups.size), np.zeros(self.groups.size)
        for var in self._site.rounded:
            seen = self._values[var]
            widths = np.maximum(seen.maximum, 0) - np.minimum(seen.minimum, 0)
            ranges = np.maximum(ranges, widths / max(float(widths.max()), 1e-30))
        for each in self._readers:
            weights = np.maximum(weights, each.largest / max(float(each.largest.max()), 1e-30))
        return ranges, weights


class _ReaderCost:
    """What the noise of one reader depends on."""

    def __init__(
        self,
        found: ChannelGroups,
        reader: Reader,
        constants: Constants,
        values: Mapping[Var, ChannelValues],
        groups: npt.NDArray[np.int64],
    ) -> None:
        self.data = reader.data
        op = reader.op
        weight = constants.value(op.weight).astype(np.float64)
        table = np.broadcast_to(weight_groups(op, np.searchsorted(groups, found.of[reader.data])), weight.shape)
        layout = str(getattr(op.call.attrs, "kernel_layout", "") or "IO")
        axes = layout.index("O"), layout.index("I")
        order = [*axes, *(axis for axis in range(weight.ndim) if axis not in axes)]
        shape = (weight.shape[axes[0]], weight.shape[axes[1]], -1)
        weight, table = weight.transpose(order).reshape(shape), table.transpose(order).reshape(shape)[:, :, 0]
        # Most outputs read the same groups: one row stands for all then.
        self._groups: Any = table[:1] if (table == table[:1]).all() else table
        self._taps = weight.shape[2]
        self._largest = np.abs(weight).max(axis=2)
        self._power = (weight**2).sum(axis=2)
        self.largest = np.zeros(groups.size)
        np.maximum.at(self.largest, table.reshape(-1), self._largest.reshape(-1))
        self._variance = np.zeros(groups.size)
        for seen in (values[var] for var in found.noise.get(reader.data, ()) if var in values):  # the nearest last
            self._variance = np.where(seen.is_there, seen.variance, self._variance)
        self._products = np.empty_like(self._power)  # one for all candidates: to allocate it anew takes longer than to fill it
        signal = (self._power * self._variance[table]).sum(axis=1)
        self._signal = np.maximum(signal, max(_DEAD * float(signal.max()), 1e-30))

    def noise(self, factors: Floats, rounding: Floats, weight_steps: int) -> tuple[Floats, Floats]:
        """Return, by output, the noise from rounding the operand, of this power by group, and the weights; and the signal."""
        steps = np.multiply(self._largest, factors[self._groups], out=self._products).max(axis=1) / weight_steps
        spread = (self._variance / factors**2)[self._groups].sum(axis=1) * self._taps
        operand = np.multiply(self._power, (factors**2 * rounding)[self._groups], out=self._products).sum(axis=1)
        return operand + steps**2 * spread / 12, self._signal
