"""Scores plans of one model by the error of its outputs on samples. It proposes nothing, and changes no plan."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from ...compiler.target_choice import resolve_target
from ...errors import QuantizationError
from ...ir.channels import Factors, rotated
from ...ir.graph import Model
from ...ir.graph.dataflow import static_shape
from ...ir.identity import TensorId
from ...ir.simplify import simplify
from ...numerics.arrays import Array, Samples
from ...profiling import Profile, samples_of
from ...runtime.shapes import typical
from ..plan.plan import QuantizationPlan, QuantizedModel
from ..sample_threads import in_order
from .rounded_program import Prepared, RoundedProgram
from .rounding import NOTHING, Rounding
from .score import Score, counted, error_powers, same_class, softmaxes_of

_KEPT_BYTES = 2**28
"""Of all that the float model has on the few samples: so much is kept, for scores read what comes before their first change."""
_KEPT_OF_ALL = 2**26
"""Of all that it has on all samples: so much is kept of each."""
_FEW, _MANY_VALUES = 3, 2**11
"""Samples that tell roundings apart, and how many values of an output they have at least: two scores of each rank by chance."""
_MOST = 0.95
"""Of what all roundings alone make of the outputs: what comes to that together is told apart on all of the few samples."""
_FEWEST = 2
"""Of a large model, where each sample takes a tenth of a second for each rounding."""

_Group = tuple[TensorId, ...]
_Look = tuple[list[float], list[tuple[list[float], float | None]]]
"""What one sample shows: the powers of outputs, and with each rounding those of their errors, and the agreement."""


class Referee:
    """Says how far the outputs of a model are off if it is quantized by a plan, or if only some tensors of one are rounded.

    Parameters
    ----------
    program
        Of the float model: it runs plans that round no more than it has names for.
    samples
        The model's inputs, sample by sample, that nothing of the plans was fitted to; one at least.
    few
        How many samples, spread evenly, effects of single tensors are measured on at most.
    before
        Of the same samples: what the float model gives is known from it, which is the same however that is rotated.

    Raises
    ------
    QuantizationError
        There are no samples.
    """

    def __init__(self, program: RoundedProgram, samples: Samples, *, few: int = 8, before: Referee | None = None) -> None:
        if not samples:
            raise QuantizationError("there are no samples to score plans on: profile with keep_samples")
        self.program, self._samples = program, samples
        self._exact = program.prepare(NOTHING)
        self._floats: dict[int, list[Array]] = {} if before is None else before._floats
        self._kept: dict[int, Mapping[Var, Any]] = {}
        self._effects: dict[Hashable, float] = {}
        self._powers_known: dict[tuple[Hashable, int], list[float]] = {}
        self._softmaxes = softmaxes_of(program.view, program.compared)
        self._counted = counted(program.view, {*program.view.function.params[: len(program.simple.input_ids)]})
        values = min((typical(math.prod(static_shape(var) or ())) for var in program.compared), default=_MANY_VALUES)
        least = _FEWEST if program.simple.is_large else _FEW
        telling = -(-_MANY_VALUES // max(values, 1))
        count = min(max(telling, least), few, len(samples))
        self.few = range(0, len(samples), len(samples) // count)[:count]
        """Numbers of the samples that effects are measured on."""
        self._first = self.few[:telling]
        """Those that tell which effects matter."""
        keeps_all = program.float_bytes * len(samples) <= _KEPT_OF_ALL
        self._keeps = range(len(samples)) if keeps_all else self.few if program.float_bytes * count <= _KEPT_BYTES else ()

    def rounding(self, plan: QuantizationPlan) -> Rounding:
        """Return what a plan rounds, which has the integers of its weights and biases."""
        return self.program.rounding(plan)

    def score(self, plan: QuantizationPlan) -> Score:
        """Return how far the outputs are off with a plan, which has the integers of its weights and biases."""
        return self.score_of(self.rounding(plan))

    def score_of_activations(self, plan: QuantizationPlan) -> Score:
        """Return how far the outputs are off with what a plan makes of activations, and weights and biases as they are."""
        return self.score_of(self.rounding(plan).of_activations)

    def score_of(self, rounding: Rounding, *, few: bool = False) -> Score:
        """Return how far the outputs are off with a rounding, of a plan or of some of its tensors; see `Rounding.only`."""
        [found] = self.scores_of([rounding], few=few)
        return found

    def scores_of(self, roundings: Sequence[Rounding], *, few: bool = False) -> list[Score]:
        """Return how far the outputs are off with each of several roundings.

        Each is computed from the first tensor on that it makes another: what the float model has there it computes once for all.

        Parameters
        ----------
        few
            Whether a few samples do: to tell tensors, or ranges of one, apart.
        """
        return _scores(self._looked_at(roundings, self.few if few else range(len(self._samples))), range(len(roundings)))

    def powers(self, rounding: Rounding | None, samples: Sequence[int]) -> npt.NDArray[np.float64]:
        """Return [samples, outputs], the power of each output, or of its error with what rounds activations alone, on samples.

        Plans that are compared clip the same here and there: what is known is not measured again.
        """
        key = None if rounding is None else rounding.key
        unknown = [sample for sample in samples if (key, sample) not in self._powers_known]
        seen = self._looked_at([] if rounding is None else [rounding], unknown)
        for sample, (power, errors) in zip(unknown, seen, strict=True):
            self._powers_known[key, sample] = power if rounding is None else errors[0][0]
        return np.array([self._powers_known[key, sample] for sample in samples]).reshape(len(samples), -1)

    def _looked_at(self, roundings: Sequence[Rounding], samples: Sequence[int]) -> list[_Look]:
        """Return of each sample the powers of outputs, and with each rounding those of their errors, and the agreement."""
        prepared = [self.program.prepare(each) for each in roundings]
        # Large constants of a plan are made for one call at a time, which then runs on all samples.
        if self.program.floats.has_unpacked and any(any(each.layers.values()) for each in roundings):
            return self._looked_together(prepared, samples)

        def look(sample: int) -> _Look:
            floats = self._floats.get(sample)
            run = [*prepared, *(() if floats else (self._exact,))]
            found = self.program.run_each(run, self._samples[sample], self._kept_floats(sample))
            if floats is None:
                made = dict(found)
                floats, found = self._floats.setdefault(sample, made.pop(len(prepared))), made.items()
            errors = {place: (self._powers(floats, each), same_class(floats, each)) for place, each in found}
            return self._powers(floats), [errors[place] for place in range(len(prepared))]

        return in_order(look, samples, numbers=self.program.numbers)

    def _looked_together(self, prepared: Sequence[Prepared], samples: Sequence[int]) -> list[_Look]:
        """Return what `_looked_at` does: of all samples side by side, for large constants are made for one call at a time."""
        unknown = [sample for sample in samples if sample not in self._floats]
        exact = self.program.run_together(self._exact, [self._samples[sample] for sample in unknown])
        self._floats |= dict(zip(unknown, exact, strict=True))
        found = [self.program.run_together(each, [self._samples[sample] for sample in samples]) for each in prepared]
        floats = [self._floats[sample] for sample in samples]
        by_sample = [[each[place] for each in found] for place in range(len(floats))]
        return [
            (self._powers(own), [(self._powers(own, each), same_class(own, each)) for each in results])
            for own, results in zip(floats, by_sample, strict=True)
        ]

    def results(self, rounding: Rounding) -> list[list[Array]]:
        """Return what outputs are with a rounding, sample by sample; in place of one of integers the reals it is chosen by."""
        prepared = self.program.prepare(rounding)
        if self.program.floats.has_unpacked:
            return self.program.run_together(prepared, self._samples)
        return in_order(lambda arrays: self.program.run(prepared, arrays), self._samples, numbers=self.program.numbers)

    def error(self, rounding: Rounding) -> float:
        """Return the error of the worst output, in shares of its power, on the few samples, of what rounds activations alone."""
        key = rounding.key
        if key not in self._effects:
            self._measure({key: rounding})
        return self._effects[key]

    def effects(self, rounding: Rounding, activations: Iterable[TensorId] | None = None) -> dict[TensorId, float]:
        """Return the error of the worst output, in shares of its power, that each activation's rounding makes alone."""
        names = rounding.activations if activations is None else activations
        return {name: effect for (name,), effect in self.group_effects(rounding, [(name,) for name in names]).items()}

    def group_effects(self, rounding: Rounding, groups: Iterable[_Group]) -> dict[_Group, float]:
        """Return the error of the worst output, in shares of its power, that rounding each group of activations alone makes."""
        every = [*groups]
        of_names = rounding.keys(name for group in every for name in group)
        keys = {group: frozenset(of_names[name] for name in group) for group in every}
        # Plans that are compared differ in few activations: what the others do is known.
        if unknown := {key: rounding.only(group) for group, key in keys.items() if key not in self._effects}:
            self._measure(unknown)
        return {group: self._effects[key] for group, key in keys.items()}

    def _measure(self, unknown: Mapping[frozenset[Hashable], Rounding]) -> None:
        """Note the effects of roundings, by their keys.

        Those that next to all of the error comes from are measured on all of the few samples, others on the first that tell.
        """
        every, rest = [*unknown.values()], self.few[len(self._first) :]
        seen = self._looked_at(every, self._first)
        errors = [score.error for score in _scores(seen, range(len(every)))]
        if most := _most_of(errors) if rest else []:
            more = self._looked_at([every[place] for place in most], rest)
            seen = [(powers, [found[place] for place in most]) for powers, found in seen] + more
            for place, score in zip(most, _scores(seen, range(len(most))), strict=True):
                errors[place] = score.error
        self._effects |= dict(zip(unknown, errors, strict=True))

    def layer_effects(self, rounding: Rounding, layers: Iterable[TensorId]) -> dict[TensorId, float]:
        """Return the error of the worst output, in shares of its power, that the constants of each layer make alone."""
        names = list(layers)
        scores = self.scores_of([rounding.only(layers=[name]) for name in names], few=True)
        return {name: score.error for name, score in zip(names, scores, strict=True)}

    def values(self, name: TensorId, rounding: Rounding = NOTHING) -> list[Array]:
        """Return what a tensor is with a rounding, on the few samples, in the source's layout."""
        prepared = self.program.prepare(rounding, [name])

        def value(sample: int) -> Array:
            return self.program.run(prepared, self._samples[sample], self._kept_floats(sample))[0]

        return in_order(value, self.few, numbers=self.program.numbers)

    def ends(self, names: Collection[TensorId], factors: Factors = NOTHING.factors) -> dict[TensorId, npt.NDArray[np.float32]]:
        """Return the least and the greatest value of tensors in the float model, divided by their factors: [samples, 2]."""
        prepared = self.program.prepare(NOTHING, names)

        def seen(arrays: Sequence[Array]) -> list[tuple[Any, Any]]:
            values = zip(names, self.program.run(prepared, arrays), strict=True)
            own = (value / factors[name] if name in factors else value for name, value in values)
            return [(each.min(), each.max()) for each in own]

        by_sample = in_order(seen, self._samples, numbers=self.program.numbers)
        return {name: np.array(ends, np.float32) for name, ends in zip(names, zip(*by_sample, strict=True), strict=True)}

    def _kept_floats(self, sample: int) -> Mapping[Var, Any] | None:
        """Return all that the float model has on a sample; None where that is too much to keep."""
        if sample not in self._keeps or self.program.floats.has_unpacked:
            return None
        if sample not in self._kept:
            self._kept[sample] = self.program.all_floats(self._samples[sample])
        return self._kept[sample]

    def _powers(self, floats: list[Array], found: list[Array] | None = None) -> list[float]:
        """Return the power of each output that counts, or of its error, on one sample; inf where that is not finite."""
        every = zip(error_powers(self._softmaxes, floats, found), self._counted, strict=True)
        powers = [each for each, counts in every if counts and each is not None]
        return [each if math.isfinite(each) else math.inf for each in powers]


