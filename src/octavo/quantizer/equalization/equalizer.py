"""Chooses factors on the samples that a profile keeps, and proves on them that the model computes the same. Quantizes nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from ...compiler.float_values import FloatValues
from ...errors import CompileError
from ...ir.graph import Model
from ...ir.graph.dataflow import DataflowView, dtype_of, op_name, static_shape
from ...ir.graph.lineage import lineage_paused
from ...ir.identity import TensorId
from ...numerics.arrays import Array, Samples
from ...profiling import Profile
from ..plan.equalization import Equalization, equalized_statistics
from .channel_groups import ChannelGroups, find_groups
from .rotating import rotated
from .rotations import RotationSite, find_rotatable
from .scaling import scaled
from .sites import ChannelValues, Site, best_factors, factors_of, find_sites, is_smoothed
from .statistics import GroupValues, ScaledValues, channel_ranges, profiled_values

Floats = npt.NDArray[np.float64]
Chosen = list[tuple[Site, Floats]]

MAX_CHANGE = 1e-5
"""Of the results of the float model, as a share of the largest: what float32's rounding comes to in a deep network."""
_ROTATED = 10.0
"""Times that, of a rotated model: all of its weights are rounded anew."""
_SAMPLES = 16
"""Enough to say how wide the channels of streams are, and to prove that results are the same."""

_MAX_BESIDE = 2**26
"""Bytes of a model's constants up to which the proof waits for what else runs it: a larger one leaves no memory for both."""


class Equalizer:
    """Says how a simplified model is to be equalized, on the samples that a profile keeps.

    Parameters
    ----------
    samples
        Those, as the model takes them.
    results
        What the model gave for each of them, () where that is not known.
    beside
        Where machine code is made that nothing waits for yet.
    only_ranges
        Whether statistics of divided tensors may be the ends of their ranges alone, which mostly follow from the profile: all
        samples need not be run for that.
    has_functions
        See `find_groups`.
    """

    def __init__(
        self,
        profile: Profile,
        samples: Samples,
        floats: FloatValues,
        beside: Executor,
        *,
        results: Samples = (),
        only_ranges: bool = False,
        has_functions: bool = False,
    ) -> None:
        self.profile, self.samples, self.floats, self.beside = profile, samples, floats, beside
        self.results, self.only_ranges, self.has_functions = results, only_ranges, has_functions
        self._proof: Callable[[], bool] | None = None
        self._holds = True
        self._models: dict[Hashable, _ModelEqualizer] = {}

    def __call__(
        self,
        simple: Model,
        kept: Collection[str],
        weight_bits: int,
        strength: float | None,
        attempt: int = 0,
        before: Equalization | None = None,
    ) -> Equalization:
        """Return the factors; whether these leave the results as they are `holds` may have to say later.

        Parameters
        ----------
        simple
            Always the same one.
        kept
            Names of variables whose values have to stay as they are.
        weight_bits
            Width of weights.
        strength
            See `best_factors`.
        attempt
            How many times what was returned did not hold.
        before
            How the model is rotated before that.
        """
        self._proof, self._holds = None, True
        with lineage_paused():  # what is built here is none of the model's own steps
            try:
                found, self._proof = self._model(simple, kept, before).run(weight_bits, strength, attempt)
            except (NotImplementedError, CompileError):  # what cannot be compiled is for `compile` to say
                return Equalization()
        if simple.constant_bytes > _MAX_BESIDE:
            self.holds()
        return found if before is None else replace(found, rotations=before.rotations, rotated=before.rotated)

    def rotated(self, simple: Model, kept: Collection[str]) -> tuple[list[RotationSite], Equalization]:
        """Return what can be rotated, and statistics of all of that; nothing where results would be others then.

        Parameters
        ----------
        simple, kept
            As a call takes them.
        """
        sites = find_rotatable(simple, kept).sites()
        rotations = {name: each for site in sites for name, each in site.rotations.items()}
        values = {name: ScaledValues(self.profile[name]) for name in rotations if name in self.profile}
        if not values:
            return [], Equalization()
        results: list[list[Array]] = []
        with lineage_paused():
            try:
                for own, seen in self.floats.on(rotated(simple, rotations), [*map(str, values)], self.samples):
                    results.append(own)
                    for each, value in zip(values.values(), seen, strict=True):
                        each.add(value)
                before = self.results or self.floats.results(simple, self.samples[: len(results)])
            except (NotImplementedError, CompileError):
                return [], Equalization()
        if not _are_same(before, results, _ROTATED):
            return [], Equalization()
        return sites, Equalization(rotations=rotations, rotated={name: each.result() for name, each in values.items()})

    def smooths(self, simple: Model, kept: Collection[str], before: Equalization) -> bool:
        """Return whether a strength makes a difference."""
        return self._model(simple, kept, before).smooths

    def _model(self, simple: Model, kept: Collection[str], before: Equalization | None) -> _ModelEqualizer:
        before = before or Equalization()
        key = frozenset(kept), tuple(before.rotations.items())
        if key not in self._models:
            profile = equalized_statistics(self.profile, before)
            self._models = {key: _ModelEqualizer(self, rotated(simple, before.rotations), kept, profile)}
        return self._models[key]

    def holds(self) -> bool:
        """Return whether what was returned last leaves the results as they are; where nothing ran the model yet, run it."""
        if self._proof is not None:
            proof, self._proof = self._proof, None
            with lineage_paused():
                self._holds = _proves(proof)
            self.floats.forget()
        return self._holds


