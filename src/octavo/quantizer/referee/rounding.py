"""What a plan rounds, in terms of the float model that was simplified and nothing else. It runs nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ...ir.channels import Factors, scaled
from ...ir.graph import Model
from ...ir.graph.constants import Constants
from ...ir.graph.dataflow import DataflowView
from ...ir.graph.weighted import biased_product
from ...ir.identity import TensorId
from ...numerics import PerAxis, PerTensor, QuantParams, dequantize
from ...numerics.dynamic import row_steps
from ...runtime.mapped import SHARED_BYTES, empty_array
from ...runtime.size import Size, is_open
from ...runtime.tensors import empty_tensor
from ..plan.plan import QuantizationPlan

Floats = npt.NDArray[np.float32]
_ONE = np.ones((), np.float32)
_FLOAT_BYTES = 4
_AT_A_TIME = 512
"""Numbers that NumPy is to go through by their scales before it starts with these anew."""
_AT_ONCE = 2**18
"""Numbers that are dequantized at once: what is between stays in the processor's cache."""


class Rounder:
    """What a program makes of an activation where it is made: here a tensor as it is, which an integer op reads in float32."""

    def rounded(self, value: Any) -> Any:
        """Return what stands for a tensor."""
        return value

    def transposed(self, order: Sequence[int]) -> Rounder:
        """Return the same for a tensor whose axes lie in another order."""
        del order
        return self

    def spread(self, shape: Sequence[int | Size]) -> Rounder:
        """Return the same for tensors of a shape."""
        del shape
        return self

    @property
    def key(self) -> Hashable:
        """What is equal only where it does the same."""
        return self


UNROUNDED = Rounder()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Steps(Rounder):
    """The numbers that an activation may have: scale * [qmin - zero_point; qmax - zero_point].

    Parameters
    ----------
    scale
        float32, of shape () or one that broadcasts to the tensor's.
    low, high
        First and last integer less the zero point, of the scale's shape or ().
    """

    scale: Floats
    low: Floats
    high: Floats

    def rounded(self, value: Any) -> Any:
        """Return a tensor of the nearest such numbers, half to even."""
        result = empty_tensor(value.shape, "float32")
        steps = np.from_dlpack(result)
        np.divide(np.from_dlpack(value), self.scale, out=steps)
        np.rint(steps, out=steps)
        steps.clip(self.low, self.high, out=steps)
        np.multiply(steps, self.scale, out=steps)
        return result

    def transposed(self, order: Sequence[int]) -> Steps:
        """Return them for a tensor whose axes lie in another order."""
        return Steps(**{name: _transposed(getattr(self, name), order) for name in ("scale", "low", "high")})

    def spread(self, shape: Sequence[int | Size]) -> Steps:
        """Return them with scales of few channels, which lie last, repeated: NumPy takes long where it starts anew for few."""
        scale = self.scale
        for axis in range(scale.ndim - 1, -1, -1):
            size = shape[axis - scale.ndim]
            if math.prod(scale.shape[axis:]) >= _AT_A_TIME or is_open(size) or scale.shape[-1] == 1:
                break
            scale = np.repeat(scale, size, axis) if scale.shape[axis] == 1 else scale
        return self if scale is self.scale else replace(self, scale=scale)

    @property
    def key(self) -> Hashable:
        """What is equal only where it does the same."""
        return tuple((each.shape, each.tobytes()) for each in (self.scale, self.low, self.high))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RowSteps(Rounder):
    """The numbers that an activation may have which is quantized per row when run, each row with parameters of its own values.

    Parameters
    ----------
    axis
        Along which a row's values lie; None: a row is a sample, all that an index of the first axis has.
    factors
        What the tensor is divided by before and multiplied by behind, of a shape that broadcasts to its own.
    """

    axis: int | None = -1
    factors: Floats = field(default_factory=lambda: _ONE)

    def rounded(self, value: Any) -> Any:
        """Return a tensor of the nearest such numbers."""
        result = empty_tensor(value.shape, "float32")
        given: Any = np.from_dlpack(value)
        rounded = np.from_dlpack(result)
        if self.factors is _ONE:
            steps, scale = row_steps(given, self.axis)
            np.multiply(steps, scale, out=rounded)
        else:
            by_factors: Floats = np.divide(given, self.factors, dtype=np.float32)
            steps, scale = row_steps(by_factors, self.axis)
            np.multiply(np.multiply(steps, scale, out=steps), self.factors, out=rounded)
        return result

    def transposed(self, order: Sequence[int]) -> RowSteps:
        """Return them for a tensor whose axes lie in another order."""
        axis = None if self.axis is None else order.index(self.axis % len(order))
        return RowSteps(axis=axis, factors=_transposed(self.factors, order))

    @property
    def key(self) -> Hashable:
        """What is equal only where it does the same."""
        return self.axis, self.factors.shape, self.factors.tobytes()


def _transposed(value: Floats, order: Sequence[int]) -> Floats:
    return value.transpose(order) if value.ndim else value


