"""What choices make of a float model: ops are placed, parameters chosen, Q and DQ written. The same choices, the same bytes.

It chooses nothing that steps choose, and runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial

from tvm.relax import Var

from ..compiler.partition.pipeline import integer_claims
from ..compiler.target_choice import ResolvedTarget
from ..errors import QuantizationError
from ..ir.channels import forget_rotated, rotated
from ..ir.graph.dataflow import static_shape
from ..ir.graph.model import Model, check_fingerprint
from ..ir.graph.rules import Claims
from ..ir.identity import TensorId
from ..ir.simplify import Fold
from ..profiling import Profile
from ..runtime.heap import trim_heap
from ..target import OpSupport, TargetDescription
from .choices import Choices
from .constraints import TensorConstraints
from .equalization.check import check_factors, check_rotations
from .equalized_float import EqualizedFloat
from .last import Last
from .parameters import ParameterChooser
from .placement import AppliedPlan, Declined, Layer, Placement, Placer, PlanInputs, together
from .plan import IntegerLayer, QuantizationPlan, QuantizedModel
from .plan.equalization import Equalization
from .qdq import is_quantized, write_qdq
from .recipe import Override, Recipe
from .request import Request, TensorChoice
from .weights import WeightNumbers, WeightParameters

_ROOM = 4
"""Placements of which is known what was rejected: two plans that are compared on several folds are made in turn, step by step."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Planned:
    """A model as some choices make it.

    `write` returns it in QDQ form, which most models that are compared never need.
    """

    choices: Choices
    plan: QuantizationPlan
    write: Callable[[], Model]
    placement: Placement

    @property
    def quantized(self) -> QuantizedModel:
        """The model in QDQ form."""
        return QuantizedModel.of(self.write(), self.plan)

    @property
    def named(self) -> set[str]:
        """The tensors of which somebody says what they must be."""
        return {*self.overridden, *self.choices.requests}

    @property
    def overridden(self) -> Mapping[str, Override]:
        """What overrides say of activations that integer ops read or make."""
        return {str(var.name): said for var, said in self.placement.overridden.items()}


@dataclass(kw_only=True, slots=True)
class _Rejections:
    """What is known after some placements."""

    last: str
    """Name of the last target: what it does not take stays float."""
    declined: Declined = field(default_factory=dict[Var, dict[str, str]])
    """By an op's variable why targets before the last do not take it."""
    rejected: dict[Var, str] = field(default_factory=dict[Var, str])
    """By its result why a layer stays float."""
    placement: Placement | None = None
    """The last one; None where more is rejected since."""

    def refuse(self, layer: Layer, constraints: TensorConstraints, weights: WeightParameters) -> str | None:
        """Return why a layer stays float beside those that were kept before; None where it is kept."""
        if layer.output in self.rejected:
            return self.rejected[layer.output]
        reason = constraints.add(layer, weights.refuse)
        return None if reason is None else self._note(layer, reason)

    @property
    def count(self) -> int:
        """How many ops are declined: those are to be placed anew, for another target."""
        return sum(map(len, self.declined.values()))

    def reject(self, placement: Placement, reasons: Mapping[Var, str]) -> bool:
        """Note which layers of a placement cannot be, by their results; return whether there are any."""
        for layer in placement.layers:
            if layer.output in reasons:
                reason = self._note(layer, reasons[layer.output])
                if layer.taker == self.last:
                    self.rejected[layer.output] = reason
        if reasons:
            self.placement = None
        return bool(reasons)

    def _note(self, layer: Layer, reason: str) -> str:
        if layer.taker == self.last:
            return together({**self.declined.get(layer.core, {}), layer.taker: reason})
        self.declined.setdefault(layer.core, {})[layer.taker] = reason
        return reason


@dataclass(slots=True, eq=False)
class _Equalized:
    """A float model with its channels divided, and what planning it with similar choices found."""

    floats: EqualizedFloat
    rejections: Last[_Rejections]