def _proves(proof: Callable[[], bool]) -> bool:
    try:
        return proof()
    except (NotImplementedError, CompileError):
        return False


class _ModelEqualizer:
    """One model on the samples of an equalizer, but for variables whose values are kept."""

    def __init__(self, given: Equalizer, simple: Model, kept: Collection[str], profile: Mapping[TensorId, Any]) -> None:
        self._simple, self._profile, self._samples, self._floats = simple, profile, given.samples, given.floats
        self._results, self._only_ranges, self._beside = given.results, given.only_ranges, given.beside
        self._before: list[list[Array]] = []
        view = DataflowView(simple.module["main"])
        self._found = find_groups(simple, kept, has_functions=given.has_functions)
        self._sites = [site for site in find_sites(self._found) if site.is_read and site.rounded and self._is_finite(site)]
        self._streams = {var: ChannelWidths() for var in find_streams(view) if var.name not in kept}
        self.smooths = any(is_smoothed(view, self._found, site) for site in self._sites)

    def run(self, weight_bits: int, strength: float | None, attempt: int) -> tuple[Equalization, Callable[[], bool] | None]:
        """Return the factors of all sites that gain, and what says whether these leave the results as they are."""
        if not self._sites and not self._streams:
            return Equalization(), None
        factors = best_factors(self._simple, self._found, self._sites, self._observed, weight_bits, strength)
        wanted = [(site, each) for site, each in zip(self._sites, factors, strict=True) if each is not None]
        uneven = dict(_uneven(self._streams))
        candidates = self._candidates(self._found, wanted)
        if attempt < len(candidates):
            equalization, proof = self._proposed(self._found, candidates[attempt])
            return replace(equalization, uneven=uneven), proof
        return Equalization(uneven=uneven), None

    def _is_finite(self, site: Site) -> bool:
        """Return whether the profile found neither NaN nor infinity in what is rounded; else it cannot be."""
        known = (self._profile.get(TensorId(var.name)) for var in site.rounded)
        return not any(each is not None and each.non_finite_note for each in known)

    @cached_property
    def _observed(self) -> dict[Var, ChannelValues]:
        """What is known of the rounded tensors of sites; streams take what samples say of them.

        Samples are run where the profile does not know the ranges of channels.
        """
        found, streams = self._found, self._streams
        rounded = [var for site in self._sites for var in site.rounded]
        size = 1 + max((int(groups.max()) for groups in found.of.values()), default=0)
        values: dict[Var, ChannelValues] = {}
        totals: dict[Var, GroupValues] = {}
        for var in rounded:
            profiled, groups = self._profile.get(TensorId(var.name)), found.of[var]
            if profiled is not None and channel_ranges(profiled, groups.shape):
                values[var] = profiled_values(profiled, groups, size)
            else:
                totals[var] = GroupValues(groups, size)
        seen = [*totals.items(), *streams.items()]
        if seen:
            samples = self._samples if totals else self._samples[:_SAMPLES]
            for results, each_value in self._values(self._simple, [var.name for var, _ in seen], samples):
                for (_, total), value in zip(seen, each_value, strict=True):
                    total.add(value)
                self._before.append(results)
        return values | {var: total.result() for var, total in totals.items()}

    def _candidates(self, found: ChannelGroups, wanted: Chosen) -> list[Chosen]:
        """Return the factors of sites, those first that leave the least noise.

        Where float32's rounding of weights that are divided shows in the results, powers of two take their place: dividing by
        these rounds nothing. Those next above leave no channel wider than the widest.
        """
        if not wanted:
            return []
        powers = [(site, np.exp2(_exponents(found, factors))) for site, factors in wanted]
        return [powers] if _has_functions(found, wanted) else [wanted, powers]

    def _proposed(self, found: ChannelGroups, wanted: Chosen) -> tuple[Equalization, Callable[[], bool]]:
        """Return what dividing the tensors of sites makes of them, and what says whether that leaves the results as they are."""
        by_group = np.prod([factors for _, factors in wanted], axis=0)
        tensors = {TensorId(var.name): var for site, _ in wanted for var in site.tensors}
        factors = {name: factors_of(found.of[var], by_group) for name, var in tensors.items()}
        statistics = {name: ScaledValues(self._profile[name], factors[name]) for name in tensors if name in self._profile}
        unknown = {name: each for name, each in statistics.items() if not (self._only_ranges and each.has_range)}
        model = scaled(self._simple, factors, exact=True)
        results: list[list[Array]] = []
        if unknown:
            for own, values in self._values(model, [*map(str, unknown)], self._samples):
                for each, value in zip(unknown.values(), values, strict=True):
                    each.add(value)
                results.append(own)
        elif self._simple.constant_bytes <= _MAX_BESIDE:
            self._floats.build(model, [], self._beside)
        clamps = {name: np.float32(found.clamps[var]) / factors[name] for name, var in tensors.items() if var in found.clamps}
        equalization = Equalization(
            factors=factors,
            clamps=clamps,
            sites=tuple(tuple(TensorId(var.name) for var in site.tensors) for site, _ in wanted),
            statistics={name: each.result() for name, each in statistics.items()},
        )
        return equalization, lambda: self._changes_nothing(found, wanted, model, results)

    def _changes_nothing(self, found: ChannelGroups, wanted: Chosen, model: Model, results: Samples) -> bool:
        """Return whether an equalized model's results are those of the model; `results` may have been found already."""
        now = results[:_SAMPLES] or self._results_of(model)
        if _are_same(self._results, now):
            return True
        if not _has_functions(found, wanted):
            return _are_same(self._before or self._results_of(self._simple), now)
        # A factor behind a function parts it from the product's kernel, which then sums in another order: that is no change.
        ones = {TensorId(var.name): np.ones(found.of[var].shape, np.float32) for site, _ in wanted for var in site.tensors}
        return _are_same(self._results_of(scaled(self._simple, ones, exact=True)), now)

    def _results_of(self, model: Model) -> list[list[Array]]:
        return self._floats.results(model, self._samples[:_SAMPLES])

    def _values(self, model: Model, names: Sequence[str], samples: Samples) -> Iterator[tuple[list[Array], list[Array]]]:
        return self._floats.on(model, names, samples)


