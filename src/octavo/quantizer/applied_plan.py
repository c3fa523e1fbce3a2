"""A plan that is applied: which layers, parameters and roundings it asks for, and what stands in its way. It places nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tvm.relax import Var

from ..errors import QuantizationError
from ..ir.identity import TensorId, TensorTable
from ..target import ELEMENTWISE, ELEMENTWISE_PAIR
from .placement import Layer, Placement
from .plan import Adjustment, FloatOp, IntegerLayer, QuantizationPlan
from .plan.corrections import Corrections
from .plan.equalization import Equalization
from .request import Request

WHO = "the plan"
_READ_FLOAT = ("add", ELEMENTWISE, ELEMENTWISE_PAIR)
"""Layers that may read float sums of a product."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AppliedPlan:
    """Makes `quantize` decide what a plan says.

    Parameters
    ----------
    plan
        As it was made, or edited.
    lets_go
        Whether only what activations are rounded by is the plan's, and which of them are: which ops run in integers is then
        decided anew, for where some of these stay float, ops around them do not pay. Else it is followed to the letter.
    """

    plan: QuantizationPlan
    lets_go: bool = False

    def check_model(self, fingerprint: str) -> None:
        """Raise QuantizationError unless the plan is of a model."""
        if self.plan.fingerprint != fingerprint:
            raise QuantizationError(
                f"the plan belongs to another model: it was made for {self.plan.fingerprint}, this model is {fingerprint}; "
                "quantize this model by its profile, and save that plan"
            )

    def check(self, tensors: TensorTable, variables: Collection[str], targets: Sequence[str]) -> None:
        """Raise QuantizationError unless the plan names what the model, equalized by it, has, and is for these targets."""
        plan = self.plan
        for where, tensor in self._tensors():
            if tensor not in variables:
                raise QuantizationError(f"the plan: {where}: the model has no tensor {tensor!r}; names are those that were saved")
            entry, name = tensors.get(tensor), plan.names.get(tensor)
            if name is not None and (entry is None or entry.source_name != name):
                called = "has no name" if entry is None else f"is called {entry.source_name!r}"
                raise QuantizationError(f"the plan: {where}: {tensor} {called} in the source, got {name!r}: it is no choice")
        given = {**plan.activations, **plan.weights}
        # Additions, and functions in the kernel of a product, read what layers leave in float32.
        reals = {layer.output for layer in plan.layers if layer.output not in plan.activations}
        for layer in plan.layers:
            if layer.target not in targets:
                raise QuantizationError(
                    f"the plan: layer {layer.op} {layer.output} is for target {layer.target!r}, and quantize was given "
                    f"{', '.join(map(repr, targets))}: pass its target"
                )
            weight = () if layer.weight is None else (layer.weight,)
            in_float = {*(layer.per_row or (layer.inputs if layer.block else ())), *(reals if layer.op in _READ_FLOAT else ())}
            read = (
                *(each for each in layer.inputs if each not in in_float),
                *layer.constants,
                *weight,
            )
            missing = next((each for each in read if each not in given), None)
            if missing is not None and not self.lets_go:
                raise QuantizationError(
                    f"the plan: layer {layer.op} {layer.output} reads {missing}, which has no parameters in the plan: give it "
                    "some, or take the layer out"
                )

    def _tensors(self) -> Iterator[tuple[str, TensorId]]:
        yield from (("activations", name) for name in self.plan.activations)
        yield from (("weights", name) for name in self.plan.weights)
        yield from (("equalization", name) for name in self.plan.equalization.factors)
        yield from (("layers", layer.output) for layer in self.plan.layers)
        yield from (("float_ops", op.tensor) for op in self.plan.float_ops)

    def requests(self) -> dict[str, Request]:
        """Return the parameters of all tensors as demands."""
        return {
            str(name): Request(who=WHO, tensor=params)
            for name, params in (*self.plan.activations.items(), *self.plan.weights.items())
        }

    def has_range(self, var: Var) -> bool:
        """Return whether the plan has parameters of a variable."""
        return TensorId(var.name) in self.plan.activations

    def check_result(self, layers: Iterable[IntegerLayer], float_ops: Iterable[FloatOp], enclosed: Collection[TensorId]) -> None:
        """Raise QuantizationError where the result is not what the plan says of it.

        An op that is no layer runs in integers all the same if all around it is quantized.
        """
        if self.lets_go:
            return
        tensor = next((each for each in enclosed if each not in self.plan.enclosed), None)
        if tensor is not None:
            readers = [str(layer.output) for layer in self.plan.layers if not set(enclosed).isdisjoint(layer.inputs)]
            raise QuantizationError(
                f"the plan: {tensor} is no layer's and cannot stay float: what it reads and what reads it is quantized, so it "
                f"runs in integers; take out the layers that read what follows from it, too ({', '.join(readers)}), or none"
            )
        planned_layers = {layer.output: layer for layer in self.plan.layers}
        for layer in layers:
            planned = planned_layers[layer.output]
            if planned.source != layer.source or (planned.bias is None) != (layer.bias is None):
                said, found = (f"source {each.source}, bias {each.bias}" for each in (planned, layer))
                raise QuantizationError(f"the plan: layer {layer.op} {layer.output} has {found}, got {said}: these are no choice")
        made = {op.tensor for op in float_ops}
        other = next((entry for entry in self.plan.float_ops if entry.tensor not in made), None)
        if other is not None:
            raise QuantizationError(f"the plan: float_ops: {other.tensor} is made by no op that stays float; take the entry out")

    def with_reasons(self, float_ops: Iterable[FloatOp]) -> tuple[FloatOp, ...]:
        """Return the ops that stay float with the plan's reasons."""
        reasons = {op.tensor: op.reason for op in self.plan.float_ops}
        return tuple(replace(op, reason=reasons.get(op.tensor, op.reason)) for op in float_ops)

    def corrections(self, equalization: Equalization) -> Corrections:
        """Return the plan's, with how near they come; of other factors than the plan's nothing is known."""
        return self.plan.corrections if equalization is self.plan.equalization else Corrections()

    def adjustments(self, new: Iterable[Adjustment]) -> tuple[Adjustment, ...]:
        """Return what the plan says was chosen otherwise than asked, and what was now."""
        return tuple(dict.fromkeys((*self.plan.adjustments, *new)))


