"""Parameters: scale and zero point of every activation, weight and bias that a placement makes integer. No graph is rewritten."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from ..errors import QuantizationError
from ..identity import TensorId
from ..numerics import PerAxis, PerTensor, QuantParams, quantize
from ..numerics.statistics.histogram import Histogram
from ..numerics.statistics.ranges import asymmetric_params, min_max_range, percentile_range, symmetric_params
from .constants import Constants
from .placement import Layer, Placement
from .plan import Adjustment
from .ranges import Ranges
from .recipe import Recipe

_INT32_MAX = 2**31 - 1
_OPERAND = -1
"""Stands for the axis of a constant that is no weight but an operand among activations."""
_BIAS_ROOM = 2**24
"""Room that the products must leave for the bias in an int32 accumulator: as fine as a float32's own 24 bits."""
_ACTIVATION_SPAN = 255
"""Largest |x - zero_point| of an 8-bit activation."""


class TensorRange(Protocol):
    """What is read of one tensor's statistics."""

    @property
    def minimum(self) -> float:
        """Least value."""
        ...

    @property
    def maximum(self) -> float:
        """Greatest value."""
        ...

    @property
    def histogram(self) -> Histogram:
        """Counts of the values."""
        ...

    @property
    def non_finite_note(self) -> str:
        """What is to be said of values that are NaN or infinite, "" where there are none."""
        ...


