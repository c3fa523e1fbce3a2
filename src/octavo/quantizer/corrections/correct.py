"""Corrections that follow from running a quantized model on samples: weights rounded anew, and biases. Rewrites no graph.

Layer by layer, each on what the layers before it give once they are corrected themselves:

* weights first make up for what is wrong with what it reads, as far as they can (numerics/statistics/inherited.py), and are
  rounded so that the layer's sums change least on it (numerics/statistics/gptq.py);
* what its outputs are then off on average goes into its bias. Rounding weights moves the mean of each output channel, by most
  where a channel has few weights (depthwise layers): what runs on is wrong everywhere by the same amount (Nagel et al., Data-Free
  Quantization Through Weight Equalization and Bias Correction, 2019, section 4.2 and appendix D, in its empirical form).

The referee's program runs: nothing is compiled for a plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ...ir.graph.constants import Constants
from ...ir.graph.dataflow import static_shape
from ...ir.graph.weighted import biased_product
from ...ir.graph.weighted_sums import Product, products_of
from ...ir.identity import TensorId
from ...numerics import PerAxis, QuantParams, bias_params, dequantize, quantize
from ...numerics.arrays import Samples
from ...runtime.heap import trim_heap
from ..plan import Corrections, IntegerLayer, QuantizationPlan
from ..recipe import AUTO, WEIGHT_BITS, Recipe
from ..referee.rounded_program import RoundedProgram
from ..referee.rounding import Rounding, dequantized
from ..sample_threads import in_order, parts_of
from .weights import (
    FINE_BITS,
    Inputs,
    Rows,
    are_free,
    exact_rows,
    fine_unit,
    places_of,
    rounded_in_blocks,
    rounded_weights,
    tells_errors,
)

MEAN_SAMPLES = 16
"""Samples that means are over where weights stay: those of 64 are hardly others."""
_FOR_WEIGHTS = 32
"""Samples that weights of 8 bits are rounded on where samples are large: of as many positions more say hardly anything else."""
_LARGE = 2**16
"""Bytes of a sample that has many positions."""
_MIN_RATIO = 32
"""Positions for each input of a layer: with fewer, samples say little of what its weights should be."""
_MAX_BYTES = 2**27
"""Of all rows together: the first layers are those that pass errors on, and gain most."""
_ROOM = 4
"""Runs of which is known what they made of layers: folds have their own."""
_MAX_MODEL = 2**26
"""Bytes of a model's constants up to which rows are kept: a larger one leaves no memory for them."""


def corrected_on(samples: Samples, recipe: Recipe) -> Samples:
    """Return as many of the samples as say how to correct weights and biases."""
    if recipe.weight_rounding != "gram":
        return samples[:MEAN_SAMPLES]
    size = sum(array.nbytes for array in samples[0]) if samples else 0
    is_plain = recipe.weight_bits == WEIGHT_BITS and recipe.range_estimator != AUTO
    return samples[:_FOR_WEIGHTS] if is_plain and size > _LARGE else samples


_Constants = Mapping[TensorId, npt.NDArray[np.float32]]


class Corrector:
    """Corrects plans of one float model, on its inputs, sample by sample; one at least."""

    def __init__(self, program: RoundedProgram, samples: Samples) -> None:
        self.program, self._samples = program, samples
        self._products = products_of(program.simple, program.view)
        self._floats: _FloatRun | None = None
        self._runs: list[_Run] = []
        """The last ones of a model that is not large: plans that are compared differ in few tensors."""

    def corrections(self, plan: QuantizationPlan, kept: Collection[str] = ()) -> Corrections:
        """Return weights and biases with which outputs are nearer to the float model's, as the recipe of a plan wants them.

        The parameters of what is `kept` stay as they are. The program must have a name for all that the plan rounds.
        """
        rounding = self.program.rounding(plan)
        layers = self._layers(plan, rounding)
        if not any(self._changes(layer, plan) for layer in layers):
            return Corrections()
        run = _Run(self.program, plan, rounding, self._run_float(), kept)
        run.correct(self._samples, layers, self._runs)
        self._runs = [] if self.program.simple.is_large else [*self._runs, run][-_ROOM:]
        return run.corrections

    def _layers(self, plan: QuantizationPlan, rounding: Rounding) -> list[_Layer]:
        """Return the layers of a plan that can be corrected."""
        view, variables = self.program.view, self.program.view.variables
        constants = Constants(view, self.program.simple.params)
        found: list[_Layer] = []
        for layer in plan.layers:
            if layer.weight is None or layer.is_recurrence or layer.output not in rounding.layers:
                continue
            if layer.inputs[0] not in rounding.activations and not layer.reads_reals:
                continue
            biased = biased_product(view, constants, variables[str(layer.output)])
            product = self._products.get(biased.product.name)
            if product is not None and self.program.variable(product.read) is not None:
                bias = biased.bias if layer.bias and not layer.block else None
                found.append(_Layer(entry=layer, product=product, bias=bias))
        return found

    def _changes(self, layer: _Layer, plan: QuantizationPlan) -> bool:
        """Return whether a layer may have another bias, or weights rounded anew: not where too few rows are read to say how."""
        recipe, product = plan.recipe, layer.product
        if layer.bias is not None and recipe.bias_correction is True:
            return True
        shape = static_shape(self.program.view.variables[product.read]) if product.is_matmul else None
        if shape is None or product.has_open_rows or plan.weights[product.weight].num_bits != WEIGHT_BITS:
            return recipe.weight_rounding == "gram"
        return recipe.weight_rounding == "gram" and tells_errors(product, shape, len(self._samples))

    def _run_float(self) -> _FloatRun:
        if self._floats is None:
            wanted = [each for each in self._products.values() if self.program.variable(each.read) is not None]
            self._floats = run_float(self.program, wanted, self._samples)
            trim_heap(self.program.simple.constant_bytes)  # of sums, and of what files hold
        return self._floats


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Layer:
    """A layer of a plan, its product in the float model, and the constant there that is added to that, if it has a bias."""

    entry: IntegerLayer
    product: Product
    bias: TensorId | None


