"""Chooses factors on the samples that a profile keeps, and proves on them that the model computes the same. Quantizes nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from ..errors import CompileError
from ..float_values import FloatValues
from ..graph import Model
from ..graph.dataflow import DataflowView
from ..graph.lineage import lineage_paused
from ..graph.products import products_with_bias
from ..identity import TensorId
from ..profile import Profile
from ..quantize.equalize import (
    ChannelGroups,
    ChannelValues,
    Equalization,
    Site,
    best_factors,
    factors_of,
    find_groups,
    find_sites,
    scaled,
)
from .statistics import GroupValues, ScaledValues
from .streams import MIN_STEPS, ChannelWidths, find_streams

Array = npt.NDArray[Any]
Samples = Sequence[Sequence[Array]]
Floats = npt.NDArray[np.float64]
Chosen = list[tuple[Site, Floats]]

MAX_CHANGE = 1e-5
"""Of the results of the float model, as a share of the largest: what float32's rounding comes to in a deep network."""
_SAMPLES = 16
"""Enough for the variance of channels whose ranges the profile knows, and to prove that results are the same."""


def equalizer(
    profile: Profile, samples: Samples, floats: FloatValues, *, only_ranges: bool = False, has_functions: bool = False
) -> Callable[[Model, Collection[str], int], Equalization]:
    """Return what says how a simplified model is to be equalized on samples.

    It is given the names of variables whose values have to stay as they are, and the width of weights. With `only_ranges` its
    statistics of divided tensors are the ends of their ranges alone, which mostly follow from the profile: all samples need not
    be run for that. `has_functions`: see `find_groups`.
    """

    def equalize(simple: Model, kept: Collection[str], weight_bits: int) -> Equalization:
        with lineage_paused():  # what is built here is none of the model's own steps
            try:
                return _Equalizer(simple, profile, samples, floats, only_ranges).run(kept, weight_bits, has_functions)
            except (NotImplementedError, CompileError):  # what cannot be compiled is for `compile` to say
                return Equalization()

    return equalize