def _scores(looks: Sequence[_Look], places: Iterable[int]) -> list[Score]:
    """Return the scores of the roundings at some places of what was seen of samples."""
    powers = np.mean([power for power, _ in looks], axis=0)
    by_rounding = ([found[place] for _, found in looks] for place in places)
    return [
        Score(errors=_in_shares(np.array([noise for noise, _ in found]), powers), agreement=_mean([same for _, same in found]))
        for found in by_rounding
    ]


def _most_of(errors: Sequence[float]) -> list[int]:
    """Return the places of the greatest errors, which next to all of their sum comes from."""
    order = sorted(range(len(errors)), key=lambda place: -errors[place])
    sums = np.cumsum([min(errors[place], 1.0) for place in order])
    return sorted(order[: int(np.searchsorted(sums, _MOST * sums[-1])) + 1]) if order else []


def _mean(shares: Sequence[float | None]) -> float | None:
    known = [each for each in shares if each is not None]
    return sum(known) / len(known) if known else None


def _in_shares(noise: npt.NDArray[np.float64], powers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return what [samples, outputs] are in shares of each output's power, as [outputs, samples]."""
    none = np.where(noise > 0, np.inf, 0.0)
    return np.where(powers > 0, noise / np.where(powers > 0, powers, 1.0), none).T


def score_of(model: Model, quantized: QuantizedModel, profile: Profile) -> Score | None:
    """Return how far outputs are off on the samples that a profile keeps; None without such, or where nothing can run it here."""
    samples = samples_of(model, profile)
    if not samples:
        return None
    try:
        simple = rotated(simplify(model, quantized.plan.folds)[0], quantized.plan.equalization.rotations)
        return Referee(RoundedProgram(simple, [quantized.plan], resolve_target(None)), samples).score(quantized.plan)
    except NotImplementedError:
        return None
