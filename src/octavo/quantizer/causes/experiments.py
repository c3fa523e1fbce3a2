"""Root causes by experiment: a rounding with other parameters, without its mean error, weights rounded anew. Ranks nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import tvm
from tvm.relax import Call

from ...ir.channels import find_groups
from ...ir.graph import Model
from ...ir.graph.dataflow import DataflowView, op_name, operand_vars
from ...ir.graph.products import channel_axis
from ...ir.identity import TensorId
from ...numerics import INTEGER_RANGE, PerAxis, QuantParams, dequantize, quantize
from ...numerics.arrays import Array
from ...numerics.statistics.ranges import symmetric_params
from ...target.op_facts import MOVERS
from ..plan.entries import IntegerLayer
from ..plan.plan import QuantizationPlan
from ..ranges import QuantScheme, Range, range_of
from ..recipe import WEIGHT_BITS
from ..referee import Referee
from ..referee.rounding import Rounder, Rounding, Steps
from ..referee.score import said_alone
from ..steps import FloatTensors, SetParams, Step, WidenTensor, WithoutShift

Cause = Literal[
    "coarse scale", "clipping", "weight scale", "bias", "unlike channels", "shifted mean", "weight rounding", "rounding"
]
FAULTS: tuple[Cause, ...] = ("coarse scale", "clipping", "weight scale", "bias")
"""What no choice of ranges needs: parameters that do not fit the values."""
MENDABLE: tuple[Cause, ...] = ("unlike channels", "shifted mean")
"""What a better quantization of the same width takes away."""
Part = Literal["activation", "weights"]

_COARSE = 2.0
"""So many times the step that the values need is no step of theirs."""
_CUT = 0.5
"""A range that holds less than this share of what was observed, on one side, clips."""
_GONE = 0.4
"""A remedy that leaves less than this share of an error names its cause."""
_BIAS_STEPS = 2.0
"""A bias that is rounded to nearest is half a step off at most, a corrected one not much more."""
_SUSPECT, _SUSPECT_SHARE = 4.0, 0.02
"""A corrected bias whose layer alone does so many times what its weights do, and this share of all, is tried without."""
_LITTLE = 0.005
"""Share of all errors: what does less is not looked into."""
_BETTER = 0.9
"""A model whose error is below this share without a correction is better off without."""
_UNLIKE_WEIGHTS = 1.1
"""By this factor a weight's scale differs from the one that its values need where it is another's."""
_LARGE_BIAS = 2**23
"""A bias of so many steps may be why the scale of its channel is wider: an accumulator has room for twice as many at least."""
_LEAST = 1e-3
"""Of the error: so much is left by any remedy, as far as gains are said."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RootCause:
    """One rounding.

    Parameters
    ----------
    id, source_name, op
        The activation, or the result of the layer whose weights are rounded, and the source's op that makes it.
    part
        "activation" or "weights" (with the layer's bias).
    sqnr_db
        Of the model's worst output where this alone is rounded, in dB; inf where it does nothing.
    share
        Of the power that the errors of all roundings alone add up to, in [0; 1].
    cause
        What makes it so large, by experiment; None where it is too small to be looked into.
    remedy
        What to do about it, in words.
    gain_db
        By how much the signal to noise ratio of the worst output would grow with the remedy, the errors taken as independent.
    steps
        What `fix` tries against it, by what it does in words, what costs least first.
    """

    id: TensorId
    source_name: str
    op: str
    part: Part
    sqnr_db: float
    share: float
    cause: Cause | None = None
    remedy: str = ""
    gain_db: float = 0.0
    steps: Mapping[str, Step] = field(default_factory=dict[str, Step], repr=False)