class _Equalizer:
    """One model on its samples."""

    def __init__(self, simple: Model, profile: Profile, samples: Samples, floats: FloatValues, only_ranges: bool) -> None:
        self._simple, self._profile, self._samples, self._floats = simple, profile, samples, floats
        self._only_ranges = only_ranges
        self._view = DataflowView(simple.module["main"])

    def run(self, kept: Collection[str], weight_bits: int, has_functions: bool) -> Equalization:
        """Return the factors of all sites that gain, or of those whose factors change nothing in float."""
        found = find_groups(self._simple, kept, has_functions=has_functions)
        sites = [site for site in find_sites(found) if site.readers and site.rounded and self._is_finite(site)]
        streams = {var: ChannelWidths() for var in find_streams(self._view) if var.name not in kept}
        if not sites and not streams:
            return Equalization()
        values, before = self._observed(found, sites, streams)
        chosen = zip(sites, best_factors(self._simple, found, sites, values, weight_bits), strict=True)
        wanted = [(site, factors) for site, factors in chosen if factors is not None]
        has_functions = any(var in found.functions for site, _ in wanted for var in site.tensors)
        return replace(self._proved(found, wanted, before, has_functions=has_functions), uneven=dict(_uneven(streams)))

    def _is_finite(self, site: Site) -> bool:
        """Return whether the profile found neither NaN nor infinity in what is rounded; else it cannot be."""
        known = (self._profile.get(TensorId(var.name)) for var in site.rounded)
        return not any(each is not None and each.non_finite for each in known)

    def _observed(
        self, found: ChannelGroups, sites: Sequence[Site], streams: Mapping[Var, ChannelWidths]
    ) -> tuple[dict[Var, ChannelValues], list[list[Array]]]:
        """Return what samples say of the rounded tensors of sites, and the model's results; take what they say of streams."""
        rounded = [var for site in sites for var in site.rounded]
        size = 1 + max((int(groups.max()) for groups in found.of.values()), default=0)
        totals = {var: GroupValues(found.of[var], size, self._profile.get(TensorId(var.name))) for var in rounded}
        outputs: list[list[Array]] = []
        samples = self._samples[: _SAMPLES if all(total.is_profiled for total in totals.values()) else None]
        seen = [*totals.items(), *streams.items()]
        for results, values in self._values(self._simple, [var.name for var, _ in seen], samples):
            for (_, total), value in zip(seen, values, strict=True):
                total.add(value)
            outputs.append(results)
        return {var: total.result() for var, total in totals.items()}, outputs

    def _proved(self, found: ChannelGroups, wanted: Chosen, before: list[list[Array]], *, has_functions: bool) -> Equalization:
        """Return the factors of sites that leave the results as they are.

        Where float32's rounding of weights that are divided shows in the results, powers of two take their place: dividing by
        these rounds nothing. Those next above leave no channel wider than the widest.
        """
        if has_functions and wanted:
            # A factor behind a function parts it from the product's kernel, which then sums in another order: that is no change.
            ones = {TensorId(var.name): np.ones(found.of[var].shape, np.float32) for site, _ in wanted for var in site.tensors}
            same = self._values(scaled(self._simple, ones, exact=True), [], self._samples[: len(before)])
            before = [results for results, _ in same]
        powers = [(site, np.exp2(np.ceil(np.log2(factors)))) for site, factors in wanted]
        for each in (powers,) if has_functions else (wanted, powers):
            if not each:
                break
            equalization = self._checked(found, each, before)
            if equalization is not None:
                return equalization
        return Equalization()

    def _checked(self, found: ChannelGroups, wanted: Chosen, before: list[list[Array]]) -> Equalization | None:
        """Return what dividing the tensors of sites makes of them, None where it changes the results."""
        by_group = np.prod([factors for _, factors in wanted], axis=0)
        tensors = {TensorId(var.name): var for site, _ in wanted for var in site.tensors}
        factors = {name: factors_of(found.of[var], by_group) for name, var in tensors.items()}
        statistics = {name: ScaledValues(self._profile[name], factors[name]) for name in tensors if name in self._profile}
        unknown = {name: each for name, each in statistics.items() if not (self._only_ranges and each.has_range)}
        samples = self._samples if unknown else self._samples[: len(before)]
        seen = self._values(scaled(self._simple, factors, exact=True), [*map(str, unknown)], samples)
        for number, (results, values) in enumerate(seen):
            pairs = zip(before[number], results, strict=True) if number < len(before) else ()
            if not all(_is_same(*pair) for pair in pairs):
                return None
            for each, value in zip(unknown.values(), values, strict=True):
                each.add(value)
        clamps = {name: np.float32(found.clamps[var]) / factors[name] for name, var in tensors.items() if var in found.clamps}
        made = {name: each.result() for name, each in statistics.items()}
        shared = tuple(tuple(TensorId(var.name) for var in site.tensors) for site, _ in wanted)
        return Equalization(factors=factors, clamps=clamps, sites=shared, statistics=made)

    def _values(self, model: Model, names: Sequence[str], samples: Samples) -> Iterator[tuple[list[Array], list[Array]]]:
        # What corrections look at, the sums before clamps, too: so they find the program as it is, and kernels are the same.
        sums = [var.name for var in products_with_bias(DataflowView(model.module["main"]))]
        return self._floats.on(model, names, samples, also=sums)


def _uneven(streams: Mapping[Var, ChannelWidths]) -> Iterator[tuple[TensorId, str]]:
    """Yield the streams whose channels are too unlike for one scale, each with the reason."""
    for var, widths in streams.items():
        steps = widths.steps()
        if steps < MIN_STEPS:
            said = (
                f"its channels are unlike, and half of them would have fewer than {steps + 1:.0f} of 255 steps; a norm reads all"
            )
            yield TensorId(var.name), said


def _is_same(before: Array, now: Array) -> bool:
    if before.dtype.kind != "f":
        return bool(np.array_equal(before, now))
    largest = float(np.abs(before).max(initial=0.0))
    return bool(np.abs(before.astype(np.float64) - now).max(initial=0.0) <= MAX_CHANGE * largest)
