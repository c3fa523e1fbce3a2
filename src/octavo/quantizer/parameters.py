"""A plan of a placement: scale and zero point, integers and roundings of all that it makes integer. No graph is rewritten."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from ..errors import QuantizationError
from ..ir.graph.dataflow import call_to, static_shape
from ..ir.graph.moving import CONSTANT_MOVERS
from ..ir.graph.weighted import Bias
from ..ir.graph.weighted_sums import product_of
from ..ir.identity import TensorId
from ..ir.identity.naming import NameSupply
from ..numerics import QuantParams, bias_params, dequantize, quantize
from ..numerics.statistics.histogram_estimates import moments
from ..target.vocabulary import FLOAT32, HALF_EVEN
from .constraints import Key, TensorConstraints
from .equalized_float import EqualizedFloat
from .placement import Layer, Placement, PlanInputs
from .plan import Adjustment, IntegerLayer, QuantizationPlan
from .ranges import QuantScheme, TensorRange
from .recipe import Override
from .weights import WeightParameters

Shifts = Mapping[TensorId, npt.NDArray[np.float32]]
"""Real numbers that are added to biases, (output channels,), by the outputs of their layers."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ParameterChooser:
    """Chooses the parameters of everything in a placement.

    Tensors of one set of parameters have the range of all. An op of one input that only moves values makes no new one: its output
    takes the input's range. Of any other (a concat) the range is the hull of all inputs and the output.
    """

    inputs: PlanInputs
    placement: Placement
    weights: WeightParameters
    _known: dict[Key, tuple[float, float] | None] = field(default_factory=dict["Key", "tuple[float, float] | None"])

    def choose(self) -> tuple[QuantizationPlan, dict[Var, str]]:
        """Return the plan, without what is said of float ops, and the results of layers whose numbers don't fit, with reasons."""
        inputs, layers, constraints = self.inputs, self.placement.layers, self._constraints
        read = dict.fromkeys(
            var for layer in layers for var in (*layer.quantized_inputs, *(() if layer.leaves_float else (layer.output,)))
        )
        activations = {TensorId(var.name): self._params(var) for var in read}
        weights, widened, rejected = self.weights.choose(layers, activations, constraints)
        weights |= {constant.name: self._params(constant.name) for layer in layers for constant in layer.constants}
        values = {name: self._integers(name, params) for name, params in weights.items()}
        shifts: Shifts = inputs.choices.corrections.bias_shifts
        if inputs.recipe.bias_correction == "analytic" and not shifts:
            shifts = _analytic_shifts(inputs.form, layers, weights, values)
        biases: dict[TensorId, QuantParams] = {}
        entries = tuple(map(self._entry, layers, self._bias_names()))
        for layer, entry in zip(layers, entries, strict=True):
            if layer.op is None or layer.bias is None or entry.bias is None:
                continue
            values[entry.bias] = self._bias(layer, layer.bias, shifts)
            if not layer.reads_reals:
                data, weight = activations[TensorId(layer.inputs[0].name)], weights[layer.op.weight.name]
                biases[entry.bias] = bias_params(data, weight, layer.bias.axis)
                values[entry.bias] = quantize(values[entry.bias], biases[entry.bias])
        named, makers = (*activations, *weights), {var: layer for layer in layers for var in layer.members}
        plan = QuantizationPlan(
            fingerprint=inputs.form.model.fingerprint,
            recipe=replace(inputs.recipe, tensors={}, float_tensors=()),
            names={name: known.source_name for name in named if (known := inputs.form.model.tensors.get(name))},
            activations=activations,
            roundings={TensorId(var.name): self._rounding(var, makers.get(var)) for var in read},
            weights=weights,
            biases=biases,
            corrections=replace(inputs.choices.corrections, bias_shifts=shifts),
            equalization=inputs.choices.equalization,
            weight_values=values,
            layers=entries,
            folds=inputs.form.folds,
            shared=constraints.shared(),
        )
        return replace(plan, adjustments=(*widened, *self._adjustments(plan))), rejected

    def _adjustments(self, plan: QuantizationPlan) -> Iterator[Adjustment]:
        """Yield what is said of single tensors besides: idle requests, and what no estimator of ranges chose."""
        used, choices = plan.activations.keys() | plan.weights.keys(), self.inputs.choices
        for name, request in choices.requests.items():
            why = "no integer op reads or makes it: see why its ops stay float"
            if name in plan.biases:
                why = "a bias has the scale of its input times that of its weight"
            if name in plan.biases or name not in used:
                yield Adjustment(tensor=TensorId(name), message=f"{request.who} says what it must be, and {why}")
        for name, reason in choices.wide_weights.items():
            if name in plan.weights:
                yield Adjustment(tensor=name, message=reason)
        for name, (low, high) in choices.ranges.items():
            if name in plan.activations:
                message = f"its range is [{low:.5g}; {high:.5g}]: rounded so, it costs the model's outputs least"
                yield Adjustment(tensor=name, message=message)
        if self.inputs.applied is not None:
            return
        for layer in plan.layers:
            reason = choices.per_row.get(layer.output)
            if reason is not None and layer.per_row:
                is_one = len(layer.inputs) == 1
                how = f"its input is quantized per {'sample' if layer.has_samples else 'row'}"
                how = how if is_one else "its inputs are quantized per row and per column"
                yield Adjustment(tensor=layer.output, message=f"{how}, when run: {reason}")
            elif reason is not None:
                refusal = f"target {layer.target} quantizes no input of {layer.op} per row when run"
                yield Adjustment(tensor=layer.output, message=f"its input has static parameters, for {refusal} ({reason})")
        yield from self.weights.unblocked(self.placement.layers)

    def _bias_names(self) -> Iterator[TensorId | None]:
        """Yield the name of each layer's bias: the source's, or a new one where others read the constant too."""
        view = self.inputs.form.view
        names = NameSupply([*self.inputs.form.model.tensors, *view.names])
        for layer in self.placement.layers:
            if layer.bias is None:
                yield None
                continue
            constant = layer.bias.constant
            is_only = all(view.only_user(var) is not None for var in (constant.root, *constant.moves))
            yield TensorId(constant.root.name if is_only else names.fresh(constant.root.name))

    def _entry(self, layer: Layer, bias: TensorId | None) -> IntegerLayer:
        """Return what the plan says of a layer: of the source's tensor that its result is, as it is or moved, too."""
        form = self.inputs.form
        waiting = [layer.output]  # and what moves it: rows that are a result, too, beside their image, which others read
        for var in waiting:
            if var.name in form.model.tensors:
                return replace(layer.entry, bias=bias, source=TensorId(var.name))
            waiting += [
                each for each in form.view.users(var) if call_to(form.view.definition(each), *CONSTANT_MOVERS) is not None
            ]
        return replace(layer.entry, bias=bias, source=None)

    def _rounding(self, var: Var, layer: Layer | None) -> str:
        """Return the first rounding that the target has for the op that makes a tensor, or for a change from float."""
        support = self.inputs.target.support("quantize") if layer is None or layer.leaves_float else layer.support
        allowed = (HALF_EVEN,) if support is None else support.roundings
        planned = {} if self.inputs.applied is None else self.inputs.applied.plan.roundings
        # Nearly tied means of pixels are rounded as ONNX means them, or one in ten is a step off in what is exported.
        is_mean = self.inputs.form.model.source_format == "onnx" and layer is not None and layer.entry.op == "image.resize2d"
        requested = planned.get(TensorId(var.name), FLOAT32 if is_mean and FLOAT32 in allowed else allowed[0])
        if requested not in allowed:
            op = "a change from float" if support is None else support.op
            rounds = f"target {self.inputs.target.name} rounds results of {op} {' or '.join(allowed)}"
            raise QuantizationError(f"the plan: {var.name}: rounding {requested!r}: {rounds}")
        return requested

    def _integers(self, name: TensorId, params: QuantParams) -> npt.NDArray[Any]:
        rounded, value = self.inputs.choices.corrections.weight_values.get(name), self.inputs.form.model.params[name]
        if rounded is None:
            return self.weights.numbers.integers(name, value, params)
        if rounded.shape != value.shape:
            raise QuantizationError(f"weight_values: {name} has the shape {value.shape}, got {rounded.shape}")
        return rounded

    def _bias(self, layer: Layer, bias: Bias, shifts: Shifts) -> npt.NDArray[Any]:
        """Return the bias of a layer in real numbers, as its parameter holds it, with what is added to it."""
        value, shift = self.inputs.form.model.params[bias.constant.name], shifts.get(layer.name)
        if shift is None:
            return value
        if shift.size != value.size:
            raise QuantizationError(f"bias_shifts: {layer.name} has {value.size} channels, got {shift.size} numbers")
        return value + shift.reshape(value.shape)

    @cached_property
    def _constraints(self) -> TensorConstraints:
        """Return what the layers ask of their tensors, and the target of those that it quantizes from float."""
        constraints = TensorConstraints(inputs=self.inputs)
        for layer in self.placement.layers:
            problem = constraints.add(layer)
            assert problem is None, "a layer with a conflict is not placed"
        for var in dict.fromkeys(var for layer in self.placement.layers for var in layer.quantized_inputs):
            if var not in self.placement.made:
                constraints.add_quantize(var)
        return constraints

    @cached_property
    def _followers(self) -> set[Var]:
        """What has the range of what it is moved from."""
        return {each.output for each in self.placement.layers if each.moves and len({*each.operands}) == 1}

    def _params(self, key: Key) -> QuantParams:
        scheme = self._constraints.scheme(key)
        if scheme.is_fixed:
            return scheme.params(0.0, 0.0)
        own = (self._own(each) for each in self._constraints.alike(key) if each not in self._followers)
        lows, highs = zip(*(ends for ends in own if ends is not None), strict=True)
        return scheme.params(min(lows), max(highs))

    def _own(self, key: Key) -> tuple[float, float] | None:
        """Return a tensor's own range, or None where it has none."""
        if key not in self._known:
            if isinstance(key, Var):
                self._known[key] = self._estimated(key, self._constraints.scheme(key))
            else:
                values = self.inputs.form.model.params[key]
                self._known[key] = float(values.min(initial=0.0)), float(values.max(initial=0.0))
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
        own, recipe = self.placement.overridden.get(var, Override()).range_estimator, self.inputs.recipe
        low, high = recipe.estimator(own).range_of(entry, scheme)
        if not (np.isfinite(low) and np.isfinite(high) and low <= high):
            raise QuantizationError(
                f"{var.name}: the range [{low}; {high}] of {own or recipe.range_estimator} is not finite or not in order; "
                "profile the model again, or choose another range_estimator"
            )
        return low, high


