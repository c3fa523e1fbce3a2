"""The stage: a float model and its profile become a model in QDQ form. Each step is its own module; this is their order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import tvm

from ..errors import QuantizationError
from ..graph.dataflow import DataflowView, op_name, static_shape
from ..graph.lineage import announce, one_step
from ..graph.model import Model, check_fingerprint
from ..graph.rules import Claims
from ..graph.tracking import Announced
from ..identity import TensorId
from ..target import CPU, TargetDescription
from .choice import ParamsOf, TensorChoice, ask
from .constraints import TensorConstraints, Wish, Wishes
from .corrections import Corrections
from .parameters import ParameterChooser, Parameters, Statistics
from .placement import Layer, NamedOps, Placement, Placer, rejected_layers, split_enclosed
from .plan import Adjustment, Fold, QuantizationPlan, QuantizedModel
from .qdq import Emitted, QdqWriter
from .ranges import RangeSources
from .recipe import ANY, WEIGHT_BITS, Recipe
from .refusals import Refusals
from .replay import Replay
from .simplify import simplify
from .weights.constants import Constants
from .weights.weight_params import WeightParameters

Correct = Callable[[Model, QuantizedModel], Corrections]
"""Says how to correct a quantized model; it is given the float model that was simplified for it, too."""

ClaimsOf = Callable[[tvm.IRModule], Claims]
"""Says what is one integer op of a QDQ module with bound constants, as compiling finds it later."""


def quantize(
    model: Model,
    profile: Statistics | None = None,
    *,
    target: TargetDescription = CPU,
    targets: Sequence[TargetDescription] = (),
    recipe: Recipe | None = None,
    params: ParamsOf | None = None,
    plan: QuantizationPlan | None = None,
    claims_of: ClaimsOf | None = None,
    correct: Correct | None = None,
) -> QuantizedModel:
    """Quantize a float model, by a profile or by a plan.

    Parameters
    ----------
    model
        As it was imported.
    profile
        Of this model.
    target
        What the hardware can do; decides which ops become integer.
    targets
        Where several share the model, `target` being all of them: each op goes to the first that takes it, and obeys that one.
    recipe
        The user's wishes; Recipe() by default.
    params
        Asked for each tensor's parameters once all are chosen; what it returns is obeyed like `Recipe.tensors`.
    plan
        Layers, parameters and roundings that are taken as they are, in place of profile, recipe and params.
    claims_of
        The target's integer ops. What they don't take gets no Q and DQ; without it, the target's description alone decides.
    correct
        Runs a quantized model and says what is to be corrected; without it nothing is.

    Returns
    -------
    QuantizedModel
        In QDQ form (see qdq.py), with its plan and a fingerprint of its own.

    Raises
    ------
    ProfileError
        If the profile belongs to another model.
    QuantizationError
        If the model is quantized already, the recipe excludes what the model doesn't have, or the plan is of another model or
        asks for what the target cannot take.
    """
    with one_step():
        job = _Job(
            model=model,
            profile=profile,
            target=target,
            targets=tuple(targets) or (target,),
            recipe=recipe or Recipe(),
            claims_of=claims_of,
            replay=None if plan is None else Replay(plan=plan),
        )
        quantized = job.run()
        wishes = {} if params is None else ask(params, job.choices(quantized.plan))
        if wishes:
            job.wishes |= wishes
            quantized = job.run()
        if correct is not None and plan is None and job.recipe.corrects:
            job.corrections = correct(job.simple, job.unclipped(quantized))
            quantized = job.run() if job.corrections else quantized
    announce("octavo.quantize", quantized.bound, {}, _announced(quantized))
    return quantized


@dataclass(kw_only=True, slots=True, eq=False)
class _Job:
    """One model on its way, as often as wishes change."""

    model: Model
    profile: Statistics | None
    target: TargetDescription
    targets: tuple[TargetDescription, ...]
    recipe: Recipe
    claims_of: ClaimsOf | None
    replay: Replay | None
    wishes: dict[str, Wish] = field(init=False)
    corrections: Corrections = field(default_factory=Corrections)
    _simple: Model = field(init=False)
    _folds: tuple[Fold, ...] = field(init=False)
    _view: DataflowView = field(init=False)
    _sources: RangeSources = field(init=False)

    def __post_init__(self) -> None:
        """Bring the model into the form that is quantized, and check what comes with it."""
        self._simple, self._folds = simplify(self.model)
        if isinstance(self.model, QuantizedModel) or _is_quantized(self._simple):
            raise QuantizationError(
                "the model is quantized already; compile it as it is, or quantize the float model it came from"
            )
        self._view = DataflowView(self._simple.module["main"])
        self._sources = RangeSources(self._view, self.profile or ())
        if self.replay is not None:
            names = {var.name for var in (*self._view.function.params, *(binding.var for binding in self._view.bindings))}
            targets = [target.name for target in self.targets]
            self.replay.check(self.model.fingerprint, self._simple.tensors, names, targets)
            self.recipe, self.wishes = self.replay.plan.recipe, self.replay.wishes()
            self.corrections = self.replay.plan.corrections
            return
        if self.profile is None:
            raise QuantizationError("quantize needs a profile of the model, which octavo.profile returns, or a plan")
        check_fingerprint(self.model, self.profile.fingerprint)
        resolved = self.recipe.resolved(_names(self._simple))
        self.wishes = {name: Wish(who="the recipe", tensor=entry) for name, entry in resolved.tensors.items()}

    def run(self) -> QuantizedModel:
        """Return the model in QDQ form."""
        placement, parameters, emitted, claims = self._decided()
        float_ops, enclosed = split_enclosed(placement.float_ops, claims)
        if self.replay is not None:
            self.replay.check_result(emitted.layers, float_ops, enclosed)
            float_ops = self.replay.with_reasons(float_ops)
        replay, adjustments = self.replay, (*parameters.adjustments, *_unused(self.wishes, parameters, emitted))
        plan = QuantizationPlan(
            fingerprint=self.model.fingerprint,
            recipe=replace(self.recipe, tensors={}),
            activations={TensorId(var.name): params for var, params in parameters.activations.items()},
            roundings=emitted.roundings,
            weights=parameters.weights,
            biases=emitted.biases,
            corrections=self.corrections,
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
        return QuantizedModel.of(replace(emitted.model, fingerprint=_fingerprint(self.model, plan)), plan)

    @property
    def simple(self) -> Model:
        """The float model, simplified: its variables are those that become integer."""
        return self._simple

    def unclipped(self, quantized: QuantizedModel) -> QuantizedModel:
        """Return the model with ranges that hold all that was observed.

        Clipping moves means, too: by what outliers are beyond the range. A bias that made up for it would move all other values.
        """
        if self.recipe.range_estimator == _WIDEST:
            return quantized
        recipe, self.recipe = self.recipe, replace(self.recipe, range_estimator=_WIDEST)
        try:
            return self.run()
        finally:
            self.recipe = recipe

    def _decided(self) -> tuple[Placement, Parameters, Emitted, Claims | None]:
        """Place, choose and write until the target's integer ops take all that was placed."""
        simple, view, recipe, replay = self._simple, self._view, self.recipe, self.replay
        constants = Constants(view, simple.params)
        exclusion = NamedOps(recipe.exclude, simple.tensors, self._folds, view)
        bits_of = self._bits_of()
        refusals = Refusals(last=self.targets[-1].name)
        while True:
            weights = WeightParameters(
                constants=constants, params=simple.params, recipe=recipe, wishes=self.wishes, bits_of=bits_of
            )
            constraints = TensorConstraints(target=self.target, recipe=recipe, wishes=self.wishes)
            chooser = ParameterChooser(
                params=simple.params,
                statistics=self.profile,
                recipe=recipe,
                target=self.target,
                wishes=self.wishes,
                sources=self._sources,
                weights=weights,
                corrections=self.corrections,
            )
            placer = Placer(
                view=view,
                constants=constants,
                tensors=simple.tensors,
                exclusion=exclusion,
                targets=self.targets,
                recipe=recipe,
                preferred=constraints.preferred,
                has_range=chooser.has_range if replay is None else replay.has_range,
                refuse=partial(refusals.refuse, weights, constraints),
                declined=refusals.declined,
                unlike_plan=None if replay is None else replay.unlike_plan,
            )
            placement = placer.place()
            if refusals.take_changes():
                continue
            if replay is not None:
                replay.check_layers(placement)
            parameters = chooser.choose(placement)
            if refusals.reject(placement, parameters.rejected):
                continue
            roundings = {} if replay is None else replay.plan.roundings
            writer = QdqWriter(
                model=simple,
                target=self.target,
                view=view,
                placement=placement,
                parameters=parameters,
                wished_roundings=roundings,
            )
            emitted = writer.write()
            claims = None if self.claims_of is None else self.claims_of(emitted.model.bound())
            if not refusals.reject(placement, {} if claims is None else rejected_layers(placement, claims)):
                return placement, parameters, emitted, claims

    def _bits_of(self) -> Callable[[Layer], int]:
        """Return what says the width of a layer's weights."""
        bits = self.recipe.weight_bits
        if not isinstance(bits, Mapping):
            return lambda layer: bits
        names = [name for name in bits if name != ANY]
        named = NamedOps(names, self._simple.tensors, self._folds, self._view, field="weight_bits")
        rest = bits.get(ANY, WEIGHT_BITS)

        def bits_of(layer: Layer) -> int:
            name = named.hit(layer.support.op, [var.name for var in layer.members])
            return rest if name is None else bits[name]

        return bits_of

    def choices(self, plan: QuantizationPlan) -> dict[TensorId, TensorChoice]:
        """Return what a callback is asked: each activation and weight of a plan, in the order of the graph."""
        variables = {var.name: var for var in (*self._view.function.params, *(binding.var for binding in self._view.bindings))}
        profile = self.profile

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