class _Run:
    """A plan that is corrected on the way through the model: of each layer, by its output, its constants and corrections."""

    def __init__(
        self, program: RoundedProgram, plan: QuantizationPlan, rounding: Rounding, floats: _FloatRun, kept: Collection[str]
    ) -> None:
        self._program, self._plan, self._rounding, self._floats, self._kept = program, plan, rounding, floats, kept
        self._moves_biases = plan.recipe.bias_correction is True
        names = [layer.weight for layer in plan.layers]
        self._shared = {name for name in names if names.count(name) > 1}
        self._made: dict[TensorId, tuple[_Constants, Corrections]] = {}

    @property
    def corrections(self) -> Corrections:
        """Those of all layers."""
        every, names = [found for _, found in self._made.values()], ("bias_shifts", "weight_values", "weight_scales")
        return Corrections(**{name: dict(pair for each in every for pair in getattr(each, name).items()) for name in names})

    def correct(self, samples: Samples, layers: Sequence[_Layer], others: Iterable[_Run]) -> None:
        """Run all samples through one call after the other; correct layers once what they read is there.

        Those that read the same as in another run, and are the same, were corrected there: nothing is run where all were, as
        behind ranges that clip.
        """
        program = self._program
        readers: dict[Any, list[_Layer]] = {}
        for layer in layers:
            readers.setdefault(program.variable(layer.entry.inputs[0]), []).append(layer)
        known_layers = {name: found for other in others for name, found in self._alike(other, layers)}
        if len(known_layers) == len(layers):
            self._made = known_layers
            return
        anew = {layer.entry.output: {} for layer in layers}
        prepared = program.prepare(replace(self._rounding, layers={**self._rounding.layers, **anew}))
        states = [program.start(prepared, arrays) for arrays in samples]
        operands: dict[int, list[Any]] = {}
        for var in program.made_by_calls(prepared, states, operands):
            operands.pop(program.floats.makers.get(var, -1), None)  # the weights of a call that is behind us
            known: dict[tuple[int, bool, bool], Inputs] = {}
            for layer in readers.get(var, ()):
                name, rows = layer.entry.inputs[0], self._rounding.rows.get(layer.entry.output, {})
                if name not in rows and var not in states[0].integer:
                    continue
                key, made = (layer.product.axis, name in rows, name in layer.entry.per_row), known_layers.get(layer.entry.output)
                if made is None and key not in known:
                    values = [program.value_read(name, state, rows.get(name)) for state in states]
                    known[key] = self._inputs(layer, [layer.product.channels_last(value) for value in values])
                made = self._corrected(layer, known[key]) if made is None else made
                operands |= program.operands(layer.entry.output, made[0])
                self._made[layer.entry.output] = ({}, made[1]) if program.simple.is_large else made

    @cached_property
    def _decided(self) -> dict[tuple[TensorId, bool], object]:
        """What activations are rounded to, and, True, all that corrections of layers depend on besides, by their outputs."""
        plan, rounding = self._plan, self._rounding
        found: dict[tuple[TensorId, bool], object] = {(name, False): each for name, each in plan.activations.items()}
        params = {**plan.weights, **plan.biases, **plan.activations}
        for layer in plan.layers:
            others = [name for name in (layer.bias, *layer.constants) if name is not None]
            constants = others if layer.weight is None else [layer.weight, *others]
            scaled = [rounding.gains.get(name) for name in constants] + [rounding.factors.get(name) for name in layer.inputs]
            arrays = [*scaled, rounding.bias_gains.get(layer.output), *(plan.weight_values.get(name) for name in others)]
            numbers = [None if each is None else each.tobytes() for each in arrays]
            is_bound = layer.weight in self._kept, layer.weight in self._shared
            found[layer.output, True] = layer, [params.get(name) for name in constants], numbers, is_bound, plan.recipe
        return found

    def _alike(self, other: _Run, layers: Iterable[_Layer]) -> Iterator[tuple[TensorId, tuple[_Constants, Corrections]]]:
        """Yield what another run made of layers which nothing comes before that differs there, by their outputs."""
        mine, others, place = self._decided, other._decided, self._program.place
        differing = {key for key in {*mine, *others} if mine.get(key) != others.get(key)}
        first = min((place(name) for name, _ in differing), default=math.inf)
        entries = {layer.entry.output: layer.entry for layer in layers}
        for name, made in other._made.items():
            if name in entries and (name, True) not in differing and place(entries[name].inputs[0]) < first:
                yield name, made

    def _inputs(self, layer: _Layer, values: Sequence[npt.NDArray[np.float32]]) -> Inputs:
        name, product = layer.entry.inputs[0], layer.product
        factors = self._rounding.factors.get(name, np.ones((), np.float32))
        by_channel = product.channels_last(factors) if factors.ndim else factors.reshape(1)
        by_channel = by_channel.reshape(-1, by_channel.shape[-1])[0]
        if layer.entry.reads_reals:
            return Inputs(values=values, factors=by_channel, unit=fine_unit(values, by_channel), largest=2**FINE_BITS)
        read = self._plan.activations[name]
        return Inputs(values=values, factors=by_channel, unit=read.scale, largest=read.qmax - read.qmin)

    def _corrected(self, layer: _Layer, inputs: Inputs) -> tuple[_Constants, Corrections]:
        """Return the constants of a layer that reads these, and what is new of them."""
        entry, product = layer.entry, layer.product
        read = None if entry.reads_reals else self._plan.activations[entry.inputs[0]]
        integers, params, more = self._rounded(layer, inputs)
        weights = dequantized(integers, params)
        before = self._rounding.layers[entry.output]
        found = {name: before[name] for name in before if name != product.weight}
        gain = self._gain(product.weight)
        found[product.weight] = weights if gain.ndim == 0 and gain == 1 else weights / gain
        if layer.bias is not None and self._moves_biases:
            total, gain = inputs.total() * float(inputs.unit), self._bias_gain(layer)
            positions = len(inputs.values) * product.positions(inputs.shape)
            mean = product.mean(total, positions, product.weights_of(weights).astype(np.float64))
            shift = (self._floats.means[product.name] * gain.reshape(-1) - mean).astype(np.float32)
            more = replace(more, bias_shifts={entry.output: shift})
            found[layer.bias] = self._bias(layer, shift, read, params) / gain
        return found, more

    def _rounded(self, layer: _Layer, inputs: Inputs) -> tuple[npt.NDArray[Any], QuantParams, Corrections]:
        """Return integers of weights that suit what a layer reads, where there are such, their parameters, and what is new."""
        product, recipe, name = layer.product, self._plan.recipe, layer.product.weight
        params, is_kept, found = self._plan.weights[name], name in self._kept, None
        if recipe.weight_rounding == "gram" and name not in self._shared:
            values = self._program.simple.params[name] * self._gain(name)
            is_free = not is_kept and (bool(layer.entry.block) or are_free(values, params, recipe))
            if layer.entry.block:
                found = rounded_in_blocks(product, values, params, inputs, is_free=is_free)
            else:
                # Other weights move means, which a bias then has to bring back.
                has_bias = self._moves_biases and layer.bias is not None
                exact, gains = self._floats.rows.get(product.name) if has_bias else None, self._bias_gain(layer).reshape(-1)
                exact = exact if exact is None or (gains == 1).all() else [each * gains for each in exact]
                found = rounded_weights(product, values, params, inputs, exact, is_free=is_free, has_bias=has_bias)
            if found is not None:
                return *found, Corrections(
                    weight_values={name: found[0]}, weight_scales={name: found[1].scale} if is_free else {}
                )
        return self._plan.weight_values[name], params, Corrections()

    def _bias(
        self, layer: _Layer, shift: npt.NDArray[np.float32], read: QuantParams | None, weight: QuantParams
    ) -> npt.NDArray[np.float32]:
        """Return what a bias is with something added to it: what its integers stand for, or float32 where rows are quantized."""
        assert layer.bias is not None, "checked by the caller"
        assert layer.entry.bias is not None, "checked by the caller"
        value = self._program.simple.params[layer.bias] * self._bias_gain(layer)
        value = value + shift.reshape(value.shape)
        if read is None:
            return value
        granularity = self._plan.biases[layer.entry.bias].granularity
        params = bias_params(read, weight, granularity.axis if isinstance(granularity, PerAxis) else 0)
        return dequantize(quantize(value, params), params)

    def _gain(self, name: TensorId) -> npt.NDArray[np.float32]:
        return self._rounding.gains.get(name, np.ones((), np.float32))

    def _bias_gain(self, layer: _Layer) -> npt.NDArray[np.float32]:
        """Return what it multiplies a layer's bias by."""
        return self._rounding.bias_gains.get(layer.entry.output, np.ones((), np.float32))