def steps_of(params: QuantParams, factors: Floats | None = None) -> Steps:
    """Return the numbers that parameters have, of a tensor that is divided by factors before and multiplied by them behind."""
    scale, zero_point = params.scale, params.zero_point
    if isinstance(params.granularity, PerAxis):
        raise NotImplementedError("activations with a scale for each channel")
    low, high = (np.asarray(end - zero_point, np.float32) for end in (params.qmin, params.qmax))
    return Steps(scale=scale if factors is None else scale * factors, low=low, high=high)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rounding:
    """What is rounded.

    Parameters
    ----------
    activations
        By name what each may be.
    layers
        Integer ops by their outputs, each with what its weight, bias and constants are in place of the model's.
    rows
        By the outputs of those that leave float32 what each of their inputs may be for them that has no static parameters.
    factors
        By what equalization divides activations.
    gains
        What it multiplies constants by, of size 1 along axes of large ones on which it does not depend; those that it leaves are
        not there.
    bias_gains
        What it multiplies the biases of layers by, by the outputs of these.
    """

    activations: Mapping[TensorId, Rounder]
    layers: Mapping[TensorId, Mapping[TensorId, Floats]]
    rows: Mapping[TensorId, Mapping[TensorId, Rounder]]
    factors: Factors = field(default_factory=dict[TensorId, Floats])
    gains: Mapping[TensorId, Floats] = field(default_factory=dict[TensorId, Floats])
    bias_gains: Mapping[TensorId, Floats] = field(default_factory=dict[TensorId, Floats])

    @property
    def names(self) -> set[TensorId]:
        """All activations that are rounded, for any op."""
        return {*self.activations, *(name for rows in self.rows.values() for name in rows)}

    @property
    def key(self) -> frozenset[Hashable]:
        """What is equal only where it does the same, of what rounds activations alone."""
        return frozenset(self.keys(self.names).values())

    @property
    def of_activations(self) -> Rounding:
        """What rounds activations alone, for any op: for weights and biases corrections make up."""
        return self.only(self.names)

    def only(self, activations: Collection[TensorId] = (), layers: Collection[TensorId] = ()) -> Rounding:
        """Return what rounds these activations alone, and the constants of these layers; other layers read what they did."""
        return replace(
            self,
            activations={name: steps for name, steps in self.activations.items() if name in activations},
            layers={name: values if name in layers else {} for name, values in self.layers.items()},
            rows={
                output: {name: each for name, each in rows.items() if name in activations} for output, rows in self.rows.items()
            },
        )

    def keys(self, activations: Iterable[TensorId]) -> dict[TensorId, Hashable]:
        """Return of activations what is equal only where rounding each alone does the same."""
        ops = frozenset(self.layers), frozenset(self.rows)
        rows: dict[TensorId, list[Hashable]] = {}
        for output, each in self.rows.items():
            for name, steps in each.items():
                rows.setdefault(name, []).append((output, steps.key))
        own = {name: steps.key for name, steps in self.activations.items()}
        return {name: (name, own.get(name), frozenset(rows.get(name, ())), *ops) for name in activations}

    def with_params(self, activations: Mapping[TensorId, QuantParams]) -> Rounding:
        """Return what rounds these activations by these parameters, too."""
        steps = {name: steps_of(params, self.factors.get(name)) for name, params in activations.items()}
        return replace(self, activations={**self.activations, **steps})


class LayerValues(Mapping[TensorId, Floats]):
    """What a layer's constants are in place of a model's: large ones are made each time that they are asked for.

    Parameters
    ----------
    made
        Makes each, by its name in the model.
    """

    def __init__(self, made: Mapping[TensorId, Callable[[], Floats]], simple: Model) -> None:
        is_large = {name: name in simple.params and simple.params[name].nbytes >= SHARED_BYTES for name in made}
        self._made, self._known = made, {name: make() for name, make in made.items() if not is_large[name]}

    def __getitem__(self, name: TensorId) -> Floats:
        """Return a constant."""
        known = self._known.get(name)
        return self._made[name]() if known is None else known

    def __contains__(self, name: object) -> bool:
        """Return whether there is one of a name: it is not made for that."""
        return name in self._made

    def __iter__(self) -> Iterator[TensorId]:
        """Yield the names."""
        return iter(self._made)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._made)