class Statistics(Protocol):
    """What is read of a profile."""

    @property
    def fingerprint(self) -> str:
        """Of the model that was profiled."""
        ...

    def __getitem__(self, key: TensorId, /) -> TensorRange:
        """Return the statistics of one tensor."""
        ...

    def __contains__(self, key: object, /) -> bool:
        """Return whether a tensor was observed."""
        ...

    def __iter__(self) -> Iterator[TensorId]:
        """Iterate over the observed tensors."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Parameters:
    """Parameters by variable; weights and biases by the name of their parameter, with their integers."""

    activations: dict[Var, QuantParams]
    weights: dict[TensorId, QuantParams]
    biases: dict[Var, QuantParams]
    bias_values: dict[Var, npt.NDArray[Any]]
    weight_values: dict[TensorId, npt.NDArray[Any]]
    adjustments: tuple[Adjustment, ...]


@dataclass(kw_only=True, slots=True)
class ParameterChooser:
    """Chooses parameters for one model.

    Parameters
    ----------
    params
        The model's constants.
    ranges
        Says which tensor of the profile tells a variable's range.
    """

    constants: Constants
    params: Mapping[TensorId, npt.NDArray[Any]]
    statistics: Statistics
    recipe: Recipe
    ranges: Ranges
    _axis_of_weight: dict[TensorId, int | None] = field(default_factory=dict[TensorId, "int | None"])

    def has_range(self, var: Var) -> bool:
        """Return whether the profile tells a range of the variable."""
        return self.ranges.source(var) is not None

    def refuse(self, layer: Layer) -> str | None:
        """Return why a layer's numbers cannot be integers, or None; a weight belongs to the first layer that reads it."""
        for constant in layer.constants:
            value = self.params[constant.name]
            if value.dtype != np.float32 or not np.isfinite(value).all():
                return f"its constant {constant.name} is no float32, or holds NaN or infinity"
            if self._axis_of_weight.get(constant.name, _OPERAND) != _OPERAND:
                return f"its constant {constant.name} is the weight of another layer, too"
            self._axis_of_weight[constant.name] = _OPERAND
        op = layer.op
        if op is None:
            return None
        weight, axis = self.params[op.weight.name], self._weight_axis(layer)
        if not np.isfinite(weight).all():
            return f"its weight {op.weight.name} holds NaN or infinity"
        if weight.dtype != np.float32:
            return f"its weight {op.weight.name} is {weight.dtype}, expected float32"
        if self._axis_of_weight.get(op.weight.name, axis) != axis:
            return f"its weight {op.weight.name} is shared with a layer that has its channels along another axis"
        if (
            int(self._room(layer, symmetric_params(weight, self.recipe.weight_dtype, axis=axis)).min(initial=_INT32_MAX))
            < _BIAS_ROOM
        ):
            return f"its sums over {weight.size // op.channels} products could overflow an int32 accumulator"
        if layer.bias is not None and not np.isfinite(self.constants.value(layer.bias.constant)).all():
            return f"its bias {layer.bias.constant.name} holds NaN or infinity"
        self._axis_of_weight[op.weight.name] = axis
        return None

    def choose(self, placement: Placement) -> Parameters:
        """Return the parameters of everything in a placement."""
        activations = self._activations(placement)
        weights: dict[TensorId, QuantParams] = {}
        adjustments: list[Adjustment] = []
        floors: dict[TensorId, npt.NDArray[np.float64]] = {}
        weighted_layers = [layer for layer in placement.layers if layer.op is not None]
        for layer in weighted_layers:
            assert layer.op is not None, "filtered"
            name, axis = layer.op.weight.name, self._weight_axis(layer)
            asked = symmetric_params(self.params[name], self.recipe.weight_dtype, axis=axis)
            floor = self._floor(layer, activations[layer.inputs[0]], asked)
            floors[name] = np.maximum(floors.get(name, np.zeros(())), floor)
            weights[name] = symmetric_params(self.params[name], self.recipe.weight_dtype, axis=axis, floor=floors[name])
            widened = int((weights[name].scale > asked.scale).sum())
            if widened:
                message = f"{widened} scales widened so that the bias of {layer.name} fits an int32 accumulator"
                adjustments.append(Adjustment(tensor=name, message=message))
        for constant in (constant for layer in placement.layers for constant in layer.constants):
            low, high = min_max_range(*_ends(self.params[constant.name]))
            weights[constant.name] = asymmetric_params(low, high, self.recipe.activation_dtype)
        biases: dict[Var, QuantParams] = {}
        bias_values: dict[Var, npt.NDArray[Any]] = {}
        for layer in weighted_layers:
            if layer.op is not None and layer.bias is not None:
                biases[layer.output] = _bias_params(activations[layer.inputs[0]], weights[layer.op.weight.name], layer.bias.axis)
                value = self.params[layer.bias.constant.name]
                bias_values[layer.output] = quantize(value, biases[layer.output])
        return Parameters(
            activations=activations,
            weights=weights,
            biases=biases,
            bias_values=bias_values,
            weight_values={name: quantize(self.params[name], params) for name, params in weights.items()},
            adjustments=tuple(adjustments),
        )

    def _activations(self, placement: Placement) -> dict[Var, QuantParams]:
        result: dict[Var, QuantParams] = {}
        for layer in placement.layers:
            for data in layer.inputs:
                if data not in result:
                    result[data] = self._from_range(data)
            same = layer.support.same_params
            if not layer.leaves_float:
                result[layer.output] = result[layer.inputs[0]] if same else self._from_range(layer.output)
        return result

    def _from_range(self, var: Var) -> QuantParams:
        source = self.ranges.source(var)
        assert source is not None, f"{var.name}: the placement asks for ranges that are there"
        entry = self.statistics[source]
        if entry.non_finite_note:
            raise QuantizationError(
                f"{entry.non_finite_note}; profile without the samples that cause them, or exclude the op that reads it"
            )
        if self.recipe.range_estimator == "percentile":
            low, high = percentile_range(entry.histogram, entry.minimum, entry.maximum, self.recipe.percentile)
        else:
            low, high = min_max_range(entry.minimum, entry.maximum)
        if not (np.isfinite(low) and np.isfinite(high)):
            raise QuantizationError(f"{var.name}: the profile's range [{low}; {high}] is not finite; profile the model again")
        return asymmetric_params(low, high, self.recipe.activation_dtype)

    def _weight_axis(self, layer: Layer) -> int | None:
        assert layer.op is not None, "only layers with weights have a weight axis"
        per_axis = self.recipe.weight_granularity == "per_axis" and "per_axis" in layer.support.weight_granularity
        return layer.op.weight_axis if per_axis and layer.op.has_channels else None

    def _room(self, layer: Layer, params: QuantParams) -> npt.NDArray[np.int64]:
        """Return what each output channel's products leave at least of an int32 accumulator, (channels,)."""
        assert layer.op is not None, "only layers with weights have products"
        integers = quantize(self.params[layer.op.weight.name], params).astype(np.int64)
        channels_last = np.moveaxis(np.abs(integers), layer.op.weight_axis, -1)
        room = _INT32_MAX - _ACTIVATION_SPAN * channels_last.reshape(-1, channels_last.shape[-1]).sum(axis=0)
        return np.tile(room, layer.op.channels // room.size)

    def _floor(self, layer: Layer, data: QuantParams, asked: QuantParams) -> npt.NDArray[np.float64]:
        """Return the smallest weight scales with which the bias still fits beside the products, of the scales' shape."""
        if layer.bias is None:
            return np.zeros(())
        bias = np.abs(self.constants.value(layer.bias.constant).reshape(-1).astype(np.float64))
        # Wider scales only shrink the integers of the weights, so the room stays; the margin covers rounding to float32.
        floor = bias / (float(data.scale) * self._room(layer, asked) * (1 - 2.0**-20))
        return floor if asked.scale.ndim else np.asarray(floor.max(initial=0.0))


def _ends(values: npt.NDArray[Any]) -> tuple[float, float]:
    return float(values.min(initial=0.0)), float(values.max(initial=0.0))


def _bias_params(data: QuantParams, weight: QuantParams, axis: int) -> QuantParams:
    """Return int32 parameters with scale s_x * s_w, a float32 product; `axis` is the channels' in the bias."""
    scale = (data.scale * weight.scale).astype(np.float32)
    return QuantParams(
        dtype="int32",
        scale=scale,
        zero_point=np.zeros(scale.shape, np.int32),
        granularity=PerAxis(axis) if scale.ndim else PerTensor(),
    )
