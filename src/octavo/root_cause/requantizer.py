"""A quantized model with some activations float, or in 16 bits, by its plan: all else that was decided once is not decided again.

What follows from running the model (biases, weights rounded by what their layers read) is found anew: errors that are gone need
no correction. It judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from ..corrections import Corrector
from ..corrections.correct import Samples
from ..errors import QuantizationError
from ..graph import Model
from ..identity import TensorId
from ..pipeline import requantize
from ..quantize import (
    Corrections,
    IntegerLayer,
    Nearness,
    QuantizationPlan,
    QuantizedModel,
    Remedies,
    equalized_float,
)
from ..quantize.ranges import QuantScheme
from ..simulation.schemes import range_of, scheme_of
from ..target import ELEMENTWISE, OpSupport
from ..target_choice import TargetLike, resolve_target


@dataclass(kw_only=True, slots=True, eq=False)
class Requantizer:
    """Makes models out of plans of one float model, and measures them.

    Parameters
    ----------
    model, target
        As `octavo.quantize` takes them.
    samples
        The model's inputs, sample by sample: on which corrections are found, and outputs compared.
    """

    model: Model
    target: TargetLike
    samples: Samples
    _simple: Model | None = None
    _corrector: Corrector | None = None

    def nearness(self, quantized: QuantizedModel) -> Nearness:
        """Return how near a model's outputs are to the float model's, in the integer kernels."""
        corrector = self._corrector  # of other factors, too: what outputs are in float does not depend on them
        if corrector is None:
            corrector = self._corrector_of(equalized_float(self.model, quantized.plan.equalization))
        return corrector.nearness(quantized)

    def changed(self, plan: QuantizationPlan, changes: Remedies) -> QuantizedModel:
        """Return the model of a plan with activations that stay float, or have 16 bits, besides.

        Raises
        ------
        QuantizationError
            An op around an activation takes no 16 bits, or no integer op is left.
        """
        names = _with_neighbours(plan, changes.wide_activations)
        self._check_takes_wide(plan, names)
        wide, floats = _with_wide(plan, names), changes.float_tensors
        start = replace(wide, activations={name: each for name, each in wide.activations.items() if name not in floats})
        # Of ranges that clip biases are not found anew, nor what a profile said: what was observed is no more in a plan.
        is_anew = bool(plan.corrections) and plan.recipe.has_plain_ranges and plan.recipe.bias_correction != "analytic"
        if is_anew:
            start = replace(start, corrections=Corrections())
        corrector_of = self._corrector_of if is_anew else None
        known = Remedies(float_tensors=_before_functions(plan)).with_more(changes)
        made = requantize(self.model, start, known, target=self.target, corrector_of=corrector_of)
        if changes.wide_activations and len(made.plan.layers) < len(plan.layers):
            raise QuantizationError("with 16 bits for it an op around it would be float")
        if not made.plan.layers:
            raise QuantizationError("no op would be integer without it")
        return replace(made, plan=replace(made.plan, adjustments=plan.adjustments))

    def _check_takes_wide(self, plan: QuantizationPlan, names: Iterable[TensorId]) -> None:
        chosen = resolve_target(self.target)
        supports = chosen.described or (chosen.description,)

        def support(layer: IntegerLayer) -> OpSupport | None:
            return next((each for each in supports if each.name == layer.target), chosen.description).support(layer.op)

        for name in names:
            around = [layer for layer in plan.layers if name in (layer.output, *layer.inputs)]
            if any((found := support(layer)) is None or "int16" not in found.activations for layer in around):
                raise QuantizationError(f"what makes or reads {name} does not take 16 bits")

    def _corrector_of(self, simple: Model) -> Corrector:
        """Return what runs quantized models of a float model with its channels evened out; for the same one the same."""
        if self._corrector is None or self._simple is None or not _have_same_constants(simple, self._simple):
            self._simple, self._corrector = simple, Corrector(simple, samples=self.samples, target=resolve_target(None))
        return self._corrector


def _have_same_constants(model: Model, other: Model) -> bool:
    """Return whether channels of two forms of one float model are divided by the same factors."""
    known = other.params
    return known.keys() == model.params.keys() and all(np.array_equal(each, known[name]) for name, each in model.params.items())


def _before_functions(plan: QuantizationPlan) -> dict[TensorId, str]:
    """Return the products' results that a plan does not round before a function of them, which their kernels compute."""
    made = {layer.output for layer in plan.layers} - plan.activations.keys()
    read = (layer.inputs[0] for layer in plan.layers if layer.op == ELEMENTWISE and len(layer.inputs) == 1)
    return {name: "the plan does not round it" for name in read if name in made}


def _with_neighbours(plan: QuantizationPlan, names: Iterable[TensorId]) -> list[TensorId]:
    """Return activations with those that have their width: what ops but products with weights read and make beside them."""
    found, count = list(names), 0
    while count < len(found):
        count = len(found)
        for layer in plan.layers:
            around = (layer.output, *layer.inputs)
            if layer.weight is None and not set(found).isdisjoint(around):
                found.extend(name for name in around if name in plan.activations and name not in found)
    return found


def _with_wide(plan: QuantizationPlan, names: Iterable[TensorId]) -> QuantizationPlan:
    """Return a plan in which activations have 16 bits for the range that they have."""
    wide = {name: plan.activations[name] for name in names}
    schemes = {
        name: QuantScheme(dtype="int16", symmetric=True, power_of_two=scheme_of(params).power_of_two)
        for name, params in wide.items()
    }
    return plan.with_params({name: schemes[name].params(*range_of(params)) for name, params in wide.items()}) if wide else plan
