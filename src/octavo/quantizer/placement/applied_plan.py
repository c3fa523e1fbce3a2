"""A plan that is applied: which layers, parameters and roundings it asks for, and what stands in its way. It places nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ...errors import QuantizationError
from ...ir.identity import TensorId, TensorTable
from ...target import ELEMENTWISE, ELEMENTWISE_PAIR
from ..choices import Choices
from ..plan import IntegerLayer, QuantizationPlan
from ..request import Request
from .layer import Layer

_READ_FLOAT = ("add", ELEMENTWISE, ELEMENTWISE_PAIR)
"""Layers that may read float sums of a product."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AppliedPlan:
    """Makes `quantize` decide what a plan says, as it was made, or edited.

    With its own choices it is followed to the letter. With others only what activations are rounded by is the plan's, and which
    of them are: which ops run in integers is decided anew, for where some of these stay float, ops around them do not pay.
    """

    plan: QuantizationPlan

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
        given, factors = {**plan.activations, **plan.weights}, plan.equalization.factors
        outputs, floats = (layer.output for layer in plan.layers), (op.tensor for op in plan.float_ops)
        named: dict[str, Iterable[TensorId]] = {"activations": plan.activations, "weights": plan.weights}
        named |= {"equalization": factors, "rotations": plan.equalization.rotations}
        named |= {"layers": outputs, "float_ops": floats}
        for where, tensor in ((where, tensor) for where, names in named.items() for tensor in names):
            if tensor not in variables:
                raise QuantizationError(f"the plan: {where}: the model has no tensor {tensor!r}; names are those that were saved")
            entry, name = tensors.get(tensor), plan.names.get(tensor)
            if name is not None and (entry is None or entry.source_name != name):
                called = "has no name" if entry is None else f"is called {entry.source_name!r}"
                raise QuantizationError(f"the plan: {where}: {tensor} {called} in the source, got {name!r}: it is no choice")
        # Additions, and functions in the kernel of a product, read what layers leave in float32.
        reals = {layer.output for layer in plan.layers if layer.output not in plan.activations}
        for layer in plan.layers:
            if layer.target not in targets:
                raise QuantizationError(
                    f"the plan: layer {layer.op} {layer.output} is for target {layer.target!r}, and quantize was given "
                    f"{', '.join(map(repr, targets))}: pass its target"
                )
            in_float = {*(layer.per_row or (layer.inputs if layer.block else ())), *(reals if layer.op in _READ_FLOAT else ())}
            read = (*(each for each in layer.inputs if each not in in_float), *layer.constants, layer.weight)
            missing = next((each for each in read if each is not None and each not in given), None)
            if missing is not None:
                raise QuantizationError(
                    f"the plan: layer {layer.op} {layer.output} reads {missing}, which has no parameters in the plan: give it "
                    "some, or take the layer out"
                )

    @cached_property
    def choices(self) -> Choices:
        """The parameters of all tensors as requests, and what else the plan chooses."""
        plan = self.plan
        given = {**plan.activations, **plan.weights}
        return Choices(
            equalization=plan.equalization,
            requests={str(name): Request(who="the plan", tensor=params) for name, params in given.items()},
            per_row={layer.output: "the plan says so" for layer in plan.layers if layer.per_row},
            corrections=plan.corrections,
        )

    @cached_property
    def _layers(self) -> Mapping[TensorId, IntegerLayer]:
        return {layer.output: layer for layer in self.plan.layers}

    def unlike(self, layer: Layer) -> str | None:
        """Return why a layer that a target could take is none of the plan's, or None."""
        wanted = self._layers.get(layer.name)
        if wanted is None:
            said = {op.tensor: op.reason for op in self.plan.float_ops}
            names = (layer.core.name, layer.name)
            return next((said[TensorId(name)] for name in names if name in said), "the plan has no layer for it")
        found = replace(layer.entry, bias=wanted.bias, source=wanted.source)
        return None if found == wanted else f"the plan has {_said(wanted)}, the model has {_said(found)}"

    def confirmed(self, made: QuantizationPlan) -> QuantizationPlan:
        """Return a plan of the model that was made by this one, with this one's reasons, and what it says was not as asked."""
        reasons = {op.tensor: op.reason for op in self.plan.float_ops}
        return replace(
            made,
            float_ops=tuple(replace(op, reason=reasons.get(op.tensor, op.reason)) for op in made.float_ops),
            adjustments=tuple(dict.fromkeys((*self.plan.adjustments, *made.adjustments))),
        )

    def check_made(self, made: QuantizationPlan) -> None:
        """Raise QuantizationError where the model that was made is not what the plan says of it."""
        # An op that is no layer runs in integers all the same if all around it is quantized.
        tensor = next((each for each in made.enclosed if each not in self.plan.enclosed), None)
        if tensor is not None:
            readers = [str(layer.output) for layer in self.plan.layers if not set(made.enclosed).isdisjoint(layer.inputs)]
            raise QuantizationError(
                f"the plan: {tensor} is no layer's and cannot stay float: what it reads and what reads it is quantized, so it "
                f"runs in integers; take out the layers that read what follows from it, too ({', '.join(readers)}), or none"
            )
        for layer in made.layers:
            planned = self._layers[layer.output]
            if planned.source != layer.source or (planned.bias is None) != (layer.bias is None):
                said, found = (f"source {each.source}, bias {each.bias}" for each in (planned, layer))
                raise QuantizationError(f"the plan: layer {layer.op} {layer.output} has {found}, got {said}: these are no choice")
        floats = {op.tensor for op in made.float_ops}
        other = next((entry for entry in self.plan.float_ops if entry.tensor not in floats), None)
        if other is not None:
            raise QuantizationError(f"the plan: float_ops: {other.tensor} is made by no op that stays float; take the entry out")


def _said(layer: IntegerLayer) -> str:
    reads = ", ".join((*layer.inputs, *layer.constants, *(() if layer.weight is None else (layer.weight,))))
    how = ", per row when run," if layer.per_row else ""
    how += f" in blocks of {layer.block}" if layer.block else ""
    return f"{' + '.join((layer.op, *layer.fused))} of {reads}{how} for {layer.target}"
