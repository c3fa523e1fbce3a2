"""The work of quantizing one model, as often as requests change. Each step is its own module; this is their order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from ..compiler.partition.pipeline import integer_claims
from ..errors import QuantizationError
from ..ir.graph.dataflow import DataflowView, static_shape
from ..ir.graph.model import Model, check_fingerprint
from ..ir.graph.rules import Claims
from ..ir.identity import TensorId
from ..numerics import quantize as quantize_values
from ..runtime.heap import trim_heap
from ..target import OpSupport, TargetDescription
from ..target.tensor_support import TensorSupport
from .adjustments import remedied, unused
from .applied_plan import AppliedPlan
from .constraints import Request, TensorConstraints
from .corrections import Corrector
from .equalization import Equalizer
from .equalization.scaling import check_factors, scaled
from .fingerprint import quantized_fingerprint
from .outliers import ranges_without_outliers
from .override import Override
from .parameters import ParameterChooser, Parameters, Statistics
from .placement import NamedOps, NamedOverrides, Placement, Placer, rejected_layers, split_enclosed
from .plan import Fold, IntegerLayer, QuantizationPlan, QuantizedModel
from .plan.corrections import Corrections
from .plan.equalization import Equalization, EqualizedStatistics
from .plan.nearness import Nearness
from .qdq import Emitted, QdqWriter, is_quantized
from .ranges import RangeSources
from .recipe import Recipe
from .rejections import Rejections
from .remedies import Remedies, float_without_loss
from .sample_runs import SampleRuns
from .simplify import simplify
from .tensor_choice import ParamsOf, TensorChoice, ask
from .weights.constants import Constants
from .weights.weight_params import WeightParameters
from .weights.widths import usual_width, widths


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Attempt:
    """A model as it was quantized once, with what it was made with, and how near its outputs came."""

    quantized: QuantizedModel
    corrections: Corrections
    remedies: Remedies
    nearness: Nearness

    @property
    def sqnr_db(self) -> float:
        """Of its worst output."""
        return self.nearness.sqnr_db


@dataclass(kw_only=True, slots=True, eq=False)
class Job:
    """One model on its way, as often as requests change."""

    model: Model
    profile: Statistics | None
    target: TargetDescription
    targets: tuple[TargetDescription, ...]
    recipe: Recipe
    vendors: tuple[str, ...] | None
    """Names of back ends that choose before the host; None: what the targets' integer ops take is not asked."""
    runs: SampleRuns | None
    """Without it nothing is corrected, evened out or looked for."""
    replay: AppliedPlan | None
    tunes: bool = False
    """Whether ranges are chosen by simulation wherever that brings the outputs nearer, not only where they are too far off."""
    attempt: int = 0
    """How many times a job like this found that what evens out channels does not leave the float model's results as they are."""
    requests: dict[str, Request] = field(init=False)
    corrections: Corrections = field(default_factory=Corrections)
    equalization: Equalization = field(default_factory=Equalization)
    remedies: Remedies = field(default_factory=Remedies)
    _float: Model = field(init=False)
    _simple: Model = field(init=False)
    _statistics: Statistics | None = field(init=False)
    _folds: tuple[Fold, ...] = field(init=False)
    _view: DataflowView = field(init=False)
    _sources: RangeSources = field(init=False)
    _overridden: dict[Var, Override] = field(default_factory=dict[Var, Override])
    """What overrides say of the activations that were placed last."""
    _refused: tuple[Any, Rejections] | None = None
    """What was refused last, and what decided it besides the numbers in weights."""
    _claimed: tuple[Any, Claims] | None = None
    """What the target's rules took last, and what decided it."""
    _exact_model: Model | None = None
    """`_exact`, once somebody asked for it."""

    def __post_init__(self) -> None:
        """Bring the model into the form that is quantized, and check what comes with it."""
        self._float, self._folds = simplify(self.model)
        self._equalized(self.equalization)
        if isinstance(self.model, QuantizedModel) or is_quantized(self._simple):
            raise QuantizationError(
                "the model is quantized already; compile it as it is, or quantize the float model it came from"
            )
        if self.replay is not None:
            self.replay.check_model(self.model.fingerprint)
            check_factors(self._float, self.replay.plan.equalization.factors)
            self._equalized(self.replay.plan.equalization)  # whose steps have names of their own
            names = {var.name for var in (*self._view.function.params, *(binding.var for binding in self._view.bindings))}
            self.replay.check(self._simple.tensors, names, [target.name for target in self.targets])
            self.recipe, self.requests = self.replay.plan.recipe, self.replay.requests()
            self.corrections = self.replay.plan.corrections
            return
        if self.profile is None:
            raise QuantizationError("quantize needs a profile of the model, which octavo.profile returns, or a plan")
        check_fingerprint(self.model, self.profile.fingerprint)
        resolved = self.recipe.resolved(_names(self._simple))
        self.requests = {name: Request(who="the recipe", tensor=entry) for name, entry in resolved.tensors.items()}
        self.remedies = Remedies(float_tensors={TensorId(name): "the recipe says so" for name in resolved.float_tensors})

    def _equalized(self, equalization: Equalization) -> None:
        """Take the float model with its channels scaled by equalization for the one that is quantized."""
        self.equalization, self._exact_model = equalization, None
        self._simple = scaled(self._float, equalization.factors, exact=False) if equalization else self._float
        self._statistics = self.profile
        if self.profile is not None and equalization:
            self._statistics = EqualizedStatistics(self.profile, equalization)
        self._view = DataflowView(self._simple.module["main"])
        self._sources = RangeSources(self._view, self.profile or ())
        trim_heap(self.model.constant_bytes)

    def equalize(self, equalizer: Equalizer) -> None:
        """Even out channels, but those of tensors of which the recipe says something."""
        found = equalizer(self._float, set(self.requests), usual_width(self.recipe), self.attempt)
        self.remedies = Remedies(float_tensors=found.uneven).with_more(self.remedies)
        self._equalized(found)

    def holds(self) -> bool:
        """Return whether the float model's results are what they were before channels were evened out; wait for that."""
        return self.runs is None or self.runs.equalizer is None or self.runs.equalizer.holds()

    def run_equalized(self) -> QuantizedModel:
        """Return the model in QDQ form, without factors that need a clip where integers don't saturate."""
        quantized = self.run()
        while self.keeps_clips_of(quantized):
            quantized = self.run()
        return quantized

    def keeps_clips_of(self, quantized: QuantizedModel) -> bool:
        """Return whether factors had to go, for integers of a tensor that is clipped don't saturate at each channel's bound."""
        bounds = self.equalization.clamps
        unbounded = [name for name, bound in bounds.items() if not _saturates(quantized.plan, name, bound)]
        if unbounded:
            before = self.equalization.factors
            self._equalized(self.equalization.without_sites_of(unbounded))
            gone = before.keys() - self.equalization.factors.keys()
            ranges = {name: ends for name, ends in self.remedies.ranges.items() if name not in gone}
            self.remedies, self.corrections = replace(self.remedies, ranges=ranges), Corrections()
        return bool(unbounded)

    def run(self) -> QuantizedModel:
        """Return the model in QDQ form."""
        placement, parameters, emitted, claims = self._decided()
        float_ops, enclosed = split_enclosed(placement.float_ops, claims)
        if self.replay is not None:
            self.replay.check_result(emitted.layers, float_ops, enclosed)
            float_ops = self.replay.with_reasons(float_ops)
        replay = self.replay
        adjustments = (*parameters.adjustments, *unused(self.requests, parameters, emitted), *remedied(self.remedies, parameters))
        plan = QuantizationPlan(
            fingerprint=self.model.fingerprint,
            recipe=replace(self.recipe, tensors={}, float_tensors=()),
            activations={TensorId(var.name): params for var, params in parameters.activations.items()},
            roundings=emitted.roundings,
            weights=parameters.weights,
            biases=emitted.biases,
            corrections=replace(self.corrections, bias_shifts=parameters.bias_shifts or self.corrections.bias_shifts),
            equalization=self.equalization,
            weight_values={**parameters.weight_values, **emitted.bias_values},
            layers=emitted.layers,
            float_ops=float_ops,
            enclosed=enclosed,
            folds=self._folds,
            adjustments=adjustments if replay is None else replay.adjustments(adjustments),
            shared=parameters.shared,
        )
        named = (*plan.activations, *plan.weights)
        plan = replace(plan, names={name: entry.source_name for name in named if (entry := self._simple.tensors.get(name))})
        trim_heap(self.model.constant_bytes)
        return QuantizedModel.of(replace(emitted.model, fingerprint=quantized_fingerprint(self.model, plan)), plan)

    @property
    def _exact(self) -> Model:
        """The float model, simplified and equalized: its variables are those that become integer."""
        if self._exact_model is None:
            self._exact_model = scaled(self._float, self.equalization.factors, exact=True) if self.equalization else self._float
        return self._exact_model

    def finished(self, params: ParamsOf | None) -> QuantizedModel:
        """Return the model with all that is wanted; a plan that is followed to the letter needs none of it."""
        runs = self.runs
        if self.replay is not None:
            quantized = self.run_equalized()
            return quantized if runs is None else self.corrected(quantized, runs)
        if runs is not None and runs.equalizer is not None and params is None and self.recipe.equalization != "none":
            self.equalize(runs.equalizer)
        quantized = self.run_equalized()
        if asked := self._asked_by_overrides():
            self.requests |= asked
            quantized = self.run_equalized()
        requests = {} if params is None else ask(params, self.choices(quantized.plan))
        if requests:
            self.requests |= requests
            quantized = self.run_equalized()
        if self.remedies.wide_activations:
            quantized = self.widened(quantized, tuple(self.remedies.wide_activations))
        if runs is not None and self.recipe.wide_activations:
            ranked = runs.ranked_by_effect(self._exact, quantized)
            quantized = self.widened(quantized, ranked, self.recipe.wide_activations)
        if runs is not None and (self.recipe.corrects or self.tunes):
            quantized = self.corrected(quantized, runs)
            while self.keeps_clips_of(quantized):
                quantized = self.corrected(self.run_equalized(), runs)
        return quantized

    def _asked_by_overrides(self) -> dict[str, Request]:
        """Return what overrides want of activations that were placed, where nothing that comes before them does."""
        asked = {var.name: entry for var, said in self._overridden.items() if (entry := said.activation) is not None}
        return {name: Request(who="an override", tensor=entry) for name, entry in asked.items() if name not in self.requests}

    def widened(self, quantized: QuantizedModel, names: Sequence[TensorId], most: int | None = None) -> QuantizedModel:
        """Return the model with some activations in 16 bits: of those that its targets take, all, or as many of the first."""
        layers = quantized.plan.layers
        narrow = {name for layer in layers if not self._takes_wide(layer) for name in (layer.output, *layer.inputs)}
        chosen = [name for name in names if name not in narrow and name not in self.requests][:most]
        before, wide = dict(self.requests), TensorSupport(dtypes=("int16",))
        who = "a remedy" if most is None else "wide_activations of the recipe"
        self.requests |= {str(name): Request(who=who, tensor=wide) for name in chosen}
        found = self.run_equalized()
        if len(found.plan.layers) >= len(layers):
            return found
        self.requests = before  # 16 bits that would leave an op float are none
        return quantized

    def _takes_wide(self, layer: IntegerLayer) -> bool:
        support = self._support(layer)
        return support is not None and "int16" in support.activations

    def _support(self, layer: IntegerLayer) -> OpSupport | None:
        return next((each for each in self.targets if each.name == layer.target), self.target).support(layer.op)

    def _with_functions(self, best: Attempt, corrector: Corrector, runs: SampleRuns) -> Attempt:
        """Return the model with functions in the kernels of products that cost much to round before, if it comes nearer so.

        Not where remedies are due: those leave as many as it takes.
        """
        if self.recipe.min_sqnr is None or best.sqnr_db < self.recipe.min_sqnr:
            return best
        self.corrections = Corrections()
        found = self._fused(best.quantized, runs)
        if found is best.quantized:
            return self._resumed(best)
        return self._nearer(self._corrected(found, corrector), best)

    def _fused(self, quantized: QuantizedModel, runs: SampleRuns) -> QuantizedModel:
        """Return the model with some functions in the kernels of the products that they read, which need not be rounded then.

        Where an op would become float for it, what that reads stays rounded.
        """
        named, before = {str(var.name) for var in self._overridden} | set(self.requests), self.remedies
        supports = {layer.output: self._support(layer) for layer in quantized.plan.layers if layer.output not in named}
        able = [name for name, support in supports.items() if support is not None and support.float_function]
        chosen = runs.fused_functions(self._exact, quantized, able) if able else {}

        def made(remedies: Remedies) -> QuantizedModel:
            self.remedies = remedies
            return self.run()

        found = float_without_loss(chosen, before, quantized.plan, made, lambda model: model.plan)
        self.remedies, fused = found or (before, quantized)
        return fused

    def corrected(self, quantized: QuantizedModel, runs: SampleRuns) -> QuantizedModel:
        """Return the model with what running it tells, and with remedies where its outputs are too far off.

        What corrections make of large errors says nothing of their cause: remedies are first found without them, then with what
        corrections leave of the errors.
        """
        corrector = runs.corrector(self._exact)
        best = self._corrected(quantized, corrector)
        if not self.holds():
            return best.quantized
        if self.replay is not None:
            best = self._without_outliers(best, corrector)
        else:
            best = self._with_functions(best, corrector, runs)
            is_close = self._is_close(best)
            if not is_close:
                best = self._without_outliers(best, corrector)
            found = self._with_remedies(best, quantized, corrector, runs)
            best = self._without_outliers(best, corrector) if found is best and is_close else found
        plan = best.quantized.plan
        return replace(best.quantized, plan=replace(plan, corrections=replace(plan.corrections, nearness=best.nearness)))

    def _with_remedies(self, best: Attempt, uncorrected: QuantizedModel, corrector: Corrector, runs: SampleRuns) -> Attempt:
        """Return the model with remedies, where its outputs are too far off or ranges are tuned, if it comes nearer so.

        Ranges are tuned once, too, where outputs are little better than they must be: other samples may have less.
        """
        exact, goal, is_close = self._exact, self.recipe.min_sqnr, self._is_close(best)
        for number in range(_ROUNDS):
            is_near = goal is None or best.sqnr_db >= goal
            if is_near and not (self.tunes or (is_close and not number)):
                break
            if not number:
                self.corrections = Corrections()
            # What simulation leaves out made the round before fall short: the next asks for as much more.
            if goal is None or is_near:
                wanted = math.inf if goal is None or not is_close else goal + _LEEWAY_DB
            else:
                wanted = goal + (goal - best.sqnr_db if number else 0.0)
            start, known = best.quantized if number else uncorrected, best.remedies

            def replan(more: Remedies, known: Remedies = known) -> QuantizationPlan:
                self.remedies = known.with_more(more)
                return self.run().plan

            more = runs.remedies(exact, start, wanted, replan, only_ranges=is_near)
            before, self.remedies, self.corrections = best, best.remedies.with_more(more), Corrections()
            if self.remedies != best.remedies:
                best = self._nearer(self._remedied(corrector, best.sqnr_db), best)
            self._resumed(best)
            if (number and best is before) or before.sqnr_db < best.sqnr_db < before.sqnr_db + _WORTH_DB:
                break
        return best

    def _is_close(self, attempt: Attempt) -> bool:
        """Return whether outputs are as near as they must be, but little nearer, with ranges as they were observed."""
        goal = self.recipe.min_sqnr
        return (
            goal is not None and self.recipe.has_plain_ranges and not self.tunes and goal <= attempt.sqnr_db < goal + _LEEWAY_DB
        )

    def _without_outliers(self, best: Attempt, corrector: Corrector) -> Attempt:
        """Return the model with narrower ranges where outliers of single samples make them, if it comes nearer so.

        Not where remedies are due, or ranges were tuned: those look at each range.
        """
        if self.recipe.range_estimator != _WIDEST or not (self.recipe.min_sqnr or 0.0) <= best.sqnr_db < _NEAR_DB:
            return best
        named = {str(var.name) for var in self._overridden} | set(self.requests)
        ranges = ranges_without_outliers(each for each in self.choices(best.quantized.plan).values() if each.id not in named)
        if not ranges:
            return best
        self.remedies, self.corrections = Remedies(ranges=ranges).with_more(best.remedies), Corrections()
        found = self._without_shifts(self._corrected(self.run(), corrector), corrector)
        return found if found.sqnr_db >= best.sqnr_db + _WORTH_DB else self._resumed(best)

    def _without_shifts(self, best: Attempt, corrector: Corrector) -> Attempt:
        """Return a model whose ranges clip with its biases as they were, if it comes nearer so.

        They were corrected without clipping, which moves the means that they are to keep.
        """
        if not best.corrections.bias_shifts:
            return best
        self.corrections = replace(best.corrections, bias_shifts={})
        found = self.run()
        return self._nearer(self._attempt(found, corrector.nearness(found)), best)

    def _corrected(self, quantized: QuantizedModel, corrector: Corrector, *, has_own_ranges: bool = False) -> Attempt:
        """Return the model with what running it tells."""
        unclipped = self._unclipped(quantized, has_own_ranges=has_own_ranges)
        self.corrections = corrector.corrections(unclipped, self.requests)
        found = self.run() if self.corrections else quantized
        is_measured = unclipped is quantized and bool(self.corrections)
        return self._attempt(found, self.corrections.nearness if is_measured else corrector.nearness(found))

    def _remedied(self, corrector: Corrector, least_db: float) -> Attempt:
        """Return the model with remedies, corrected with the ranges that they chose, or with observed ones."""
        quantized = self.run()
        found = self._corrected(quantized, corrector, has_own_ranges=True)
        if found.sqnr_db > least_db or not self.remedies.ranges:
            return found
        self.corrections = Corrections()
        return self._corrected(quantized, corrector)

    def _attempt(self, quantized: QuantizedModel, nearness: Nearness) -> Attempt:
        return Attempt(quantized=quantized, corrections=self.corrections, remedies=self.remedies, nearness=nearness)

    def _nearer(self, found: Attempt, best: Attempt) -> Attempt:
        """Return what was found last if it is nearer to the float model than the best, else the best; go on with it."""
        return found if found.sqnr_db > best.sqnr_db else self._resumed(best)

    def _resumed(self, attempt: Attempt) -> Attempt:
        """Return an attempt; what is made next starts with what it was made with."""
        self.corrections, self.remedies = attempt.corrections, attempt.remedies
        return attempt

    def _unclipped(self, quantized: QuantizedModel, *, has_own_ranges: bool) -> QuantizedModel:
        """Return the model with ranges that hold all that was observed.

        Clipping moves means, too: by what outliers are beyond the range. A bias that made up for it would move all other values.
        Ranges that remedies chose may stay: they are the best with that in the biases, as they were tried.
        """
        if self.recipe.has_plain_ranges and (has_own_ranges or not self.remedies.ranges):
            return quantized
        recipe, self.recipe = self.recipe, self.recipe.with_ranges(_WIDEST)
        remedies = self.remedies
        if not has_own_ranges:
            self.remedies = replace(remedies, ranges={})
        try:
            return self.run()
        finally:
            self.recipe, self.remedies = recipe, remedies

    def _decided(self) -> tuple[Placement, Parameters, Emitted, Claims | None]:
        """Place, choose and write until the target's integer ops take all that was placed."""
        simple, view, recipe, replay = self._simple, self._view, self.recipe, self.replay
        constants = Constants(view, simple.params)
        exclusion = NamedOps(recipe.exclude, simple.tensors, self._folds, view)
        overrides = NamedOverrides(recipe.overrides, simple.tensors, self._folds, view)
        weights_of = self._weights_of(constants, overrides)
        rejections = self._known_rejections()
        while True:
            weights = weights_of()
            constraints = TensorConstraints(target=self.target, recipe=recipe, requests=self.requests)
            chooser = ParameterChooser(
                params=simple.params,
                statistics=self._statistics,
                recipe=recipe,
                target=self.target,
                requests=self.requests,
                sources=self._sources,
                weights=weights,
                overrides=overrides,
                corrections=self.corrections,
                remedies=self.remedies,
            )
            placer = Placer(
                view=view,
                constants=constants,
                tensors=simple.tensors,
                exclusion=exclusion,
                overrides=overrides,
                targets=self.targets,
                recipe=recipe,
                preferred=constraints.preferred,
                has_range=chooser.has_range if replay is None else replay.has_range,
                refuse=rejections.beside(weights, constraints),
                requested={
                    name: request.width for name, request in self.requests.items() if replay is None or replay.insists(name)
                },
                float_tensors=self.remedies.float_tensors,
                declined=rejections.declined,
                unlike_plan=None if replay is None or replay.lets_go else replay.unlike_plan,
            )
            placement = placer.place()
            if rejections.take_changes():
                continue
            if replay is not None:
                replay.check_layers(placement)
            parameters = chooser.choose(placement)
            if rejections.reject(placement, parameters.rejected):
                continue
            roundings = {} if replay is None else replay.plan.roundings
            writer = QdqWriter(
                model=simple,
                target=self.target,
                view=view,
                placement=placement,
                parameters=parameters,
                planned_roundings=roundings,
            )
            emitted = writer.write()
            claims = self._claims(placement, parameters, emitted)
            if not rejections.reject(placement, {} if claims is None else rejected_layers(placement, claims)):
                self._overridden = overrides.of_activations(placement.layers)
                return placement, parameters, emitted, claims

    def _claims(self, placement: Placement, parameters: Parameters, emitted: Emitted) -> Claims | None:
        """Return what the target's rules take of a model; that of before where integers alone are others."""
        if self.vendors is None:
            return None
        layers = [(layer.output, layer.taker) for layer in placement.layers]
        asked = (self._view, layers, parameters.activations, parameters.weights, parameters.biases, emitted.roundings)
        if self._claimed is None or self._claimed[0] != asked:
            self._claimed = (asked, integer_claims(emitted.model.bound(), *self.targets, vendors=self.vendors))
        return self._claimed[1]

    def _known_rejections(self) -> Rejections:
        """Return what was refused before, where only weights or ranges are others: to find that again takes half of the time."""
        wanted = (self._view, dict(self.requests), dict(self.remedies.float_tensors), self.recipe.exclude)
        is_again = self._refused is not None and self._refused[0] == wanted
        rejections = self._refused[1].again() if self._refused and is_again else Rejections(last=self.targets[-1].name)
        self._refused = (wanted, rejections)
        return rejections

    def _weights_of(self, constants: Constants, overrides: NamedOverrides) -> Callable[[], WeightParameters]:
        """Return what makes a chooser of weights that has seen no layer yet."""
        bits_of = widths(
            self.recipe,
            self._simple,
            self._folds,
            self._view,
            self.remedies.wide_weights,
            lambda layer: overrides.of_layer(layer).weight_bits,
        )
        return lambda: WeightParameters(
            constants=constants,
            params=self._simple.params,
            recipe=self.recipe,
            requests=self.requests,
            bits_of=bits_of,
            scales=self.corrections.weight_scales,
            granularity_of=lambda layer: overrides.of_layer(layer).weight_granularity,
        )

    def choices(self, plan: QuantizationPlan) -> dict[TensorId, TensorChoice]:
        """Return what a callback is asked: each activation and weight of a plan, in the order of the graph."""
        variables = {var.name: var for var in (*self._view.function.params, *(binding.var for binding in self._view.bindings))}
        profile = self._statistics

        def choice(name: TensorId) -> TensorChoice:
            var, value = variables[name], self._simple.params.get(name)
            entry = self._simple.tensors.get(name)
            source = self._sources.source(var) if value is None or value is self.model.params.get(name) else None
            return TensorChoice(
                id=name,
                name="" if entry is None else entry.source_name,
                op="" if entry is None else entry.op,
                kind="weight" if value is not None else "input" if name in self.model.input_ids else "activation",
                shape=static_shape(var) or (),
                params=plan.activations[name] if value is None else plan.weights[name],
                read_statistics=lambda: None if profile is None or source is None else profile[source],
                read_values=lambda: value,
            )

        return {name: choice(name) for name in (*plan.activations, *plan.weights)}


_WIDEST = "min_max"
_NEAR_DB = 30.0
"""Outputs as near as that have little to gain from narrower ranges."""
_LEEWAY_DB = 3.0
"""Outputs with less than that above what they must have are little better."""
_ROUNDS = 3
"""Of remedies: each finds what the one before it made visible."""
_WORTH_DB = 1.0
"""A round that brings less is the last; narrower ranges that do are left."""


def _saturates(plan: QuantizationPlan, name: TensorId, bounds: npt.NDArray[np.float32]) -> bool:
    """Return whether integers of a tensor saturate at or below the bound of each channel; False where it is not quantized."""
    params = plan.activations.get(name)
    return params is not None and int(quantize_values(bounds, params).min()) >= params.qmax


def _names(model: Model) -> dict[str, str]:
    """Map the names that tensors have in their source, and their ids, to the ids."""
    return {
        **{entry.source_name: str(name) for name, entry in model.tensors.items()},
        **{str(name): str(name) for name in model.tensors},
    }