def _names(model: Model) -> dict[str, str]:
    """Map the names that tensors have in their source, and their ids, to the ids."""
    return {
        **{entry.source_name: str(name) for name, entry in model.tensors.items()},
        **{str(name): str(name) for name in model.tensors},
    }


def _unused(wishes: Wishes, parameters: Parameters, emitted: Emitted) -> Iterator[Adjustment]:
    """Yield the tensors of which something is wished and that no integer op reads or makes."""
    used = {var.name for var in parameters.activations} | set(parameters.weights)
    for name, wish in wishes.items():
        if name in emitted.biases:
            message = f"{wish.who} says what it must be, and a bias has the scale of its input times that of its weight"
            yield Adjustment(tensor=TensorId(name), message=message)
        elif name not in used:
            message = f"{wish.who} says what it must be, and no integer op reads or makes it: see why its ops stay float"
            yield Adjustment(tensor=TensorId(name), message=message)


def _announced(quantized: QuantizedModel) -> Announced:
    """Return what holds each tensor: the variable of its name, whose values are those of integers now."""
    view = DataflowView(quantized.module["main"])
    names = {var.name for var in (*view.function.params, *(binding.var for binding in view.bindings))}
    gone = {str(fold.gone): f"{fold.op} is folded: {fold.tensor} is computed without it" for fold in quantized.plan.folds}
    holders = {str(tensor): str(tensor) for tensor in quantized.tensors if tensor in names and tensor not in gone}
    return Announced(holders=holders, fused_into={}, gone=gone)


def _is_quantized(model: Model) -> bool:
    view = DataflowView(model.module["main"])
    return any(op_name(binding.value) in ("quantize", "dequantize") for binding in view.bindings)


def _fingerprint(model: Model, plan: QuantizationPlan) -> str:
    """Return the fingerprint of a quantized model: of the float model, the parameters, and which ops they make integer."""
    content = {
        "model": model.fingerprint,
        "activations": {str(key): value.to_json() for key, value in plan.activations.items()},
        "weights": {str(key): value.to_json() for key, value in plan.weights.items()},
        "biases": {str(key): value.to_json() for key, value in plan.biases.items()},
        "bias_shifts": {str(key): value.tolist() for key, value in plan.corrections.bias_shifts.items()},
        "weight_values": {
            str(key): hashlib.sha256(value.tobytes()).hexdigest() for key, value in plan.corrections.weight_values.items()
        },
        "roundings": {str(key): value for key, value in plan.roundings.items()},
        "layers": [str(layer) for layer in plan.layers],
    }
    return f"sha256:{hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}"
