"""A quantized model with some activations float, or in 16 bits, by its plan: all else that was decided once is not decided again.

What follows from running the model (biases, weights rounded by what their layers read) is found anew: errors that are gone need
no correction. It judges nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ...compiler.target_choice import TargetLike, resolve_target
from ...errors import QuantizationError
from ...ir.graph import Model
from ...ir.identity import TensorId
from ...numerics.arrays import Samples
from ...target import ELEMENTWISE, OpSupport
from ..choices import Choices
from ..plan.corrections import Corrections
from ..plan.entries import IntegerLayer
from ..plan.plan import QuantizationPlan, QuantizedModel
from ..quantize import requantize
from ..ranges import QuantScheme
from ..ranges.of_params import range_of, scheme_of
from ..sample_runs import Programs, SampleRuns
from ..simplify import simplify


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
    _runs: SampleRuns = field(init=False)
    _simple: Model = field(init=False)

    def __post_init__(self) -> None:
        """Correct what is made on this machine."""
        self._simple = simplify(self.model)[0]
        self._runs = SampleRuns(samples=self.samples, few=self.samples, programs=Programs(target=resolve_target(None)))

    def sqnr_db(self, plan: QuantizationPlan) -> float:
        """Return the signal to noise ratio of the worst output with a plan; inf where TVM's virtual machine alone can run it."""
        referee = self._runs.referee(self._simple, plan)
        return math.inf if referee is None else referee.score(plan).sqnr_db

    def changed(self, plan: QuantizationPlan, changes: Choices) -> QuantizedModel:
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
        known = Choices(float_tensors=_before_functions(plan)).with_more(changes)
        made = requantize(self.model, start, known, target=self.target, runs=self._runs if is_anew else None)
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
