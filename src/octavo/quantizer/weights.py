"""Parameters of weights and biases: scales per channel or per tensor, such that the accumulator holds every sum.

A weight has one set of parameters, whichever layers read it. No graph is rewritten.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from ..ir.graph.dataflow import static_shape
from ..ir.graph.weighted import weighted_ops
from ..ir.identity import TensorId
from ..numerics import INTEGER_RANGE, PerAxis, PerBlock, PerTensor, QuantParams, quantize
from ..numerics.dynamic import PER_ROW
from ..numerics.statistics.ranges import block_params, symmetric_params, symmetric_scale
from ..target import GATHERED_MATMUL, STACKED_MATMUL
from ..target.tensor_support import TensorSupport
from ..target.vocabulary import MAX_ACCUMULATOR_BITS
from .constraints import LARGEST_SCALE, TensorConstraints
from .placement import Layer, PlanInputs
from .plan import Adjustment
from .ranges import QuantScheme
from .recipe import ANY, BLOCK_BITS, WEIGHT_BITS, Recipe
from .request import width_of

FoundT = TypeVar("FoundT")
_Floats = npt.NDArray[np.float32]
_KINDS = {PerTensor: "per_tensor", PerAxis: "per_axis", PerBlock: "per_block"}
_INT32_MAX = 2**31 - 1
_OPERAND = (-1, 0)
"""Stands for the axis of a constant that is no weight but an operand among activations."""
_INT32_BITS = 32
_ACTIVATION_SPAN = 255
"""Largest |x - zero_point| of an 8-bit activation."""


_Known = tuple["weakref.ref[_Floats]", dict[str, tuple[object, Any]]]
"""What was found last of one array, by what it is, beside what decided it."""


@dataclass(slots=True, eq=False)
class WeightNumbers:
    """Finds scales, integers and their sums of the weights of one model, however its channels are divided.

    Most plans differ in other things: of each weight what was found last is kept, and it must not hold a weight itself.
    """

    _known: dict[TensorId, _Known] = field(default_factory=dict[TensorId, _Known])

    def find(self, name: TensorId, value: _Floats, what: str, decided_by: object, find: Callable[[], FoundT]) -> FoundT:
        """Return what was found of the same array for the same, else what is found now."""
        known = self._known.get(name)
        if known is None or known[0]() is not value:
            known = self._known[name] = weakref.ref(value), {}
        found = known[1]
        if what not in found or found[what][0] != decided_by:
            found.pop(what, None)  # not kept while its successor is made
            found[what] = decided_by, find()
        return found[what][1]

    def integers(self, name: TensorId, value: _Floats, params: QuantParams) -> npt.NDArray[Any]:
        """Return the integers of a weight."""
        return self.find(name, value, "integers", params, lambda: quantize(value, params))

    def magnitudes(self, name: TensorId, value: _Floats, params: QuantParams, axis: int) -> npt.NDArray[np.int64]:
        """Return the sums of |integers| of each channel, along an axis of a weight."""

        def find() -> npt.NDArray[np.int64]:
            integers = self.integers(name, value, params)
            others = tuple(index for index in range(integers.ndim) if index != axis % integers.ndim)
            return np.abs(integers, dtype=np.int32).sum(axis=others, dtype=np.int64)

        return self.find(name, value, "magnitudes", (params, axis), find)


@dataclass(kw_only=True)
class WeightParameters:
    """Chooses the parameters of the weights of one model: their widths, and how many inputs share a scale, as a recipe asks.

    A weight that several layers read has the width that the first asks for.
    """

    inputs: PlanInputs
    numbers: WeightNumbers = field(default_factory=WeightNumbers)
    _bits: dict[TensorId, int] = field(default_factory=dict[TensorId, int])
    _axis_of_weight: dict[TensorId, tuple[int | None, int]] = field(default_factory=dict[TensorId, "tuple[int | None, int]"])
    """By a weight the axis of its channels, and the size of its blocks."""

    def block(self, layer: Layer) -> int:
        """Return how many inputs share a scale; 0: all. Parameters of blocks that are asked for are blocks, any others none."""
        request = self.inputs.request_of_weight(layer)
        if request is not None and request.params is not None:
            granularity = request.params.granularity
            return granularity.size if isinstance(granularity, PerBlock) and not _obstacle(layer, granularity.size) else 0
        return 0 if self._obstacle_of_recipe(layer) != "" else self.inputs.recipe.weight_block or 0

    def unblocked(self, layers: tuple[Layer, ...]) -> Iterator[Adjustment]:
        """Yield the results of layers that were to have blocks, and cannot."""
        for layer in layers:
            if reason := self._obstacle_of_recipe(layer):
                yield Adjustment(tensor=layer.name, message=f"its weights keep {WEIGHT_BITS} bits, per axis: {reason}")

    def _obstacle_of_recipe(self, layer: Layer) -> str | None:
        """Return why a layer cannot have the blocks of the recipe, "" where it can; None where nobody asks for them."""
        size = self.inputs.recipe.weight_block
        if layer.op is None or layer.support.op not in ("matmul", STACKED_MATMUL, GATHERED_MATMUL) or size is None:
            return None
        is_asked = layer.op.weight.name not in self.inputs.choices.requests and self._own_width(layer) <= BLOCK_BITS
        return _obstacle(layer, size) if is_asked else None

    def _own_width(self, layer: Layer) -> int:
        """Return the width that is asked for a layer, by an override, the recipe, or what spares the smallest."""
        own = self.inputs.override_of(layer).weight_bits
        own = self.inputs.named_width(layer) if own is None else own
        if own is not None:
            return own
        return WEIGHT_BITS if layer.op is not None and layer.op.weight.name in self._spared else usual_width(self.inputs.recipe)

    @cached_property
    def _spared(self) -> set[TensorId]:
        """The weights that keep 8 bits: those that are chosen, else the smallest, together no more than the recipe's share."""
        chosen, share = self.inputs.choices.wide_weights, self.inputs.recipe.wide_weights
        if chosen or not share:
            return {*chosen}
        form = self.inputs.form
        names = (op.weight.name for _, op in weighted_ops(form.view, form.constants))
        sizes = {name: form.model.params[name].size for name in names}
        room, found = share * sum(sizes.values()), set[TensorId]()
        for name, size in sorted(sizes.items(), key=lambda entry: entry[1]):
            room -= size
            if room < 0:
                break
            found.add(name)
        return found

    def refuse(self, layer: Layer) -> str | None:
        """Return why a layer's numbers cannot be integers, or None; a weight belongs to the first layer that reads it."""
        for constant in layer.constants:
            value = self.inputs.form.model.params[constant.name]
            if value.dtype != np.float32 or not np.isfinite(value).all():
                return f"its constant {constant.name} is no float32, or holds NaN or infinity"
            if self._axis_of_weight.get(constant.name, _OPERAND) != _OPERAND:
                return f"its constant {constant.name} is the weight of another layer, too"
            self._axis_of_weight[constant.name] = _OPERAND
        op = layer.op
        if op is None:
            return None
        weight, axis = self.inputs.form.model.params[op.weight.name], (op.weight_axis if layer.block else self._axis(layer))
        laid, its, granularity = (axis, layer.block), f"its weight {op.weight.name}", self._granularities(layer)
        if not np.isfinite(weight).all():
            return f"{its} holds NaN or infinity"
        if weight.dtype != np.float32:
            return f"{its} is {weight.dtype}, expected float32"
        if self._axis_of_weight.get(op.weight.name, laid) != laid:
            return f"{its} is shared with a layer that has its channels along another axis, or other blocks"
        request, given = self.inputs.request_of_weight(layer), self._given(layer)
        unlike = None if given is None else _unlike_layer(given, layer, granularity, weight.shape)
        if request is not None and unlike is not None:
            return f"{its}: {request.who} gives it {unlike}"
        if not layer.block and not granularity:
            return f"{its} and its bias have no granularity in common"
        if not layer.block and axis is None and "per_tensor" not in granularity:
            return f"{its} has no axis of its output channels, and must be quantized per_axis"
        if layer.bias is not None and not np.isfinite(self.inputs.form.constants.value(layer.bias.constant)).all():
            return f"its bias {layer.bias.constant.name} holds NaN or infinity"
        self._axis_of_weight[op.weight.name] = laid
        return None

    def choose(
        self, layers: Iterable[Layer], activations: Mapping[TensorId, QuantParams], constraints: TensorConstraints
    ) -> tuple[dict[TensorId, QuantParams], tuple[Adjustment, ...], dict[Var, str]]:
        """Return the parameters of each weight, which were chosen wider than asked for the sake of a bias, and which layers
        cannot be integer with them, and why."""
        weights: dict[TensorId, QuantParams] = {}
        adjustments: list[Adjustment] = []
        rejected: dict[Var, str] = {}
        floors: dict[TensorId, npt.NDArray[np.float64]] = {}
        for layer in layers:
            if layer.op is None:
                continue
            name, data = layer.op.weight.name, None if layer.reads_reals else activations[TensorId(layer.inputs[0].name)]
            scheme, bits = constraints.scheme(name), _accumulator_bits(layer, data)
            asked = self._asked(layer, scheme)
            if layer.block:  # sums of few products of 4 bits fit
                weights[name] = asked
                continue
            room = self._room(layer, asked, _span(data, bits), bits)
            limit = 2 ** (bits - 1) - 1
            # Products leave the bias, of an int32 accumulator, as much room as float32 has bits of its own: 24.
            if int(room.min(initial=limit)) < (0 if layer.bias is None or data is None else 2 ** (bits - 8)):
                weights.setdefault(name, asked)
                channel = int(room.argmin())
                reach = limit - int(room[channel])
                beyond = f"above {limit}" if reach > limit else f"which leaves no room for the bias below {limit}"
                rejected[layer.output] = f"the int{bits} accumulator of output channel {channel} can reach {reach}, {beyond}"
                continue
            floor = self._floor(layer, data, asked, room)
            floors[name] = np.maximum(floors.get(name, np.zeros(())), floor)
            weights[name] = self._asked(layer, scheme, floors[name])
            if (weights[name].scale < floors[name] * (1 - 2.0**-20)).any():
                rejected[layer.output] = f"its bias does not fit beside the products with the scale {scheme.scale} of {name}"
            widened = int((weights[name].scale > asked.scale).sum())
            if widened:
                message = f"{widened} scales widened so that the bias of {layer.name} fits an int{bits} accumulator"
                adjustments.append(Adjustment(tensor=name, message=message))
        return weights, tuple(adjustments), rejected

    def _asked(self, layer: Layer, scheme: QuantScheme, floor: npt.NDArray[np.float64] | None = None) -> QuantParams:
        """Return the parameters of a weight, whatever its layer's accumulator holds, its scales no less than a floor."""
        assert layer.op is not None, "only layers with weights have parameters of them"
        given, name, recipe = self._given(layer), layer.op.weight.name, self.inputs.recipe
        if given is not None:
            return given
        # One that was to have blocks, and cannot, has 8 bits.
        width = WEIGHT_BITS if self._obstacle_of_recipe(layer) else self._own_width(layer)
        values, bits = self.inputs.form.model.params[name], self._bits.setdefault(name, width)
        if layer.block:
            blocks, schemes = PerBlock(1 - layer.op.weight_axis, layer.block), layer.support.weight_schemes
            asked: dict[str, Any] = {
                "bits": bits,
                "asymmetric": "asymmetric" in schemes,
                "least_error": recipe.weight_range != "max",
            }
            params = self.numbers.find(name, values, "blocks", (blocks, asked), lambda: block_params(values, blocks, **asked))
        else:
            asked = {
                "dtype": scheme.dtype,
                "axis": self._axis(layer),
                "narrow": scheme.narrow,
                "bits": bits if bits < WEIGHT_BITS else None,
                "least_error": recipe.weight_range == "mse",
            }
            covering = self.numbers.find(name, values, "scale", asked, lambda: symmetric_scale(values, **asked))
            params = symmetric_params(values, **asked, floor=floor, power_of_two=scheme.power_of_two, covering=covering)
            params = params if scheme.scale is None else replace(params, scale=np.full_like(params.scale, scheme.scale))
        scales = self.inputs.choices.corrections.weight_scales.get(name)
        return params if scales is None else replace(params, scale=scales)

    def _granularities(self, layer: Layer) -> tuple[str, ...]:
        """Return what the scales of a weight can be, and so those of the bias, which are products with them."""
        assert layer.op is not None, "only layers with weights have scales of them"
        allowed = layer.support.tensor("weight").granularity or ()
        bias = None if layer.bias is None else layer.support.tensor("bias").granularity
        request = self.inputs.request_of_weight(layer)
        requested = request.tensor.granularity if request is not None and isinstance(request.tensor, TensorSupport) else None
        return tuple(name for name in allowed if name in (bias or allowed) and name in (requested or allowed))

    def _given(self, layer: Layer) -> QuantParams | None:
        request = self.inputs.request_of_weight(layer)
        return None if request is None else request.params

    def _axis(self, layer: Layer) -> int | None:
        assert layer.op is not None, "only layers with weights have a weight axis"
        given = self._given(layer)
        if given is not None:
            return given.granularity.axis if isinstance(given.granularity, PerAxis) else None
        allowed = self._granularities(layer)
        wanted = self.inputs.override_of(layer).weight_granularity or self.inputs.recipe.weight_granularity
        per_axis = "per_axis" in allowed and (wanted == "per_axis" or "per_tensor" not in allowed)
        return layer.op.weight_axis if per_axis and layer.op.has_channels else None

    def _room(self, layer: Layer, params: QuantParams, span: int, bits: int) -> npt.NDArray[np.int64]:
        """Return what each output channel's products leave at least of an accumulator, (channels,)."""
        assert layer.op is not None, "only layers with weights have products"
        weight = layer.op.weight.name
        sums = self.numbers.magnitudes(weight, self.inputs.form.model.params[weight], params, layer.op.weight_axis)
        room = 2 ** (bits - 1) - 1 - span * sums
        return np.tile(room, layer.op.channels // room.size)

    def _floor(
        self, layer: Layer, data: QuantParams | None, asked: QuantParams, room: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Return the smallest weight scales with which the bias still fits beside the products, of the scales' shape.

        That of an activation without parameters is added in float32.
        """
        if layer.bias is None or data is None:
            return np.zeros(())
        bias = np.abs(self.inputs.form.constants.value(layer.bias.constant).reshape(-1).astype(np.float64))
        # Wider scales only shrink the integers of the weights, so the room stays; the margin covers rounding to float32.
        floor = bias / (float(data.scale) * np.minimum(room, _INT32_MAX) * (1 - 2.0**-20))
        return floor if asked.scale.ndim else np.asarray(floor.max(initial=0.0))


def _accumulator_bits(layer: Layer, data: QuantParams | None) -> int:
    """Return the width that a layer's sums must keep to: that of its accumulator, as far as kernels make use of it."""
    dtype = PER_ROW.dtype if data is None else data.dtype
    if layer.support.overflow != "proven":
        return MAX_ACCUMULATOR_BITS
    bits = layer.support.bits_of(dtype)
    return bits if width_of(dtype) > 8 else min(bits, _INT32_BITS)


def _span(data: QuantParams | None, bits: int) -> int:
    """Return the largest |x - zero_point| of an activation, or a bound of it that is small beside the accumulator."""
    if data is None:
        return _ACTIVATION_SPAN
    qmin, qmax = INTEGER_RANGE[data.dtype]
    exact = max(qmax - int(data.zero_point), int(data.zero_point) - qmin)
    return max(exact, _ACTIVATION_SPAN) if bits >= _INT32_BITS else exact


def usual_width(recipe: Recipe) -> int:
    """Return the width of the weights of which a recipe says nothing of their own."""
    bits = recipe.weight_bits
    return bits.get(ANY, WEIGHT_BITS) if isinstance(bits, Mapping) else bits


def _obstacle(layer: Layer, size: int) -> str:
    """Return why a layer cannot have blocks of a size, "" where it can."""
    if layer.op is None or size not in layer.support.weight_blocks:
        return f"target {layer.taker} takes no blocks of {size} inputs of {layer.support.op}"
    if layer.support.op != "matmul":
        return "it has a weight for each of several matrices"
    inputs = layer.op.weight.shape[0]
    if inputs % size:
        return f"it has {inputs} inputs, which blocks of {size} do not divide"
    if len(static_shape(layer.op.weight.root) or ()) != 2:
        return f"its weight {layer.op.weight.name} is reshaped to a matrix"
    return ""


def _unlike_layer(params: QuantParams, layer: Layer, allowed: Collection[str], shape: tuple[int, ...]) -> str | None:
    """Return what of the parameters of its weight a layer cannot take, and what it needs; None where they have its form.

    Granularities are allowed that weight and bias have in common; the shape is that of the model's parameter.
    """
    op, support = layer.op, layer.support
    assert op is not None, "only layers with weights have parameters of them"
    if layer.block:
        return _unlike_blocks(params, shape, 1 - op.weight_axis)
    needs = f"{support.op} {layer.name} needs"
    along = params.granularity.axis if isinstance(params.granularity, PerAxis) else None
    axis, channels = op.weight_axis if op.has_channels else None, shape[op.weight_axis]
    scales = np.asarray(params.scale, np.float64).reshape(-1)
    if _KINDS[type(params.granularity)] not in allowed:
        return f"{_KINDS[type(params.granularity)]} scales, {needs} {' or '.join(allowed)}"
    if along is not None and (along != axis or scales.size != channels):
        expected = "no axis" if axis is None else f"{channels} scales along axis {axis}"
        return f"{scales.size} scales along axis {along}, {needs} {expected}"
    if not params.is_symmetric:
        return "a zero point other than 0; quantize makes symmetric weights"
    if support.weight_range == "narrow" and params.qmin == INTEGER_RANGE[params.dtype][0]:
        return f"integers from {params.qmin}, {needs} a narrow range, from {params.qmin + 1}"
    if not ((scales >= 1 / LARGEST_SCALE) & (scales <= LARGEST_SCALE)).all():
        return f"a scale beyond [{1 / LARGEST_SCALE:.3g}; {LARGEST_SCALE:.3g}]"
    return None


def _unlike_blocks(params: QuantParams, shape: tuple[int, ...], axis: int) -> str | None:
    """Return what tells parameters from those of blocks along an axis of a weight, of 4 bits, or None."""
    granularity = params.granularity
    if not isinstance(granularity, PerBlock) or granularity.axis != axis:
        return f"{granularity}, expected blocks along axis {axis}"
    expected = tuple(size // granularity.size if at == axis else size for at, size in enumerate(shape))
    if params.scale.shape != expected:
        return f"scales {params.scale.shape}, expected {expected}"
    low, high = INTEGER_RANGE["int4"]
    if params.dtype != "int8" or params.qmin < low or params.qmax > high:
        return f"integers in [{params.qmin}; {params.qmax}] of {params.dtype}, expected [{low}; {high}] of int8"
    if (params.zero_point < low).any() or (params.zero_point > high).any():
        return f"a zero point beyond [{low}; {high}]"
    return None
