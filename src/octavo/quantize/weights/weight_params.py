"""Parameters of weights and biases: scales per channel or per tensor, such that an int32 accumulator holds every sum.

A weight has one set of parameters, whichever layers read it. No graph is rewritten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from ...identity import TensorId
from ...numerics import PerAxis, PerTensor, QuantParams, quantize
from ...numerics.statistics.ranges import symmetric_params
from ..placement import Layer
from ..plan import Adjustment
from ..recipe import Recipe
from .constants import Constants

_INT32_MAX = 2**31 - 1
_OPERAND = -1
"""Stands for the axis of a constant that is no weight but an operand among activations."""
_BIAS_ROOM = 2**24
"""Room that the products must leave for the bias in an int32 accumulator: as fine as a float32's own 24 bits."""
_ACTIVATION_SPAN = 255
"""Largest |x - zero_point| of an 8-bit activation."""


@dataclass(kw_only=True, slots=True)
class WeightParameters:
    """Chooses the parameters of the weights and biases of one model.

    Parameters
    ----------
    params
        The model's constants.
    """

    constants: Constants
    params: Mapping[TensorId, npt.NDArray[Any]]
    recipe: Recipe
    _axis_of_weight: dict[TensorId, int | None] = field(default_factory=dict[TensorId, "int | None"])

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
        weight, axis = self.params[op.weight.name], self._axis(layer)
        if not np.isfinite(weight).all():
            return f"its weight {op.weight.name} holds NaN or infinity"
        if weight.dtype != np.float32:
            return f"its weight {op.weight.name} is {weight.dtype}, expected float32"
        if self._axis_of_weight.get(op.weight.name, axis) != axis:
            return f"its weight {op.weight.name} is shared with a layer that has its channels along another axis"
        if int(self._room(layer, self._asked(layer)).min(initial=_INT32_MAX)) < _BIAS_ROOM:
            return f"its sums over {weight.size // op.channels} products could overflow an int32 accumulator"
        if layer.bias is not None and not np.isfinite(self.constants.value(layer.bias.constant)).all():
            return f"its bias {layer.bias.constant.name} holds NaN or infinity"
        self._axis_of_weight[op.weight.name] = axis
        return None

    def choose(
        self, layers: Iterable[Layer], activations: Mapping[Var, QuantParams]
    ) -> tuple[dict[TensorId, QuantParams], tuple[Adjustment, ...]]:
        """Return the parameters of each weight, and which were chosen wider than asked for the sake of a bias."""
        weights: dict[TensorId, QuantParams] = {}
        adjustments: list[Adjustment] = []
        floors: dict[TensorId, npt.NDArray[np.float64]] = {}
        for layer in layers:
            if layer.op is None:
                continue
            name, asked = layer.op.weight.name, self._asked(layer)
            floor = self._floor(layer, activations[layer.inputs[0]], asked)
            floors[name] = np.maximum(floors.get(name, np.zeros(())), floor)
            weights[name] = self._asked(layer, floors[name])
            widened = int((weights[name].scale > asked.scale).sum())
            if widened:
                message = f"{widened} scales widened so that the bias of {layer.name} fits an int32 accumulator"
                adjustments.append(Adjustment(tensor=name, message=message))
        return weights, tuple(adjustments)

    def _asked(self, layer: Layer, floor: npt.NDArray[np.float64] | None = None) -> QuantParams:
        assert layer.op is not None, "only layers with weights have parameters of them"
        return symmetric_params(self.params[layer.op.weight.name], self.recipe.weight_dtype, axis=self._axis(layer), floor=floor)

    def _axis(self, layer: Layer) -> int | None:
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


def bias_params(data: QuantParams, weight: QuantParams, axis: int) -> QuantParams:
    """Return int32 parameters with scale s_x * s_w, a float32 product; `axis` is the channels' in the bias."""
    scale = (data.scale * weight.scale).astype(np.float32)
    return QuantParams(
        dtype="int32",
        scale=scale,
        zero_point=np.zeros(scale.shape, np.int32),
        granularity=PerAxis(axis) if scale.ndim else PerTensor(),
    )
