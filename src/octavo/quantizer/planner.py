"""What choices make of a float model: ops are placed, parameters chosen, Q and DQ written. The same choices, the same bytes.

It chooses nothing that steps choose, and runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from ..compiler.partition.pipeline import integer_claims
from ..compiler.target_choice import ResolvedTarget
from ..errors import QuantizationError
from ..ir.graph.model import Model, check_fingerprint
from ..ir.graph.rules import Claims
from ..ir.identity import TensorId
from ..ir.simplify import Fold
from ..runtime.heap import trim_heap
from ..target import OpSupport, TargetDescription
from .adjustments import chosen_otherwise, per_row_or_not, unused
from .applied_plan import AppliedPlan, PlannedLayers
from .choices import Choices
from .constraints import TensorConstraints
from .equalization.rotating import rotated
from .equalization.rotations import check_rotations
from .equalization.scaling import check_factors
from .equalized_float import EqualizedFloat
from .fingerprint import quantized_fingerprint
from .override import Override
from .parameters import ParameterChooser, Parameters
from .placement import Placement, Placer, PlanInputs
from .plan import IntegerLayer, QuantizationPlan, QuantizedModel
from .plan.equalization import Equalization
from .qdq import Emitted, QdqWriter, is_quantized
from .ranges import Statistics
from .recipe import Recipe
from .rejections import Rejections, rejected_layers, split_enclosed
from .request import Request
from .tensor_choice import TensorChoice, tensor_choices
from .weights.weight_params import WeightParameters
from .weights.widths import WeightWidths

FoundT = TypeVar("FoundT")
_WIDE = 16
"""Bits of what is no usual activation."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Planned:
    """A model as some choices make it.

    Parameters
    ----------
    overridden
        What overrides say of activations that integer ops read or make.
    """

    choices: Choices
    quantized: QuantizedModel
    overridden: Mapping[str, Override]

    @property
    def plan(self) -> QuantizationPlan:
        """The model's."""
        return self.quantized.plan

    @property
    def named(self) -> set[str]:
        """The tensors of which somebody says what they must be."""
        return {*self.overridden, *self.choices.asked}


@dataclass(slots=True, eq=False)
class Last(Generic[FoundT]):
    """What was found last, and what decided it: to find it again takes most of the time. It changes no result."""

    _known: tuple[Any, FoundT] | None = None

    def find(self, decided_by: object, find: Callable[[], FoundT]) -> FoundT:
        """Return what was found for the same, else what is found now."""
        if self._known is None or self._known[0] != decided_by:
            self._known = decided_by, find()
        return self._known[1]