def _exponents(found: ChannelGroups, factors: Floats) -> Floats:
    exponents = np.ceil(np.log2(factors))
    for group, other in found.opposites.items():
        exponents[max(group, other)] = -exponents[min(group, other)]
    return exponents


def _uneven(streams: Mapping[Var, ChannelWidths]) -> Iterator[tuple[TensorId, str]]:
    """Yield the streams whose channels are too unlike for one scale, each with the reason."""
    for var, widths in streams.items():
        steps = widths.steps()
        if steps < MIN_STEPS:
            said = (
                f"its channels are unlike, and half of them would have fewer than {steps + 1:.0f} of 255 steps; a norm reads all"
            )
            yield TensorId(var.name), said


def _has_functions(found: ChannelGroups, wanted: Chosen) -> bool:
    return any(var in found.functions for site, _ in wanted for var in site.tensors)


def _are_same(before: Samples, now: Samples, times: float = 1.0) -> bool:
    """Return whether results of the first samples are the same; not where nothing is known of them."""
    if len(before) < len(now):
        return False
    return all(
        _is_same(*pair, times * MAX_CHANGE)
        for known, found in zip(before, now, strict=False)
        for pair in zip(known, found, strict=True)
    )


def _is_same(before: Array, now: Array, share: float) -> bool:
    if before.dtype != now.dtype or before.shape != now.shape or before.dtype.kind != "f":
        return bool(np.array_equal(before, now))
    largest = float(np.abs(before).max(initial=0.0))
    return bool(np.abs(before.astype(np.float64) - now).max(initial=0.0) <= share * largest)


NORMS = ("nn.layer_norm", "nn.rms_norm")
_READERS = (*NORMS, "add", "subtract", "reshape", "mean", "nn.dropout")
_STEPS = 255
MIN_STEPS = 32
"""Fewer for the median channel, of the steps that the whole range has, are too few: 30 dB, and layer upon layer adds to that."""


def find_streams(view: DataflowView) -> list[Var]:
    """Return the variables that a norm over the last axis reads, and no product."""
    found: list[Var] = []
    for binding in view.bindings:
        shape, readers = static_shape(binding.var), view.users(binding.var)
        names = [op_name(view.definition(reader)) for reader in readers]
        is_stream = any(name in NORMS for name in names) and all(name in _READERS for name in names)
        has_channels = shape is not None and len(shape) > 1 and dtype_of(binding.var) == "float32"
        if is_stream and has_channels and not view.is_returned(binding.var):
            found.append(binding.var)
    return found


class ChannelWidths:
    """How wide the channels of a tensor are, along its last axis."""

    def __init__(self) -> None:
        self._low: npt.NDArray[Any] = np.array(np.inf)
        self._high: npt.NDArray[Any] = np.array(-np.inf)

    def add(self, value: npt.NDArray[Any]) -> None:
        """Take one sample's values."""
        others = tuple(range(value.ndim - 1))
        self._low, self._high = np.minimum(self._low, value.min(axis=others)), np.maximum(self._high, value.max(axis=others))

    def steps(self) -> float:
        """Return how many steps of 8 bits the median channel has where one scale is for all."""
        width = float(max(self._high.max(), 0.0)) - float(min(self._low.min(), 0.0))
        return _STEPS * float(np.median(self._high - self._low)) / max(width, 1e-30)