@dataclass(frozen=True, kw_only=True, slots=True)
class _FloatRun:
    """What products with weights give in the float model, by their names."""

    means: Mapping[str, npt.NDArray[np.float64]]
    """(outputs,), over samples and positions and without a bias."""
    rows: Mapping[str, Rows]
    """Of few of them."""


@dataclass(kw_only=True, slots=True, eq=False)
class _Sums:
    """What samples say of one product: the sum of what it, and maybe others, read, and what it gives at some positions."""

    product: Product
    shape: tuple[int, ...]
    total: npt.NDArray[np.float64]
    rows_of: Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]] | None
    rows: list[npt.NDArray[np.float32]] = field(default_factory=list["npt.NDArray[np.float32]"])


def run_float(program: RoundedProgram, products: Iterable[Product], samples: Samples) -> _FloatRun:
    """Return what products give which read what the program has a name for."""
    readers: dict[Any, list[Product]] = {}
    for product in products:
        readers.setdefault(program.variable(product.read), []).append(product)
    readers.pop(None, None)
    # Two sums in order, so that nothing depends on which thread is faster.
    parts = parts_of(len(samples))
    found = in_order(lambda part: _sums_on(program, readers, samples[part], len(samples)), parts, numbers=program.numbers)
    sums = {name: [each[name] for each in found] for name in found[0]}
    return _FloatRun(
        means={name: _mean(program, parts, len(samples)) for name, parts in sums.items()},
        rows={name: [row for each in parts for row in each.rows] for name, parts in sums.items() if parts[0].rows},
    )