@dataclass(frozen=True, kw_only=True, eq=False)
class Planner:
    """Makes quantized models of one float model; see `quantize_graph` for what it is given.

    Parameters
    ----------
    simplified
        The model as it is quantized, but for factors of channels, and what was folded.
    profile
        None where a plan is applied.
    recipe
        That of the plan which is applied, where one is.
    last_form, last_rejections, last_claims
        What planning with similar choices found.
    """

    model: Model
    simplified: tuple[Model, tuple[Fold, ...]]
    profile: Statistics | None
    chosen: TargetDescription | ResolvedTarget
    recipe: Recipe
    applied: AppliedPlan | None
    last_form: Last[EqualizedFloat] = field(default_factory=Last[EqualizedFloat])
    last_rejections: Last[Rejections] = field(default_factory=Last[Rejections])
    last_claims: Last[Claims] = field(default_factory=Last[Claims])

    def __post_init__(self) -> None:
        """Check what comes with the model."""
        if isinstance(self.model, QuantizedModel) or is_quantized(self.simple):
            raise QuantizationError(
                "the model is quantized already; compile it as it is, or quantize the float model it came from"
            )
        if self.applied is not None:
            self.applied.check_model(self.model.fingerprint)
            check_rotations(self.simple, self.applied.plan.equalization.rotations)
            check_factors(rotated(self.simple, self.applied.plan.equalization.rotations), self.applied.plan.equalization.factors)
            form = self.form(self.applied.plan.equalization)  # whose steps have names of their own
            self.applied.check(form.model.tensors, form.variables, [each.name for each in self.targets])
        elif self.profile is None:
            raise QuantizationError("quantize needs a profile of the model, which octavo.profile returns, or a plan")
        else:
            check_fingerprint(self.model, self.profile.fingerprint)

    @property
    def simple(self) -> Model:
        """The model as it is quantized, but for factors of channels."""
        return self.simplified[0]

    @property
    def target(self) -> TargetDescription:
        """Who takes what targets share."""
        return self.chosen if isinstance(self.chosen, TargetDescription) else self.chosen.description

    @property
    def targets(self) -> tuple[TargetDescription, ...]:
        """Who may take an op, in the order in which they choose."""
        return (() if isinstance(self.chosen, TargetDescription) else self.chosen.described) or (self.target,)

    @property
    def vendors(self) -> tuple[str, ...] | None:
        """Names of back ends that choose before the host; None: what the targets' integer ops take is not asked."""
        if isinstance(self.chosen, TargetDescription):
            return None
        return tuple(backend.description.name for backend in self.chosen.backends if backend.has_own_code)

    @property
    def first_choices(self) -> Choices:
        """What recipe or plan say, before anything is tried."""
        if self.applied is not None:
            return self.applied.choices
        resolved = self.recipe.resolved(_names(self.simple))
        return Choices(
            requests={name: Request(who="the recipe", tensor=entry) for name, entry in resolved.tensors.items()},
            float_tensors={TensorId(name): "the recipe says so" for name in resolved.float_tensors},
        )

    def form(self, equalization: Equalization) -> EqualizedFloat:
        """Return the float model with its channels divided."""

        def find() -> EqualizedFloat:
            simple, folds = rotated(self.simple, equalization.rotations), self.simplified[1]
            found = EqualizedFloat(simple=simple, folds=folds, equalization=equalization, profile=self.profile)
            _ = found.model  # what making it leaves behind goes now
            trim_heap(self.model.constant_bytes)
            return found

        # Equal factors may come with statistics of other samples.
        statistics = (*equalization.statistics.values(), *equalization.rotated.values())
        return self.last_form.find((equalization, [*map(id, statistics)]), find)

    def planned(self, choices: Choices) -> Planned:
        """Return the model in QDQ form."""
        inputs = PlanInputs(
            form=self.form(choices.equalization),
            recipe=self.recipe if choices.range_estimator is None else self.recipe.with_ranges(choices.range_estimator),
            choices=choices,
            target=self.target,
            targets=self.targets,
        )
        quantized, overridden = _Planning(planner=self, inputs=inputs, widths=WeightWidths(inputs=inputs)).run()
        return Planned(choices=choices, quantized=quantized, overridden=overridden)

    def tensor_choices(self, planned: Planned) -> dict[TensorId, TensorChoice]:
        """Return each activation and weight of a planned model, in the order of the graph."""
        return tensor_choices(self.model, self.form(planned.choices.equalization), planned.plan)

    def support(self, layer: IntegerLayer) -> OpSupport | None:
        """Return what the target of a layer says of its op."""
        return next((each for each in self.targets if each.name == layer.target), self.target).support(layer.op)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Planning:
    """One model by some choices."""

    planner: Planner
    inputs: PlanInputs
    widths: WeightWidths

    def run(self) -> tuple[QuantizedModel, dict[str, Override]]:
        """Return the model, and what overrides say of its activations."""
        planner, inputs, applied = self.planner, self.inputs, self.planner.applied
        choices, tensors = inputs.choices, inputs.tensors
        placement, parameters, emitted, claims = self._decided()
        float_ops, enclosed = split_enclosed(placement.float_ops, claims)
        adjustments = (
            *parameters.adjustments,
            *unused(inputs, parameters, emitted),
            *chosen_otherwise(inputs, parameters),
            *(() if applied is not None else per_row_or_not(inputs, emitted)),
            *(() if applied is not None else self.widths.adjustments(placement.layers)),
        )
        activations = {TensorId(var.name): params for var, params in parameters.activations.items()}
        named = (*activations, *parameters.weights)
        plan = QuantizationPlan(
            fingerprint=planner.model.fingerprint,
            recipe=replace(inputs.recipe, tensors={}, float_tensors=()),
            names={name: entry.source_name for name in named if (entry := tensors.get(name))},
            activations=activations,
            roundings=emitted.roundings,
            weights=parameters.weights,
            biases=emitted.biases,
            corrections=replace(choices.corrections, bias_shifts=parameters.bias_shifts),
            equalization=choices.equalization,
            weight_values={**parameters.weight_values, **emitted.bias_values},
            layers=emitted.layers,
            float_ops=float_ops,
            enclosed=enclosed,
            folds=inputs.form.folds,
            adjustments=adjustments,
            shared=parameters.shared,
        )
        plan = plan if applied is None else applied.confirmed(plan)
        trim_heap(planner.model.constant_bytes)
        fingerprint = quantized_fingerprint(planner.model, plan)
        overridden = {str(var.name): said for var, said in inputs.overrides.of_activations(placement.layers).items()}
        return QuantizedModel.of(replace(emitted.model, fingerprint=fingerprint), plan), overridden

    def _decided(self) -> tuple[Placement, Parameters, Emitted, Claims | None]:
        """Place, choose and write until the target's integer ops take all that was placed."""
        inputs, applied, rejections = self.inputs, self.planner.applied, self._rejections()
        while True:
            weights = WeightParameters(inputs=inputs, widths=self.widths)
            if rejections.placement is None:
                placement = self._placed(rejections, weights)
                if rejections.take_changes():
                    continue
                rejections.placement = placement
            placement = rejections.placement
            parameters = ParameterChooser(inputs=inputs, weights=weights).choose(placement)
            if rejections.reject(placement, parameters.rejected):
                continue
            roundings = {} if applied is None else applied.plan.roundings
            emitted = QdqWriter(inputs=inputs, placement=placement, parameters=parameters, planned_roundings=roundings).write()
            claims = self._claims(placement, parameters, emitted)
            if not rejections.reject(placement, {} if claims is None else rejected_layers(placement, claims)):
                return placement, parameters, emitted, claims

    def _placed(self, rejections: Rejections, weights: WeightParameters) -> Placement:
        """Place ops, but for what is rejected."""
        inputs, applied = self.inputs, self.planner.applied
        layers = None if applied is None else PlannedLayers(applied=applied)
        lets_go = applied is not None and applied.lets_go  # then only 16 bits are insisted on
        placement = Placer(
            inputs=inputs,
            has_range=inputs.form.has_range if applied is None else applied.has_range,
            refuse=rejections.beside(weights, TensorConstraints(inputs=inputs)),
            block_of=self.widths.block,
            requested={name: each.width for name, each in inputs.requests.items() if not lets_go or each.width == _WIDE},
            declined=rejections.declined,
            unlike_plan=None if layers is None or lets_go else layers.unlike_plan,
        ).place()
        if layers is not None and not rejections.is_changed:
            layers.check_layers(placement)
        return placement

    def _claims(self, placement: Placement, parameters: Parameters, emitted: Emitted) -> Claims | None:
        """Return what the target's rules take of a model; that of before where integers alone are others."""
        planner, vendors = self.planner, self.planner.vendors
        if vendors is None:
            return None
        layers = [(layer.output, layer.taker, layer.per_row, layer.block) for layer in placement.layers]
        asked = (self.inputs.form, layers, parameters.activations, parameters.weights, parameters.biases, emitted.roundings)
        return planner.last_claims.find(asked, lambda: integer_claims(emitted.model.bound(), *planner.targets, vendors=vendors))

    def _rejections(self) -> Rejections:
        """Return what is known of placing ops: with the same choices but for integers of weights, and biases."""
        choices = self.inputs.choices
        decided_by = (
            self.inputs.form,
            self.inputs.requests,
            choices.float_tensors,
            choices.per_row,
            choices.wide_weights,
            choices.ranges,
            self.inputs.recipe,
            {name: scales.tobytes() for name, scales in choices.corrections.weight_scales.items()},
        )
        return self.planner.last_rejections.find(decided_by, lambda: Rejections(last=self.planner.targets[-1].name))


def _names(model: Model) -> dict[str, str]:
    """Map the names that tensors have in their source, and their ids, to the ids."""
    return {
        **{entry.source_name: str(name) for name, entry in model.tensors.items()},
        **{str(name): str(name) for name in model.tensors},
    }
