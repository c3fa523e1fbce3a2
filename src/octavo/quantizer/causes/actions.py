"""What is done about each cause: other parameters in the plan, or the model quantized anew with a remedy. It judges nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from ...compiler.target_choice import TargetLike
from ...ir.graph import Model
from ...ir.identity import TensorId
from ...numerics import QuantParams
from ...profiling.model_profile import Profile
from ..choices import Choices
from ..equalized_float import equalized_float
from ..plan.entries import IntegerLayer
from ..plan.plan import QuantizationPlan, QuantizedModel
from ..quantize import quantize, quantize_with
from ..ranges.of_params import scheme_of
from ..recipe import WEIGHT_BITS, Recipe, bits_of
from .experiments import needed_scales
from .requantizer import Requantizer
from .table import RootCause


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class State:
    """A model on its way.

    Parameters
    ----------
    quantized
        What it is now.
    recipe, choices
        With which the profile gives it again, but for what was repaired in its plan.
    """

    quantized: QuantizedModel
    recipe: Recipe
    choices: Choices = field(default_factory=Choices)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Action:
    """One thing to try.

    Parameters
    ----------
    said
        What it does, in words; two actions of a tensor that are called alike do the same.
    is_free
        Whether the model runs as fast with it.
    apply
        Makes the model; QuantizationError where the target cannot take it.
    """

    said: str
    is_free: bool
    apply: Callable[[], State]


@dataclass(frozen=True, kw_only=True, slots=True)
class Actions:
    """Finds what can be done in a model.

    Parameters
    ----------
    requantizer
        Makes models whose activations stay float, or have 16 bits, where that is the cheaper way.
    kept
        Tensors of which the user's recipe says what they must be, by id or source name: they stay.
    """

    model: Model
    profile: Profile
    target: TargetLike
    requantizer: Requantizer
    kept: frozenset[str]

    def of(self, state: State, row: RootCause) -> Iterator[Action]:
        """Yield what can be done about a root cause, what costs least first; nothing about a rounding that is gone."""
        plan = state.quantized.plan
        if row.id not in (plan.activations if row.part == "activation" else {layer.output for layer in plan.layers}):
            return
        if row.part == "activation" and {str(row.id), row.source_name} & self.kept:
            return
        match row.cause:
            case "coarse scale" | "clipping":
                yield from self._refitted(state, row)
            case "weight scale":
                yield self._rescaled(state, row)
            case "bias":
                yield from self._biases(state, row)
            case "shifted mean":
                if state.recipe.bias_correction is not True:
                    yield self._anew(state, "biases are corrected (bias_correction)", bias_correction=True)
            case "weight rounding":
                yield from self._weights(state, row)
            case "unlike channels":
                if state.recipe.equalization == "none":
                    yield self._anew(state, "channels are evened out (equalization)", equalization="auto")
                yield from self._wider(state, row)
            case "rounding":
                yield from self._wider(state, row)
            case None:
                return

    # --------------------------------------------------------------------------------------------- repairs of the plan

    def _refitted(self, state: State, row: RootCause) -> Iterator[Action]:
        """Give an activation the range of its values."""
        if row.fitting is None:
            return
        plan, ends = state.quantized.plan, row.fitting
        params = scheme_of(plan.activations[row.id]).params(*ends)
        ranges = Choices(ranges=dict.fromkeys(group_of(plan, row.id), ends))

        def apply() -> State:
            return replace(self._repaired(state, {row.id: params}), choices=state.choices.with_more(ranges))

        yield Action(said="its range is [{:.5g}; {:.5g}], that of its values".format(*ends), is_free=True, apply=apply)

    def _rescaled(self, state: State, row: RootCause) -> Action:
        """Give a weight the scales that its values need."""
        plan = state.quantized.plan
        name = _layer(plan, row.id).weight
        assert name is not None, "it has weights"
        params = plan.weights[name]

        def apply() -> State:
            value = equalized_float(self.model, plan.equalization).params[name]
            scale = np.maximum(needed_scales(params, value), np.finfo(np.float32).tiny).astype(np.float32)
            return self._repaired(state, {name: replace(params, scale=scale.reshape(params.scale.shape))})

        return Action(said="the scales of its weights are those of each channel's values", is_free=True, apply=apply)

    def _biases(self, state: State, row: RootCause) -> Iterator[Action]:
        """Quantize a bias anew, from the float one; then without what was added to correct it."""
        plan = state.quantized.plan
        yield Action(said="its bias is quantized anew", is_free=True, apply=lambda: self._repaired(state, {}))
        if row.id in plan.corrections.bias_shifts:
            shifts = {name: shift for name, shift in plan.corrections.bias_shifts.items() if name != row.id}
            without = replace(plan, corrections=replace(plan.corrections, bias_shifts=shifts))
            said = "its bias is the float one's, without a correction"
            yield Action(said=said, is_free=True, apply=lambda: self._of_plan(state, without))

    def _repaired(self, state: State, params: dict[TensorId, QuantParams]) -> State:
        return self._of_plan(state, state.quantized.plan.with_params(params))

    def _of_plan(self, state: State, plan: QuantizationPlan) -> State:
        return replace(state, quantized=quantize(self.model, plan=plan, target=self.target))

    # ------------------------------------------------------------------------------------------------- quantized anew

    def _weights(self, state: State, row: RootCause) -> Iterator[Action]:
        if state.recipe.weight_rounding == "nearest":
            yield self._anew(state, "weights are rounded by what their layers read (weight_rounding)", weight_rounding="gram")
        weight = _layer(state.quantized.plan, row.id).weight
        if weight is not None and bits_of(state.quantized.plan.weights[weight]) < WEIGHT_BITS:
            more = Choices(wide_weights={weight: "fewer bits cost the outputs most"})
            yield self._with(state, f"its weights have {WEIGHT_BITS} bits", more)

    def _wider(self, state: State, row: RootCause) -> Iterator[Action]:
        """Give an activation 16 bits, else leave it float: with those whose parameters are its own."""
        plan = state.quantized.plan
        group = group_of(plan, row.id)
        alone = f"rounding it to 8 bits, and nothing else, leaves {row.sqnr_db:.1f} dB"
        if all(plan.activations[name].dtype != "int16" for name in group):
            yield self._changed(state, "it has 16 bits", Choices(wide_activations=dict.fromkeys(group, "a remedy")))
        yield self._changed(state, "it stays float", Choices(float_tensors=dict.fromkeys(group, alone)))

    def _changed(self, state: State, said: str, more: Choices) -> Action:
        def apply() -> State:
            quantized = self.requantizer.changed(state.quantized.plan, more)
            return replace(state, quantized=quantized, choices=state.choices.with_more(more))

        return Action(said=said, is_free=False, apply=apply)

    def _with(self, state: State, said: str, more: Choices) -> Action:
        def apply() -> State:
            choices = state.choices.with_more(more)
            quantized = quantize_with(self.model, self.profile, choices, target=self.target, recipe=state.recipe)
            return State(quantized=quantized, recipe=state.recipe, choices=choices)

        return Action(said=said, is_free=False, apply=apply)

    def _anew(self, state: State, said: str, **changes: object) -> Action:
        def apply() -> State:
            recipe = replace(state.recipe, **changes)
            # Ranges are those of divided tensors: with other factors they are none.
            choices = replace(state.choices, ranges={}) if "equalization" in changes else state.choices
            quantized = quantize_with(self.model, self.profile, choices, target=self.target, recipe=recipe)
            return State(quantized=quantized, recipe=recipe, choices=choices)

        return Action(said=said, is_free=True, apply=apply)


def _layer(plan: QuantizationPlan, output: TensorId) -> IntegerLayer:
    return next(layer for layer in plan.layers if layer.output == output)


def group_of(plan: QuantizationPlan, name: TensorId) -> tuple[TensorId, ...]:
    """Return a tensor and those that share its parameters."""
    found = next((group for group in plan.shared if name in group), (name,))
    return tuple(each for each in found if each in plan.activations)
