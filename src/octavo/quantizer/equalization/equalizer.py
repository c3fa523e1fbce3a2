"""Chooses factors on the samples that a profile keeps, and proves on them that the model computes the same. Quantizes nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from ...compiler.float_program import NO_GAINS, FloatProgram
from ...errors import CompileError
from ...ir.channels import RotationSite, Site, find_groups, find_rotatable, find_sites, gains_of_functions, rotated, scaled
from ...ir.graph import Model
from ...ir.graph.constants import Constants
from ...ir.graph.dataflow import DataflowView, dtype_of, op_name, operand_vars, static_shape
from ...ir.graph.lineage import lineage_paused
from ...ir.identity import TensorId
from ...numerics.arrays import Array, Samples
from ...profiling import Profile
from ..last import Last
from ..plan.equalization import Equalization, equalized_statistics
from .factors import ChannelValues, best_factors, is_smoothed
from .statistics import GroupValues, ScaledValues, channel_ranges, profiled_values

Floats = npt.NDArray[np.float64]
Chosen = list[tuple[Site, Floats]]

MAX_CHANGE = 1e-5
"""Of the results of the float model, as a share of the largest: what float32's rounding comes to in a deep network."""
_ROTATED = 10.0
"""Times that, of a rotated model: all of its weights are rounded anew."""
_SAMPLES = 16
"""Enough to say how wide the channels of streams are, and to prove that results are the same."""
_FEW = 4
"""Samples that a large model is run on."""


@dataclass(slots=True, eq=False)
class Equalizer:
    """Says how a simplified model, always the same one, is to be equalized, on the samples that a profile keeps.

    Parameters
    ----------
    samples
        Those, as the model takes them.
    floats
        Returns what runs a float model; see `Programs.floats`.
    results
        What the model gave for each of them, () where that is not known.
    only_ranges
        Whether statistics of divided tensors may be the ends of their ranges alone, which mostly follow from the profile: all
        samples need not be run for that.
    has_functions
        See `find_groups`.
    """

    profile: Profile
    samples: Samples
    floats: Callable[..., FloatProgram]
    results: Samples = ()
    only_ranges: bool = False
    has_functions: bool = False
    _last: Last[ModelEqualizer] = field(default_factory=lambda: Last["ModelEqualizer"]())

    def of(self, simple: Model, kept: Collection[str], before: Equalization) -> ModelEqualizer:
        """Return what equalizes the model, rotated as `before` says, where variables of the names `kept` stay as they are."""
        with lineage_paused():  # what is built here is none of the model's own steps
            return self._last.find((frozenset(kept), before.rotations), lambda: ModelEqualizer(self, simple, kept, before))

    def asked(self, simple: Model) -> tuple[list[str], set[TensorId]]:
        """Return names of the variables that the model, rotated or divided, is asked for, and of constants that change."""
        rotations = {name: each for site in find_rotatable(simple).sites() for name, each in site.rotations.items()}
        equalizer = self.of(simple, (), Equalization())
        view = DataflowView(simple.module["main"])
        constants, changed = Constants(view, simple.params), {*map(str, rotations), *(var.name for var in equalizer.tensors)}
        around = ((each.var.name, each.value) for each in view.bindings)
        readers = (value for name, value in around if not changed.isdisjoint((name, *(var.name for var in operand_vars(value)))))
        read = (constants.find(operand) for value in readers for operand in operand_vars(value))
        found = {each.name for each in read if each is not None and simple.params[each.name].dtype == np.float32}
        names = [*(str(name) for name in rotations if name in self.profile), *equalizer.asked]
        return names, {name for name in found if simple.params[name].size > 1}

    def samples_for(self, simple: Model) -> Samples:
        """Return those that a model is run on."""
        return self.samples[:_FEW] if simple.is_large else self.samples

    def is_same(
        self,
        simple: Model,
        other: Model,
        statistics: Mapping[TensorId, ScaledValues],
        gains: Mapping[str, Array] = NO_GAINS,
        times: float = 1.0,
    ) -> bool:
        """Return whether another model gives what a model does, and add what its tensors are on samples to statistics.

        It multiplies results of functions by gains. Results may be off by so many times `MAX_CHANGE`.
        """
        names, samples, share = [*map(str, statistics)], self.samples_for(simple), times * MAX_CHANGE
        if not names:
            samples = samples[:_SAMPLES]
        plain: FloatProgram | None = None
        for place, (own, values) in enumerate(self.floats(other, names, gains).on(samples, names)):
            # What the profile has was computed by other kernels.
            if place < _SAMPLES and not (place < len(self.results) and _are_same(self.results[place], own, share)):
                plain = plain or self.floats(simple, [], dict.fromkeys(gains, np.ones((), np.float32)))
                [(before, _)] = plain.on(samples[place : place + 1])
                if not _are_same(before, own, share):
                    return False
            for each, value in zip(statistics.values(), values, strict=True):
                each.add(value)
        return True

    def rotated(self, simple: Model, kept: Collection[str]) -> tuple[list[RotationSite], Equalization]:
        """Return what can be rotated, and statistics of all of that; nothing where results would be others then."""
        sites = find_rotatable(simple, kept).sites()
        rotations = {name: each for site in sites for name, each in site.rotations.items()}
        values = {name: ScaledValues(self.profile[name]) for name in rotations if name in self.profile}
        with lineage_paused():
            try:
                if not values or not self.is_same(simple, rotated(simple, rotations), values, times=_ROTATED):
                    return [], Equalization()
            except (NotImplementedError, CompileError):
                return [], Equalization()
        return sites, Equalization(rotations=rotations, rotated={name: each.result() for name, each in values.items()})