def _analytic_shifts(
    form: EqualizedFloat,
    layers: Iterable[Layer],
    weights: Mapping[TensorId, QuantParams],
    integers: Mapping[TensorId, npt.NDArray[Any]],
) -> Shifts:
    """Return what is to be added to biases, by the outputs of their layers, for what rounding their weights moves results by.

    The mean of what a layer gives moves by the errors of its weights times the means of what it reads (Nagel et al., Data-Free
    Quantization Through Weight Equalization and Bias Correction, 2019, section 4.2). A profile has the ranges of channels, and of
    all values together the mean: each channel's is taken to lie at the same share of its range. Nothing is run.
    """
    found: dict[TensorId, npt.NDArray[np.float32]] = {}
    for layer in layers:
        source = None if layer.op is None or layer.bias is None else form.sources.source(layer.inputs[0])
        if layer.op is None or source is None or layer.reads_reals or form.statistics is None:
            continue
        x, read = layer.inputs[0], form.statistics[source]
        product, shape, name = product_of(layer.core.name, x, layer.op), list(static_shape(x) or ()), layer.op.weight.name
        error = dequantize(integers[name], weights[name]).astype(np.float64) - form.model.params[name]
        if read.histogram.total:
            means = _means(read, x, source, product.axis % len(shape))
            del shape[product.axis]
            found[layer.name] = -product.mean_of(means, shape[1:], product.weights_of(error)).astype(np.float32)
    return found


def _means(read: TensorRange, x: Var, source: TensorId, axis: int) -> npt.NDArray[np.float64]:
    """Return the means of channels along an axis of what a layer reads: that of all values where the profile has no ranges."""
    mean = moments(read.histogram, read.minimum, read.maximum).mean
    shape = static_shape(x) or ()
    if source != x.name or read.channel_axis != axis or read.channel_minimum.size != shape[axis]:
        return np.full(shape[axis], mean)
    has_values = np.isfinite(read.channel_minimum)
    low, high = (np.where(has_values, ends, 0).astype(np.float64) for ends in (read.channel_minimum, read.channel_maximum))
    width = float((high - low).mean())
    share = min(max((mean - float(low.mean())) / width, 0.0), 1.0) if width > 0 else 0.0
    return low + share * (high - low)
