"""Parameters: scale and zero point of every activation, weight and bias that a placement makes integer. No graph is rewritten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from ..errors import QuantizationError
from ..ir.graph.weighted import Bias
from ..ir.identity import TensorId
from ..numerics import QuantParams, quantize
from .analytic_shifts import analytic_shifts
from .constraints import Key, TensorConstraints
from .override import Override
from .placement import Layer, Placement, PlanInputs
from .plan import Adjustment
from .ranges import QuantScheme, range_estimator
from .weights.weight_params import WeightParameters, bias_params


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Parameters:
    """Parameters by variable; weights and biases by the name of their parameter, with their integers.

    A bias that is added in float32 has no parameters, and its value stands here only where it is another than the model's.

    `rejected` are the results of layers whose numbers do not fit after all, with reasons; `shared` the tensors that have one set
    of parameters, group by group; `bias_shifts` what was added to biases.
    """

    activations: dict[Var, QuantParams]
    weights: dict[TensorId, QuantParams]
    biases: dict[Var, QuantParams]
    bias_values: dict[Var, npt.NDArray[Any]]
    weight_values: dict[TensorId, npt.NDArray[Any]]
    adjustments: tuple[Adjustment, ...]
    rejected: dict[Var, str]
    shared: tuple[tuple[TensorId, ...], ...]
    bias_shifts: Mapping[TensorId, npt.NDArray[np.float32]]


@dataclass(kw_only=True, slots=True)
class ParameterChooser:
    """Chooses parameters for one model."""

    inputs: PlanInputs
    weights: WeightParameters

    def choose(self, placement: Placement) -> Parameters:
        """Return the parameters of everything in a placement."""
        constraints = self._constraints(placement)
        ranges = _Ranges(inputs=self.inputs, placement=placement, constraints=constraints)
        activations: dict[Var, QuantParams] = {}
        for layer in placement.layers:
            for var in (*layer.quantized_inputs, *([] if layer.leaves_float else [layer.output])):
                if var not in activations:
                    activations[var] = ranges.params(var)
        weights, adjustments, rejected = self.weights.choose(placement.layers, activations, constraints)
        for constant in (constant for layer in placement.layers for constant in layer.constants):
            weights[constant.name] = ranges.params(constant.name)
        weight_values = {name: self._integers(name, params) for name, params in weights.items()}
        shifts = self.inputs.choices.corrections.bias_shifts
        if self.inputs.recipe.bias_correction == "analytic" and not shifts:
            shifts = analytic_shifts(self.inputs.form, placement.layers, weights, weight_values)
        biases: dict[Var, QuantParams] = {}
        bias_values: dict[Var, npt.NDArray[Any]] = {}
        for layer in placement.layers:
            if layer.op is None or layer.bias is None:
                continue
            bias = bias_values[layer.output] = self._bias(layer, layer.bias, shifts)
            if not layer.reads_reals:
                biases[layer.output] = bias_params(activations[layer.inputs[0]], weights[layer.op.weight.name], layer.bias.axis)
                bias_values[layer.output] = quantize(bias, biases[layer.output])
        return Parameters(
            activations=activations,
            weights=weights,
            biases=biases,
            bias_values=bias_values,
            weight_values=weight_values,
            adjustments=adjustments,
            rejected=rejected,
            shared=constraints.shared(),
            bias_shifts=shifts,
        )

    def _integers(self, name: TensorId, params: QuantParams) -> npt.NDArray[Any]:
        """Return the integers of a weight."""
        rounded, value = self.inputs.choices.corrections.weight_values.get(name), self.inputs.params[name]
        if rounded is None:
            return quantize(value, params)
        if rounded.shape != value.shape:
            raise QuantizationError(f"weight_values: {name} has the shape {value.shape}, got {rounded.shape}")
        return rounded

    def _bias(self, layer: Layer, bias: Bias, shifts: Mapping[TensorId, npt.NDArray[np.float32]]) -> npt.NDArray[Any]:
        """Return the bias of a layer in real numbers, as its parameter holds it, with what is added to it."""
        value, shift = self.inputs.params[bias.constant.name], shifts.get(layer.name)
        if shift is None:
            return value
        if shift.size != value.size:
            raise QuantizationError(f"bias_shifts: {layer.name} has {value.size} channels, got {shift.size} numbers")
        return value + shift.reshape(value.shape)

    def _constraints(self, placement: Placement) -> TensorConstraints:
        """Return what the layers of a placement ask of their tensors, and the target of those that it quantizes from float."""
        constraints = TensorConstraints(inputs=self.inputs)
        for layer in placement.layers:
            joined = constraints.joined(layer)
            assert not isinstance(joined, str), "a layer with a conflict is not placed"
            constraints.add(joined)
        for var in dict.fromkeys(var for layer in placement.layers for var in layer.quantized_inputs):
            if var not in placement.made:
                constraints.add_quantize(var)
        return constraints


@dataclass(frozen=True, kw_only=True, eq=False)
class _Ranges:
    """Ranges of activations, and of constants among them; tensors of one set of parameters have that of all.

    An op of one input that only moves values makes no new one: its output takes the input's range. Of any other (a concat) the
    range is the hull of all inputs and the output.
    """

    inputs: PlanInputs
    placement: Placement
    constraints: TensorConstraints
    _known: dict[Key, tuple[float, float] | None] = field(default_factory=dict["Key", "tuple[float, float] | None"])

    @cached_property
    def _overridden(self) -> Mapping[Var, Override]:
        return self.inputs.overrides.of_activations(self.placement.layers)

    @cached_property
    def _followers(self) -> set[Var]:
        """What has the range of what it is moved from."""
        return {each.output for each in self.placement.layers if each.moves and len({*each.operands}) == 1}

    def params(self, key: Key) -> QuantParams:
        """Return the parameters of a tensor."""
        scheme = self.constraints.scheme(key)
        if scheme.is_fixed:
            return scheme.params(0.0, 0.0)
        own = (self._own(each) for each in self.constraints.alike(key) if each not in self._followers)
        lows, highs = zip(*(ends for ends in own if ends is not None), strict=True)
        return scheme.params(min(lows), max(highs))

    def _own(self, key: Key) -> tuple[float, float] | None:
        """Return a tensor's own range, or None where it has none."""
        if key not in self._known:
            scheme = self.constraints.scheme(key)
            self._known[key] = self._estimated(key, scheme) if isinstance(key, Var) else _ends(self.inputs.params[key])
        return self._known[key]

    def _estimated(self, var: Var, scheme: QuantScheme) -> tuple[float, float] | None:
        source, statistics = self.inputs.form.sources.source(var), self.inputs.form.statistics
        if source is None or statistics is None:
            return None
        entry = statistics[source]
        if entry.non_finite_note:
            raise QuantizationError(
                f"{entry.non_finite_note}; profile without the samples that cause them, or exclude the op that reads it"
            )
        chosen = self.inputs.choices.ranges.get(TensorId(var.name))
        if chosen is not None:
            return chosen
        own, recipe = self._overridden.get(var, Override()).range_estimator, self.inputs.recipe
        estimator = recipe.estimator if own is None else range_estimator(own, {"percentile": recipe.percentile})
        low, high = estimator.range_of(entry, scheme)
        if not (np.isfinite(low) and np.isfinite(high) and low <= high):
            raise QuantizationError(
                f"{var.name}: the range [{low}; {high}] of {own or recipe.range_estimator} is not finite or not in order; "
                "profile the model again, or choose another range_estimator"
            )
        return low, high


def _ends(values: npt.NDArray[Any]) -> tuple[float, float]:
    return float(values.min(initial=0.0)), float(values.max(initial=0.0))