@dataclass(frozen=True, kw_only=True, eq=False)
class Planner:
    """Makes quantized models of one float model; see `quantize_graph` for what it is given.

    `simple` is the model as it is quantized, but for factors of channels. Where a plan is applied there is no profile, and the
    recipe is the plan's. `numbers` are what planning found of single weights.
    """

    model: Model
    simple: Model
    folds: tuple[Fold, ...]
    profile: Profile | None
    chosen: ResolvedTarget
    recipe: Recipe
    applied: AppliedPlan | None
    numbers: WeightNumbers = field(default_factory=WeightNumbers)
    _plain: Last[_Equalized] = field(default_factory=Last[_Equalized])
    """Of the model as it is: its constants are the model's own, so it is kept beside that of the last factors."""
    _last: Last[_Equalized] = field(default_factory=Last[_Equalized])

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
            self.applied.check(form.model.tensors, form.view.variables, [each.name for each in self.targets])
        elif self.profile is None:
            raise QuantizationError("quantize needs a profile of the model, which octavo.profile returns, or a plan")
        else:
            check_fingerprint(self.model, self.profile.fingerprint)

    @property
    def targets(self) -> tuple[TargetDescription, ...]:
        """Who may take an op, in the order in which they choose."""
        return self.chosen.described or (self.chosen.description,)

    @property
    def has_functions(self) -> bool:
        """Whether kernels of products can compute functions of their sums."""
        return any(support.float_function for support in self.chosen.description.ops)

    @property
    def first_choices(self) -> Choices:
        """What recipe or plan say, before anything is tried."""
        if self.applied is not None:
            return self.applied.choices
        tensors = self.simple.tensors
        names = {entry.source_name: str(name) for name, entry in tensors.items()} | {str(name): str(name) for name in tensors}
        asked, floats = self.recipe.resolved(names)
        return Choices(
            requests={name: Request(who="the recipe", tensor=entry) for name, entry in asked.items()},
            float_tensors={TensorId(name): "the recipe says so" for name in floats},
        )

    def form(self, equalization: Equalization) -> EqualizedFloat:
        """Return the float model with its channels divided."""
        return self._equalized(equalization).floats

    def forget(self, but: Equalization) -> None:
        """Let go of float models with their channels divided or rotated otherwise: each takes as much memory as the model."""
        self._last.forget(_key(but))
        if not but.rotations:
            forget_rotated(self.simple)

    def _equalized(self, equalization: Equalization) -> _Equalized:
        def find() -> _Equalized:
            simple = rotated(self.simple, equalization.rotations)
            found = EqualizedFloat(simple=simple, folds=self.folds, equalization=equalization, profile=self.profile)
            if equalization:
                _ = found.model  # what making it leaves behind goes now
                trim_heap(self.model.constant_bytes)
            room = 1 if self.model.is_large else _ROOM
            return _Equalized(found, Last[_Rejections](room))

        last = self._last if equalization else self._plain
        return last.find(_key(equalization), find)

    def planned(self, choices: Choices) -> Planned:
        """Return a model of which targets take all that they say they do: to ask them takes longest."""
        inputs, rejections = self._prepared(choices)
        placement, plan = _placed(inputs, rejections, self.numbers)
        write = cache(partial(write_qdq, inputs.form.model, inputs.form.view, placement, plan))
        trim_heap(self.model.constant_bytes)
        return Planned(choices=choices, plan=replace(plan, float_ops=placement.float_ops), write=write, placement=placement)

    def confirmed(self, planned: Planned) -> Planned:
        """Return a model of which targets take what its plan says: they are asked about its very numbers."""
        inputs, rejections = self._prepared(planned.choices)
        vendors = tuple(backend.description.name for backend in self.chosen.backends if backend.has_own_code)
        while True:
            claims = integer_claims(planned.write().bound(runs=False), *self.targets, vendors=vendors)
            taken = {var.name for region in claims.regions.values() for var in region.members}
            if not rejections.reject(planned.placement, _rejected_layers(planned.placement, claims, taken)):
                break
            planned = self.planned(planned.choices)
        # Ops that are no layers run in integers, too, where all around them is quantized.
        every = planned.plan.float_ops
        float_ops = tuple(op for op in every if op.tensor not in taken)
        plan = replace(planned.plan, float_ops=float_ops, enclosed=tuple(op.tensor for op in every if op.tensor in taken))
        if inputs.followed is not None:
            inputs.followed.check_made(plan)
        return replace(planned, plan=plan if self.applied is None else self.applied.confirmed(plan))

    def tensor_choices(self, planned: Planned) -> dict[TensorId, TensorChoice]:
        """Return what a callback is asked: each activation and weight of a planned model, in the order of the graph."""
        form, plan, source = self.form(planned.choices.equalization), planned.plan, self.model

        def choice(name: TensorId) -> TensorChoice:
            var, value = form.view.variables[name], form.model.params.get(name)
            entry = form.model.tensors.get(name)
            known = form.sources.source(var) if value is None or value is source.params.get(name) else None
            return TensorChoice(
                id=name,
                name="" if entry is None else entry.source_name,
                op="" if entry is None else entry.op,
                kind="weight" if value is not None else "input" if name in source.input_ids else "activation",
                shape=static_shape(var) or (),
                params=plan.activations[name] if value is None else plan.weights[name],
                values=value,
                read_statistics=lambda: None if form.statistics is None or known is None else form.statistics[known],
            )

        return {name: choice(name) for name in (*plan.activations, *plan.weights)}

    def support(self, layer: IntegerLayer) -> OpSupport | None:
        """Return what the target of a layer says of its op."""
        return next((each for each in self.targets if each.name == layer.target), self.chosen.description).support(layer.op)

    def _prepared(self, choices: Choices) -> tuple[PlanInputs, _Rejections]:
        """Return what a model is planned by, and what is known of placing its ops.

        That is the same for the same choices but for integers of weights, and biases.
        """
        form = self._equalized(choices.equalization)
        inputs = PlanInputs(
            form=form.floats,
            recipe=self.recipe if choices.range_estimator is None else self.recipe.with_ranges(choices.range_estimator),
            choices=choices,
            target=self.chosen.description,
            targets=self.targets,
            applied=self.applied,
        )
        decided_by = (
            {name: (each.who, each) for name, each in choices.requests.items()},
            choices.float_tensors,
            choices.float_results,
            choices.per_row,
            choices.wide_weights,
            choices.ranges,
            inputs.recipe,
            {name: scales.tobytes() for name, scales in choices.corrections.weight_scales.items()},
        )
        return inputs, form.rejections.find(decided_by, lambda: _Rejections(last=self.targets[-1].name))