@dataclass(kw_only=True, slots=True)
class PlannedLayers:
    """The layers of a plan beside those of one placement."""

    applied: AppliedPlan
    _layers: dict[TensorId, IntegerLayer] = field(init=False)
    _cores: dict[TensorId, TensorId] = field(default_factory=dict[TensorId, TensorId])
    """By its output the variable of a layer's own op, which reasons are given of."""
    _unlike: dict[TensorId, str] = field(default_factory=dict[TensorId, str])
    """By its output how a layer of the model differs from that of the plan."""

    def __post_init__(self) -> None:
        """Index the plan."""
        self._layers = {layer.output: layer for layer in self.applied.plan.layers}

    def unlike_plan(self, layer: Layer) -> str | None:
        """Return why a layer that a target could take is none of the plan's, or None."""
        wanted = self._layers.get(layer.name)
        if wanted is None:
            said = {op.tensor: op.reason for op in self.applied.plan.float_ops}
            names = (layer.core.name, layer.name)
            return next((said[TensorId(name)] for name in names if name in said), "the plan has no layer for it")
        inputs = tuple(TensorId(var.name) for var in layer.inputs)
        weight = None if layer.op is None else layer.op.weight.name
        constants = tuple(constant.name for constant in layer.constants)
        found = replace(
            wanted,
            op=layer.support.op,
            inputs=inputs,
            weight=weight,
            fused=layer.fused,
            constants=constants,
            target=layer.taker,
            per_row=tuple(TensorId(var.name) for var in layer.per_row),
            block=layer.block,
        )
        if found == wanted:
            self._cores[layer.name] = TensorId(layer.core.name)
            return None
        return self._unlike.setdefault(layer.name, f"the plan has {_said(wanted)}, the model has {_said(found)}")

    def check_layers(self, placement: Placement) -> None:
        """Raise QuantizationError unless a placement has all layers of the plan; it names the first that is missing, and why."""
        if self.applied.lets_go:
            return
        placed = {layer.name for layer in placement.layers}
        missing = next((layer for layer in self.applied.plan.layers if layer.output not in placed), None)
        if missing is not None:
            reason = self._why(missing, placement.float_ops)
            raise QuantizationError(f"the plan: {missing.op} {missing.output} cannot be integer: {reason}")

    def _why(self, layer: IntegerLayer, float_ops: Sequence[FloatOp]) -> str:
        """Return why a layer is not placed: of the op that it would be, else of the last of its kind before its output."""
        if layer.output not in self._cores and layer.output in self._unlike:
            return self._unlike[layer.output]
        if layer.output not in self.applied.plan.activations and not layer.reads_reals:
            return f"its result {layer.output} has no parameters in the plan"
        reasons = {op.tensor: op.reason for op in float_ops}
        if layer.output in self._cores:
            return reasons[self._cores[layer.output]]
        alike = reversed(float_ops[: list(reasons).index(layer.output) + 1] if layer.output in reasons else ())
        return next((op.reason for op in alike if op.op == layer.op), f"the model has no {layer.op} there")


def _said(layer: IntegerLayer) -> str:
    reads = ", ".join((*layer.inputs, *layer.constants, *(() if layer.weight is None else (layer.weight,))))
    how = ", per row when run," if layer.per_row else ""
    how += f" in blocks of {layer.block}" if layer.block else ""
    return f"{' + '.join((layer.op, *layer.fused))} of {reads}{how} for {layer.target}"