class ModelEqualizer:
    """One model on the samples of an equalizer (see `Equalizer.of`); it `smooths` where a strength makes a difference."""

    def __init__(self, given: Equalizer, simple: Model, kept: Collection[str], before: Equalization) -> None:
        self._given, self._before, self._simple = given, before, rotated(simple, before.rotations)
        self._profile = equalized_statistics(given.profile, before)
        view = DataflowView(self._simple.module["main"])
        self._found = find_groups(self._simple, kept, has_functions=given.has_functions)
        self._sites = [site for site in find_sites(self._found) if site.is_read and site.rounded and self._is_finite(site)]
        self._streams = [var for var in find_streams(view) if var.name not in kept]
        self.smooths = any(is_smoothed(view, self._found, site) for site in self._sites)

    @property
    def tensors(self) -> list[Var]:
        """What may be divided."""
        return [var for site in self._sites for var in site.tensors]

    @property
    def asked(self) -> list[str]:
        """Names of what the model is asked for, divided or not."""
        tensors = {TensorId(var.name): self._found.of[var].shape for var in self.tensors}
        ones = {name: np.ones(shape, np.float32) for name, shape in tensors.items() if name in self._profile}
        unit = {name: ScaledValues(self._profile[name], each) for name, each in ones.items()}
        known = (var for site in self._sites for var in site.rounded if self._known_values(var) is None)
        functions = (var for var in (*self._found.functions, *self._found.clamps) if TensorId(var.name) in tensors)
        return [*(var.name for var in (*known, *self._streams, *functions)), *map(str, self._unknown(unit))]

    def equalization(self, weight_bits: int, strength: float | None) -> Equalization:
        """Return the factors of all sites that gain, of those that leave the results as they are; none of what cannot be run.

        Where float32's rounding of weights that are divided shows in the results, powers of two take their place: dividing by
        these rounds nothing. Those next above leave no channel wider than the widest. See `best_factors` for the strength.
        """
        if not self._sites and not self._streams:
            return Equalization()
        with lineage_paused():
            try:
                values = self._observed
                factors = best_factors(self._simple, self._found, self._sites, values, weight_bits, strength)
                wanted = [(site, each) for site, each in zip(self._sites, factors, strict=True) if each is not None]
                powers = [(site, np.exp2(self._exponents(each))) for site, each in wanted]
                has_functions = any(not self._found.functions.isdisjoint(site.tensors) for site, _ in wanted)
                candidates = [powers] if has_functions else [wanted, powers]
                found = (self._proposed(each) for each in candidates if each)
                holding = next((each for each in found if each is not None), Equalization())
            except (NotImplementedError, CompileError):  # what cannot be compiled is for `compile` to say
                return Equalization()
        uneven = dict(_uneven({var: values[var] for var in self._streams}))
        return replace(holding, uneven=uneven, rotations=self._before.rotations, rotated=self._before.rotated)

    def _is_finite(self, site: Site) -> bool:
        """Return whether the profile found neither NaN nor infinity in what is rounded; else it cannot be."""
        known = (self._profile.get(TensorId(var.name)) for var in site.rounded)
        return not any(each is not None and each.non_finite_note for each in known)

    @cached_property
    def _observed(self) -> dict[Var, ChannelValues]:
        """What is known of the rounded tensors of sites, by group, and of streams, by channel.

        Samples are run where the profile does not know the ranges of channels.
        """
        rounded = [var for site in self._sites for var in site.rounded]
        known = {var: values for var in rounded if (values := self._known_values(var)) is not None}
        totals = {var: GroupValues(self._found.of[var]) for var in rounded if var not in known}
        samples = self._given.samples_for(self._simple)
        samples = samples if totals else samples[:_SAMPLES]
        shapes = {var: shape for var in self._streams if (shape := static_shape(var))}
        totals |= {var: GroupValues(np.arange(shape[-1]).reshape(*[1] * (len(shape) - 1), -1)) for var, shape in shapes.items()}
        if totals:
            names = [var.name for var in totals]
            for _, values in self._given.floats(self._simple, names).on(samples, names):
                for total, value in zip(totals.values(), values, strict=True):
                    total.add(value)
        return known | {var: total.result() for var, total in totals.items()}

    def _known_values(self, var: Var) -> ChannelValues | None:
        """Return what the profile knows of the channels of a rounded tensor."""
        profiled, groups = self._profile.get(TensorId(var.name)), self._found.of[var]
        if profiled is None or not channel_ranges(profiled, groups.shape):
            return None
        return profiled_values(profiled, groups)

    def _unknown(self, statistics: Mapping[TensorId, ScaledValues]) -> dict[TensorId, ScaledValues]:
        """Return those that samples have to tell."""
        return {name: each for name, each in statistics.items() if not (self._given.only_ranges and each.has_range)}

    def _proposed(self, wanted: Chosen) -> Equalization | None:
        """Return what dividing the tensors of sites makes of them; None where it leaves the results not as they are."""
        by_group = np.prod([factors for _, factors in wanted], axis=0)
        tensors = {TensorId(var.name): var for site, _ in wanted for var in site.tensors}
        factors = {name: by_group[self._found.of[var]].astype(np.float32) for name, var in tensors.items()}
        statistics = {name: ScaledValues(self._profile[name], factors[name]) for name in tensors if name in self._profile}
        unknown = self._unknown(statistics)
        others, gains = self._multiplied(factors)
        model = scaled(self._simple, others, exact=True, left=gains)
        if not self._given.is_same(self._simple, model, unknown, gains):
            return None
        bounds = {name: self._found.clamps[var] for name, var in tensors.items() if var in self._found.clamps}
        return Equalization(
            factors=factors,
            clamps={name: np.float32(bound) / factors[name] for name, bound in bounds.items()},
            sites=tuple(tuple(TensorId(var.name) for var in site.tensors) for site, _ in wanted),
            statistics={name: each.result() for name, each in statistics.items()},
        )

    def _multiplied(self, factors: Mapping[TensorId, Array]) -> tuple[dict[TensorId, Array], dict[str, Array]]:
        """Return factors, and gains of results, with which programs of the model as it is run the divided one.

        What is clipped, and what that alone is made of, is not divided: what is made of that is multiplied. A bound for each
        channel would be another op, whose kernels are compiled for seconds.
        """
        view, left, gains = DataflowView(self._simple.module["main"]), dict(factors), gains_of_functions(self._simple, factors)
        for site in self._sites:
            for var in (each for each in site.tensors if each in self._found.clamps and TensorId(each.name) in factors):
                above, near = set[Var](), [var]
                while near:
                    read = {*operand_vars(view.definition(near.pop()))} & {*site.tensors} - above
                    above |= read
                    near += read
                if not any(view.is_returned(each) or {*view.users(each)} - above - {var} for each in above):
                    gains[var.name] = np.float32(1) / factors[TensorId(var.name)]
                    left = {name: each for name, each in left.items() if view.variables[name] not in above}
        return left, {name: gain for name, gain in gains.items() if name in left}

    def _exponents(self, factors: Floats) -> Floats:
        exponents = np.ceil(np.log2(factors))
        for group, other in self._found.opposites.items():
            exponents[max(group, other)] = -exponents[min(group, other)]
        return exponents


def _uneven(streams: Mapping[Var, ChannelValues]) -> Iterator[tuple[TensorId, str]]:
    """Yield the streams whose channels are too unlike for one scale, each with the reason.

    So are those whose median channel has few of the steps that 8 bits have where one scale is for all.
    """
    for var, seen in streams.items():
        width = max(float(seen.maximum.max()), 0.0) - min(float(seen.minimum.min()), 0.0)
        steps = _STEPS * float(np.median(seen.maximum - seen.minimum)) / max(width, 1e-30)
        if steps < MIN_STEPS:
            said = (
                f"its channels are unlike, and half of them would have fewer than {steps + 1:.0f} of 255 steps; a norm reads all"
            )
            yield TensorId(var.name), said


def _are_same(before: Sequence[Array], now: Sequence[Array], share: float) -> bool:
    return all(_is_same(*pair, share) for pair in zip(before, now, strict=True))


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