def _placed(inputs: PlanInputs, rejections: _Rejections, numbers: WeightNumbers) -> tuple[Placement, QuantizationPlan]:
    """Return ops placed, and parameters chosen, so that no layer is rejected by these."""
    while True:
        weights = WeightParameters(inputs=inputs, numbers=numbers)
        if rejections.placement is None:
            refuse = partial(rejections.refuse, constraints=TensorConstraints(inputs=inputs), weights=weights)
            placer = Placer(inputs=inputs, refuse=refuse, block_of=weights.block, declined=rejections.declined)
            known, placement = rejections.count, placer.place()
            if rejections.count > known:
                continue
            placer.check_plan(placement)
            rejections.placement = placement
        placement = rejections.placement
        plan, rejected = ParameterChooser(inputs=inputs, placement=placement, weights=weights).choose()
        if not rejections.reject(placement, rejected):
            return placement, plan


def _key(equalization: Equalization) -> object:
    """Return what tells models apart: equal factors may come with statistics of other samples."""
    return equalization, [*map(id, (*equalization.statistics.values(), *equalization.rotated.values()))]


def _rejected_layers(placement: Placement, claims: Claims, taken: Collection[str]) -> dict[Var, str]:
    """Return the outputs of the layers that no integer op takes, each with the reason of the rule that came closest."""
    reasons = claims.rejections
    return {
        layer.output: next((reasons[var.name].reason for var in layer.members if var.name in reasons), "no rule takes it")
        for layer in placement.layers
        # Rules see normalizations rewritten, so the core's own variable may be gone; only the output is sure to be there.
        if layer.output.name not in taken
    }