def dequantized(integers: npt.NDArray[Any], params: QuantParams) -> Floats:
    """Return what `dequantize` does: of many integers some rows at a time, where a tensor can share them."""
    by_rows = isinstance(params.granularity, PerTensor) or (
        isinstance(params.granularity, PerAxis) and params.granularity.axis % max(integers.ndim, 1) != 0
    )
    if integers.size * _FLOAT_BYTES < SHARED_BYTES or integers.ndim < 2 or not by_rows:
        return dequantize(integers, params)
    found = empty_array(integers.size, np.float32).reshape(integers.shape)
    step = max(1, _AT_ONCE * len(integers) // integers.size)
    for start in range(0, len(integers), step):
        found[start : start + step] = dequantize(integers[start : start + step], params)
    return found


NOTHING = Rounding(activations={}, layers={}, rows={})


def constants_of(simple: Model, plan: QuantizationPlan, view: DataflowView) -> dict[TensorId, dict[TensorId, TensorId]]:
    """Map the constants of the model that an integer op reads rounded to their names in a plan, by the outputs of these ops.

    A bias that other ops read too has a name of its own in a plan. Left out are ops that equalization adds, and a single number
    that is no bias: kernels are chosen by what it is.
    """
    constants = Constants(view, simple.params)
    found: dict[TensorId, dict[TensorId, TensorId]] = {}
    for layer in plan.layers:
        if layer.output not in view.variables:
            continue
        several = [name for name in layer.constants if name in simple.params and simple.params[name].size > 1]
        own = found[layer.output] = {name: name for name in (layer.weight, *several) if name is not None}
        if layer.bias is not None:
            bias = biased_product(view, constants, view.variables[str(layer.output)]).bias
            assert bias is not None, f"{layer.output} has a bias"
            own[bias] = layer.bias
    return found


def rounding_of(simple: Model, plan: QuantizationPlan, view: DataflowView, gains: Gains) -> Rounding:
    """Return what a plan rounds.

    A tensor that equalization divides by factors is rounded divided and multiplied again: its steps are of as many widths as it
    has channels. What it multiplies weights by is taken out of what their integers stand for. What it adds is not rounded.

    Parameters
    ----------
    simple
        The float model, not equalized.
    plan
        With integers of weights and biases.
    view
        Of the model.
    gains
        Of the plan's equalization.
    """
    factors, known = plan.equalization.factors, view.variables
    of_constants, of_biases = gains.of_constants, gains.of_biases(plan)
    params = {**plan.weights, **plan.biases}
    biases = {layer.bias: layer.output for layer in plan.layers if layer.bias is not None}

    def value(name: TensorId, planned: TensorId) -> Floats:
        integers = plan.weight_values[planned]
        found = dequantized(integers, params[planned]) if planned in params else integers  # a bias that is added in float32
        output = biases.get(planned)
        gain = of_constants.get(name) if output is None else of_biases.get(output)
        return found if gain is None else (found / gain).astype(np.float32)

    return Rounding(
        activations={name: steps_of(each, factors.get(name)) for name, each in plan.activations.items() if name in known},
        layers={
            output: LayerValues({name: partial(value, name, planned) for name, planned in own.items()}, simple)
            for output, own in constants_of(simple, plan, view).items()
        },
        rows={
            layer.output: {
                name: RowSteps(axis=layer.row_axis(name), factors=factors.get(name, _ONE)) if layer.per_row else UNROUNDED
                for name in (layer.inputs if layer.reads_reals else ())
            }
            for layer in plan.layers
            if layer.reads_reals or layer.leaves_copies
        },
        factors=factors,
        gains=of_constants,
        bias_gains=of_biases,
    )


class Gains:
    """What equalization multiplies constants of a model by.

    Parameters
    ----------
    simple
        The float model, not equalized.
    factors
        Of the equalization.
    """

    def __init__(self, simple: Model, factors: Factors) -> None:
        ones = {name: _ones(value) if value.dtype == np.float32 else value for name, value in simple.params.items()}
        units = replace(simple, params=ones)
        self._equalized = scaled(units, factors, exact=False, kept_as=lambda _, value: _narrow(value)) if factors else units
        named = self._equalized.params.items() if factors else ()
        self._changed = {name: value for name, value in named if value.dtype == np.float32 and (value != 1).any()}
        self.of_constants = {name: value for name, value in self._changed.items() if name in ones}
        """By name; those that it leaves are not there."""

    def of_biases(self, plan: QuantizationPlan) -> dict[TensorId, Floats]:
        """Return what it multiplies the bias of each layer by, by the layer's output."""
        if not self._changed:
            return {}
        view = DataflowView(self._equalized.module["main"])
        constants = Constants(view, self._equalized.params)
        outputs = [layer.output for layer in plan.layers if layer.bias is not None and layer.output in view.variables]
        biases = {output: biased_product(view, constants, view.variables[str(output)]).bias for output in outputs}
        return {output: self._changed[bias] for output, bias in biases.items() if bias is not None and bias in self._changed}


def _ones(like: Floats) -> Floats:
    """Return as many ones: of a large constant they take no memory."""
    return np.broadcast_to(_ONE, like.shape) if like.nbytes >= SHARED_BYTES else np.ones_like(like)


def _narrow(gain: Floats) -> Floats:
    """Return what a constant is multiplied by without the axes of a large one on which that does not depend: of size 1."""
    if gain.nbytes >= SHARED_BYTES:
        for axis in range(gain.ndim):
            first = gain.take([0], axis)
            gain = first if (gain == first).all() else gain
    return gain