def _mean(program: RoundedProgram, parts: Sequence[_Sums], samples: int) -> npt.NDArray[np.float64]:
    first, *more = parts
    total = sum((each.total for each in more), first.total)
    program.floats.pages.read(program.simple.params[first.product.weight].nbytes)
    weights = first.product.weights_of(program.simple.params[first.product.weight])  # of one product at a time: it may copy them
    return first.product.mean(total, samples * first.product.positions(first.shape), weights.astype(np.float64))


def _sums_on(program: RoundedProgram, readers: Mapping[Any, Sequence[Product]], samples: Samples, count: int) -> dict[str, _Sums]:
    """Return what some of so many samples say of products, which are given by what they read."""
    sums, totals = dict[str, _Sums](), dict[tuple[str, int, bool], npt.NDArray[np.float64]]()
    room = _MAX_BYTES if program.simple.constant_bytes <= _MAX_MODEL else 0
    for arrays in samples:
        for var, values in program.floats.made(arrays, readers):
            added = set[tuple[str, int, bool]]()
            for product in readers.get(var, ()):
                key = product.read, product.axis, product.has_open_rows or product.is_matmul
                value = product.channels_last(program.floats.value(product.read, values))
                if key not in added:
                    added.add(key)
                    found = product.sum_of(value)
                    totals[key] = np.add(totals[key], found, out=totals[key]) if key in totals else found.astype(np.float64)
                if product.name not in sums:
                    sums[product.name] = _sums_of(program, product, value.shape, totals[key], count, room)
                    if sums[product.name].rows_of is not None:
                        room -= _row_bytes(product, value.shape, count)
                rows_of = sums[product.name].rows_of
                if rows_of is not None:
                    sums[product.name].rows.append(rows_of(value))
    return sums


def _sums_of(
    program: RoundedProgram, product: Product, shape: tuple[int, ...], total: npt.NDArray[np.float64], samples: int, room: int
) -> _Sums:
    """Return what has no rows yet; rows where they say something and there is room for them."""
    has_many = samples * len(places_of(product, shape, samples)) >= _MIN_RATIO * product.inputs
    takes_rows = has_many and not product.is_transposed and _row_bytes(product, shape, samples) <= room
    return _Sums(
        product=product,
        shape=shape,
        total=total,
        rows_of=exact_rows(product, product.weights_of(program.simple.params[product.weight]), shape, samples)
        if takes_rows
        else None,
    )


def _row_bytes(product: Product, shape: tuple[int, ...], samples: int) -> int:
    return samples * len(places_of(product, shape, samples)) * product.outputs * np.dtype(np.float32).itemsize