class Experiments:
    """What can be tried on one quantized model. Effects are power of the error of the worst output, in shares of its power.

    Parameters
    ----------
    simple
        The float model that was simplified to be quantized.
    plan
        With the parameters of activations and weights that the model really has, and the integers.
    """

    def __init__(self, referee: Referee, simple: Model, plan: QuantizationPlan) -> None:
        self.wrong_biases = set[TensorId]()
        """Of layers whose corrections do harm; found with the effects."""
        self._referee, self._simple, self._plan = referee, simple, plan
        self._rounding, self._view = referee.rounding(plan), DataflowView(simple.module["main"])
        self._together = self._effect(self._rounding)
        self._ends = referee.ends([*plan.activations])
        """The least and the greatest value of each activation, by sample."""
        self._layers = {layer.output: layer for layer in plan.layers}
        self._groups = {var.name: groups for var, groups in find_groups(simple).of.items()}
        self._unshifted = dict[TensorId, float]()
        """What `_without_mean_error` found."""

    def effects(self) -> dict[tuple[Part, TensorId], float]:
        """Return what each rounding alone does; an activation that passes rounded ones through has none."""
        params, layers = self._plan.activations, self._plan.layers
        moved = {layer.output for layer in layers if layer.op in MOVERS and not layer.constants and layer.output in params}
        moved = {name for name in moved if all(params.get(each) == params[name] for each in self._layers[name].inputs)}
        per_row = [name for layer in layers for name in layer.per_row if name not in params]
        names = dict.fromkeys((*(name for name in params if name not in moved), *per_row))
        activations = self._referee.effects(self._rounding, names)
        weights = self._referee.layer_effects(self._rounding, [layer.output for layer in layers if layer.weight])
        found: dict[tuple[Part, TensorId], float] = {("activation", name): effect for name, effect in activations.items()}
        for name, effect in weights.items():
            found["weights", name] = self._weight_effect(self._layers[name], effect)
        return found

    def is_unfit(self, part: Part, name: TensorId) -> bool:
        """Return whether parameters do not fit what they are of, whatever that costs: of an activation, or of a layer."""
        if part == "weights":
            return self._has_wrong_bias(self._layers[name]) or bool(self._unfit_channels(self._layers[name]))
        if name not in self._plan.activations:  # each row has parameters of its own
            return False
        params, (low, high) = self._plan.activations[name], self._range(name)
        ends = range_of(params)
        cut = (low < 0 and ends[0] > _CUT * low) or (high > 0 and ends[1] < _CUT * high)
        return cut or float(params.scale) > _COARSE * float(QuantScheme.of(params).params(low, high).scale)

    def explained(self, row: RootCause, effect: float) -> RootCause:
        """Return a row with what makes its rounding do so much, and what would help."""
        return self._of_weights(row) if row.part == "weights" else self._of_activation(row, effect)

    def _named(
        self,
        row: RootCause,
        cause: Cause,
        remedy: str,
        errors: tuple[float, float],
        steps: Mapping[str, Step] = MappingProxyType({}),
    ) -> RootCause:
        """Return a row with its cause: `errors` are what the rounding does, and what is left of that with the remedy."""
        effect, left = errors
        gone = max(0.0, min(effect, self._together) - left)
        gain = -10 * math.log10(max(1 - gone / max(self._together, gone), _LEAST)) if gone else 0.0
        return replace(row, cause=cause, remedy=remedy, gain_db=gain, steps=steps)

    def _effect(self, rounding: Rounding) -> float:
        return self._referee.score_of(rounding, few=True).error

    # ------------------------------------------------------------------------------------------------------- activations

    def _of_activation(self, row: RootCause, effect: float) -> RootCause:
        name = row.id
        if name not in self._plan.activations:
            said = f"8 bits are too few for each row of it{self._between(name)}: leave it float (Recipe(float_tensors=))"
            floats = FloatTensors(names=(name,), reasons=(said_alone(effect),))
            return self._named(row, "rounding", said, (effect, 0.0), {"it stays float": floats})
        params, (low, high) = self._plan.activations[name], self._range(name)
        fitting, group = QuantScheme.of(params).params(low, high), self._plan.sharing(name)
        fitted = self._rounding.only().with_params({name: fitting})
        if self.is_unfit("activation", name) and (left := self._effect(fitted)) < effect:
            ratio, seen = float(params.scale) / float(fitting.scale), f"[{low:.4g}; {high:.4g}]"
            has, is_coarse = "[{:.4g}; {:.4g}]".format(*range_of(params)), ratio > _COARSE
            said = f"its range {has} cuts values, which lie in {seen}: choose a wider one"
            if is_coarse:
                said = f"its scale is {ratio:.3g} times what its values need, {seen}: choose a range that fits them"
            step = SetParams(tensor=name, params=dict.fromkeys(group, fitting))
            steps = {f"its range is [{low:.5g}; {high:.5g}], that of its values": step}
            return self._named(row, "coarse scale" if is_coarse else "clipping", said, (effect, left), steps)
        wider = {
            "it has 16 bits": WidenTensor(tensor=name),
            "it stays float": FloatTensors(names=group, reasons=(said_alone(effect),) * len(group)),
        }
        by_channel = self._rounded_by_channel(name)
        if by_channel < _GONE * effect:
            said = "the ranges of its channels are unlike: scale them alike in the layers before and behind it (equalization)"
            return self._named(row, "unlike channels", said, (effect, by_channel), wider)
        few = f"{(params.qmax - params.qmin).bit_length()} bits are too few for it{self._between(name)}"
        said = f"{few}: leave it float (Recipe(float_tensors=), min_sqnr=), or take 16 bits"
        return self._named(row, "rounding", said, (effect, 0.0), wider)

    def _range(self, name: TensorId) -> Range:
        """Return what was observed of a tensor, and of those that share its parameters."""
        seen = np.concatenate([self._ends[each] for each in self._plan.sharing(name)])
        return min(0.0, float(seen[:, 0].min())), max(0.0, float(seen[:, 1].max()))

    def _between(self, name: TensorId) -> str:
        """Return the ops around a tensor, as " (power -> add -> sqrt)"; "" for an input of the model."""
        binding = next((each for each in self._view.bindings if each.var.name == str(name)), None)
        if binding is None:
            return ""
        around = (operand_vars(binding.value), (binding.var,), self._view.users(binding.var))
        values = [[self._view.definition(var) for var in each] for each in around]
        ops = [", ".join(dict.fromkeys(op_name(value) for value in each if isinstance(value, Call))) for each in values]
        return f" ({' -> '.join(filter(None, ops))})"

    def _rounded_by_channel(self, name: TensorId) -> float:
        """Return the effect of rounding a tensor with a scale for each channel, inf where equalization has no channels of it."""
        groups = self._groups.get(str(name))
        if groups is None:
            return math.inf
        values = self._referee.values(name)
        others = tuple(axis for axis, size in enumerate(groups.shape) if size == 1)
        low = np.minimum(np.min([value.min(axis=others, keepdims=True) for value in values], axis=0), 0)
        high = np.maximum(np.max([value.max(axis=others, keepdims=True) for value in values], axis=0), 0)
        qmin, qmax = INTEGER_RANGE[self._plan.activations[name].dtype]
        scale = np.maximum((high - low) / (qmax - qmin), np.finfo(np.float32).tiny).astype(np.float32)
        steps = Steps(scale=scale, low=np.full((), -np.inf, np.float32), high=np.full((), np.inf, np.float32))
        return self._effect(replace(self._rounding.only(), activations={name: steps}))

    # ----------------------------------------------------------------------------------------------------------- weights

    def _of_weights(self, row: RootCause) -> RootCause:
        name, layer = row.id, self._layers[row.id]
        weight, shifts, unfit = layer.weight, self._plan.corrections.bias_shifts, self._unfit_channels(layer)
        assert weight is not None, "it has one"
        of_weights = self._effect(self._only_weight(layer))
        if self._has_wrong_bias(layer):
            said = "its bias is not the float one's: quantize it anew, as an int32 of the scale of input times weight"
            if name in self.wrong_biases:
                said = "the correction of its bias makes the outputs worse: take the float one's"
            steps: dict[str, Step] = {"its bias is quantized anew": SetParams(tensor=name, params={})}
            if name in shifts:
                steps["its bias is the float one's, without a correction"] = WithoutShift(tensor=name)
            return self._named(row, "bias", said, (self._effect(self._rounding.only(layers=[name])), of_weights), steps)
        fitted = self._fitted(weight)
        rounded = dequantize(quantize(self._simple.params[weight], fitted), fitted)
        nearest = self._effect(self._only_weight(layer, {weight: rounded}))
        if unfit:
            listed = ", ".join(f"{index} ({ratio:.3g} times)" for index, ratio in unfit[:4])
            said = f"scales of its weights are others than their values need, in channels {listed}: take those of each channel"
            steps = {
                "the scales of its weights are those of each channel's values": SetParams(tensor=name, params={weight: fitted})
            }
            return self._named(row, "weight scale", said, (of_weights, nearest), steps)
        unshifted = self._without_mean_error(layer)
        if name in shifts and self._plan.recipe.bias_correction != "analytic":  # the mean is taken off already
            of_weights = unshifted
        elif unshifted < _GONE * of_weights:
            said = "rounding its weights shifts the mean of its results: correct its bias (Recipe(bias_correction=True))"
            return self._named(row, "shifted mean", said, (of_weights, unshifted))
        steps = {}
        if fitted.num_bits < WEIGHT_BITS:
            full = SetParams(tensor=name, params={weight: self._fitted(weight, WEIGHT_BITS)})
            steps[f"its weights have {WEIGHT_BITS} bits"] = full
        said = 'round its weights by what it reads (Recipe(weight_rounding="gram")), or give them more bits'
        return self._named(row, "weight rounding", said, (of_weights, nearest), steps)

    def _weight_effect(self, layer: IntegerLayer, effect: float) -> float:
        """Return what a layer's weights do to the outputs; `effect` is that of weights and bias.

        A corrected bias makes up for what the layers before are off, too: alone it is an error. Then the weights count without
        the mean error that it takes off, unless the model is better without the correction. What is little anyhow is left so.
        """
        name, is_little = layer.output, effect < _LITTLE * self._together
        if is_little or name not in self._plan.corrections.bias_shifts or self._has_wrong_bias(layer):
            return effect
        found = self._without_mean_error(layer)
        is_suspect = effect > _SUSPECT * found and effect > _SUSPECT_SHARE * self._together
        # A correction of weights that other scales stand for harms too: then these scales are the fault.
        if is_suspect and not self._unfit_channels(layer):
            without = replace(self._rounding, layers={**self._rounding.layers, name: self._weight(layer)})
            if self._effect(without) < _BETTER * self._together:
                self.wrong_biases.add(name)
                return effect
        return found

    def _unfit_channels(self, layer: IntegerLayer) -> list[tuple[int, float]]:
        """Return the channels whose scales are others than their values need, and how many times those they are."""
        weight, how = layer.weight, self._plan.recipe.weight_range
        if weight is None or not (weight in self._plan.weights and weight in self._simple.params):
            return []
        scale, needed = (np.ravel(each.scale) for each in (self._plan.weights[weight], self._fitted(weight)))
        if how == "mse" or (how != "max" and self._plan.weights[weight].num_bits < WEIGHT_BITS):  # what is clamped has others
            return []
        bias, steps = self._bias(layer)
        is_large = np.abs(bias) >= _LARGE_BIAS * steps  # which may be why a scale is wider than its weights need
        ratios = scale.astype(np.float64) / needed
        ratios = np.where((ratios > 1) & (is_large if is_large.size == ratios.size else is_large.any()), 1.0, ratios)
        unfit = [(index, float(ratio)) for index, ratio in enumerate(ratios) if not 1 / _UNLIKE_WEIGHTS < ratio < _UNLIKE_WEIGHTS]
        return sorted(unfit, key=lambda each: -abs(np.log(each[1])))

    def _has_wrong_bias(self, layer: IntegerLayer) -> bool:
        """Return whether a bias is not the float one's, nor the corrected one's.

        Next to a channel of tiny weights a bias may have finer steps than float32 has there: then those count.
        """
        found, steps = self._bias(layer)
        if layer.output in self.wrong_biases or layer.bias is None or not found.size or layer.bias not in self._simple.params:
            return layer.output in self.wrong_biases
        shift = self._plan.corrections.bias_shifts.get(layer.output, np.float32(0))
        expected = np.ravel(self._simple.params[layer.bias]) + np.ravel(shift)
        steps = np.maximum(steps, np.spacing(np.abs(expected, dtype=np.float32)))
        return bool(np.max(np.abs(found - expected) / steps) > _BIAS_STEPS)

    def _bias(self, layer: IntegerLayer) -> tuple[Array, npt.NDArray[np.float64]]:
        """Return what the integers of a layer's bias stand for, and its steps; none of one that has no such."""
        params = None if layer.bias is None else self._plan.biases.get(layer.bias)
        if layer.bias is None or params is None:
            return np.zeros(0, np.float32), np.zeros(0)
        return np.ravel(dequantize(self._plan.weight_values[layer.bias], params)), np.ravel(params.scale).astype(np.float64)

    def _without_mean_error(self, layer: IntegerLayer) -> float:
        """Return what the weights of a layer do to the outputs where the mean error of each channel is taken off its results."""
        name = layer.output
        if name not in self._unshifted:
            exact, rounding = self._referee.values(name), self._only_weight(layer)
            axis = channel_axis(self._view, exact[0].ndim)
            if axis is None:
                return math.inf
            others = tuple(each for each in range(exact[0].ndim) if each != axis)
            pairs = zip(self._referee.values(name, rounding), exact, strict=True)
            means = [(now - was).mean(axis=others, keepdims=True, dtype=np.float64) for now, was in pairs]
            shift = _Shift(by=np.mean(means, axis=0).astype(np.float32))
            self._unshifted[name] = self._effect(replace(rounding, activations={name: shift}))
        return self._unshifted[name]

    def _only_weight(self, layer: IntegerLayer, weight: Mapping[TensorId, Array] | None = None) -> Rounding:
        """Return what rounds nothing but a layer's weight, to what it is or to this one."""
        only = self._rounding.only()
        return replace(only, layers={**only.layers, layer.output: self._weight(layer) if weight is None else weight})

    def _weight(self, layer: IntegerLayer) -> dict[TensorId, Array]:
        """Return what the integers of a layer's weight stand for; its bias is the float one's."""
        return {name: value for name, value in self._rounding.layers[layer.output].items() if name == layer.weight}

    def _fitted(self, weight: TensorId, bits: int | None = None) -> QuantParams:
        """Return parameters of a weight with the scales that its values need, of as many bits as it has, or of others."""
        old = self._plan.weights[weight]
        few = min(WEIGHT_BITS, bits or old.num_bits)
        return symmetric_params(
            self._simple.params[weight],
            old.dtype,
            axis=old.granularity.axis if isinstance(old.granularity, PerAxis) else None,
            narrow=old.qmin > INTEGER_RANGE[old.dtype][0],
            power_of_two=bool(np.all(np.frexp(old.scale)[0] == 0.5)),
            bits=few if few < WEIGHT_BITS else None,
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Shift(Rounder):
    """Takes off a tensor what it is off on average, in place of rounding it."""

    by: npt.NDArray[np.float32]

    def rounded(self, value: Any) -> Any:
        return tvm.runtime.tensor(np.from_dlpack(value) - self.by)

    def transposed(self, order: Sequence[int]) -> _Shift:
        return _Shift(by=self.by.transpose(order))
