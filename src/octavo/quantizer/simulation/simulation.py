"""Quantization simulated in float on samples, each rounding on or off: what one alone, or any set of them, does to the outputs.

Integer kernels cannot compute one layer's rounding without the others'. In float they are separate: an activation is rounded to
the steps of its parameters where it is made, weights are those that their integers stand for. What kernels round besides (sums
to int32 biases, products to multipliers) is left out: the verdict over a model is the kernels'; this says where errors are from.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm.relax import Var

from ...compiler.codegen.kernel_calls import KernelCall
from ...compiler.target_choice import ResolvedTarget
from ...ir.graph import Model
from ...ir.graph.dataflow import DataflowView, dtype_of, operand_vars, static_shape
from ...ir.graph.lineage import lineage_paused
from ...ir.graph.moving import call_behind_views
from ...ir.identity import TensorId
from ...numerics import QuantParams
from ...numerics.arrays import Samples
from ..plan.plan import QuantizationPlan
from ..referee.program import FloatProgram, as_array, calls_behind, run_calls, unread_after, with_constants
from ..referee.rounded import steps_of
from .mean_shifts import channel_axes, mean_shift
from .on_all_samples import Shifts, Trials

Constants = Sequence[list[Any]]
"""Of each call."""
Array = npt.NDArray[np.float64]
_SQUASHES = ("nn.softmax", "nn.log_softmax", "sigmoid")
"""What hides at the end of a model how far its scores are off."""
_STATE_BYTES = 2**29
_MIN_SAMPLES, _SCREENING_SAMPLES, MAX_SAMPLES = 2, 3, 8
_TELLING_SAMPLES = 32
"""Where outputs have few values: eight samples of two scores rank roundings by chance."""
_MANY_VALUES = 2**12
"""Of an output: so many of several samples tell which roundings cost most; of fewer a few samples tell little."""
_COSTLY = 0.002
"""Share of the error: what makes as much on the first few samples is tried on all that are kept where values are few."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Effects:
    """Power of the error at the outputs that single roundings make, as a share of the outputs' power: of the worst output each.

    Parameters
    ----------
    activations
        Where only one activation is rounded.
    weights
        Where the weights and biases of all layers are, and no activation.
    together
        Where all are.
    """

    activations: Mapping[TensorId, float]
    weights: float
    together: float

    @property
    def total(self) -> float:
        """The error that roundings make one by one: none counts more than the outputs themselves."""
        return sum(min(effect, 1.0) for effect in (*self.activations.values(), self.weights))


class Simulation:
    """A float model that can round what a plan rounds.

    Parameters
    ----------
    simple
        The float model that was simplified to be quantized.
    plan
        With integers of weights and biases. Other plans of the same model may round fewer tensors than this one, not others.
    samples
        The model's inputs, sample by sample: the first few, as many as fit in memory with all that is computed of them.
    rounded
        The float model with the constants that integers stand for; by default as the plan has them.
    is_centred
        Whether biases are corrected: then what rounding moves on average is taken out again, where products alone would see it.
    count
        How many samples it looks at, at most.

    Raises
    ------
    NotImplementedError
        TVM's virtual machine alone can run the model.
    """

    def __init__(
        self,
        simple: Model,
        plan: QuantizationPlan,
        samples: Samples,
        target: ResolvedTarget,
        rounded: Model | None = None,
        *,
        is_centred: bool = False,
        count: int = MAX_SAMPLES,
    ) -> None:
        self._target = target
        self._given = samples
        view = DataflowView(simple.module["main"])
        self._params: dict[str, QuantParams] = {str(name): params for name, params in plan.activations.items()}
        self.outputs: tuple[str, ...] = tuple(measured_outputs(view))
        known = {binding.var.name for binding in view.bindings} | {param.name for param in view.function.params}
        layers = [str(layer.output) for layer in plan.layers]
        self._names = [name for name in dict.fromkeys([*self._params, *layers, *self.outputs]) if name in known]
        with lineage_paused():
            self._program = FloatProgram(simple, self._names, target)
        program = self._program
        self._outputs = [program.variables[name] for name in self.outputs]
        self._makers = makers = {call.var: number for number, call in enumerate(program.calls)}
        self._needed = calls_behind(program, makers, self._outputs, ())
        self._reads = {number: [each for each in call.operands if isinstance(each, Var)] for number, call in self._needed}
        self._unread_after = unread_after(self._needed, self._outputs)
        self._rounds = {program.variables[name]: name for name in self._params if name in program.variables}
        self._axes = self._channel_axes(view, simple.params) if is_centred else {}
        seen = set(program.variables.values())
        self._layers: dict[TensorId, tuple[int, ...]] = {}
        """By a layer's output the calls that read its weights."""
        own = program.constants()
        for layer in plan.layers:
            if layer.weight is not None and str(layer.output) in program.variables:
                between = calls_behind(program, makers, [program.variables[str(layer.output)]], seen)
                self._layers[layer.output] = tuple(number for number, _ in between if own[number])
        self._rounded_model = lambda: with_constants(simple, plan) if rounded is None else rounded
        self._paths: dict[frozenset[Any], _Path] = {}
        self._exact = self._kept(samples[:count])
        for state in self._exact[:1]:  # what lies behind the outputs that are measured is not computed
            self._rounds = {var: name for var, name in self._rounds.items() if var in state}
        self._powers = [[_power(as_array(state[var])) for var in self._outputs] for state in self._exact]
        self._values = min((as_array(state[var]).size for state in self._exact[:1] for var in self._outputs), default=1)

    @property
    def activations(self) -> tuple[TensorId, ...]:
        """The activations that can be rounded, in the order of the plan."""
        return tuple(TensorId(name) for name in self._rounds.values())

    @property
    def weights(self) -> tuple[TensorId, ...]:
        """The layers whose weights can be rounded, by their outputs."""
        return tuple(self._layers)

    @cached_property
    def _rounded(self) -> Constants:
        """Of the model whose constants integers stand for. To lower it takes as long as the float model: once, where needed."""
        return self.constants(self._rounded_model())

    def constants(self, model: Model) -> Constants:
        """Return the constants of a model that differs from the float one in nothing else, for `alone`."""
        with lineage_paused():
            return FloatProgram(model, self._names, self._target, runs=False).constants()

    @property
    def samples(self) -> int:
        """How many samples it looks at."""
        return len(self._exact)

    @property
    def state_bytes(self) -> int:
        """How much it holds of what the float model computes of samples."""
        return sum(_bytes(state) for state in self._exact)

    def observed(self, names: Collection[TensorId]) -> tuple[float, float]:
        """Return the least and the greatest value of activations."""
        variables = [var for var, name in self._rounds.items() if TensorId(name) in names]
        values = [as_array(state[var]) for state in self._exact for var in variables]
        return min(float(each.min()) for each in values), max(float(each.max()) for each in values)

    def values(self, name: TensorId) -> list[npt.NDArray[Any]]:
        """Return what an activation, or a layer's result, is in the float model, sample by sample, in the source's layout."""
        var, order = self._program.variables[name], self._program.orders.get(name)
        found = [as_array(state[var]) for state in self._exact]
        return found if order is None else [value.transpose(np.argsort(order)) for value in found]

    def results(self, layer: TensorId, constants: Constants) -> list[npt.NDArray[Any]]:
        """Return what a layer gives of the float model's values with other constants, as `values` does."""
        var, order = self._program.variables[layer], self._program.orders.get(layer)
        others = self._of_layers([layer], constants)
        found: list[npt.NDArray[Any]] = []
        for state in self._exact:
            values = dict(state)
            numbers = sorted(others)
            last = max(number for number, call in self._needed if call.var.same_as(var))
            calls = [(number, call) for number, call in self._needed if numbers[0] <= number <= last]
            run_calls(calls, values, others)
            value = as_array(values[var])
            found.append(value if order is None else value.transpose(np.argsort(order)))
        return found

    def ranges(self, samples: Samples) -> dict[TensorId, tuple[float, float]]:
        """Return the least and the greatest value of each activation over samples, of any number of them."""
        found: dict[TensorId, tuple[float, float]] = {}
        for arrays in samples:
            state = self._start(arrays)
            self._run(state)
            for var, name in self._rounds.items():
                value, (low, high) = as_array(state[var]), found.get(TensorId(name), (math.inf, -math.inf))
                found[TensorId(name)] = min(low, float(value.min())), max(high, float(value.max()))
        return found

    def with_values(self, name: TensorId, values: Sequence[npt.NDArray[Any]]) -> float:
        """Return what other values of a tensor do to the outputs, sample by sample in the source's layout; see `alone`."""
        var, order = self._program.variables[name], self._program.orders.get(name)
        error = np.zeros(len(self._outputs))
        for state, value in zip(self._exact, values, strict=True):
            laid = np.ascontiguousarray(value if order is None else value.transpose(order), np.float32)
            error += self._changed(state, {var: tvm.runtime.tensor(laid)}, {})
        return _worst(error, np.sum(self._powers, axis=0))

    def alone(
        self,
        activations: Mapping[TensorId, QuantParams],
        weights: Collection[TensorId] = (),
        *,
        few: bool = False,
        constants: Constants | None = None,
    ) -> float:
        """Return what rounding these alone, each of the float model's own values, does to the outputs.

        Parameters
        ----------
        activations
            With the parameters that they get.
        weights
            Of layers, by their outputs.
        few
            Whether the first few samples are enough: to tell tensors apart, not to choose a range.
        constants
            What `constants` returned, in place of the rounded ones.

        Returns
        -------
        float
            Power of the error of the worst output, as a share of its power.
        """
        others = self._of_layers(weights, constants)
        states = self._exact[: _SCREENING_SAMPLES if few else None]
        changed: list[dict[Var, Any]] = [{} for _ in states]
        for var, params in self._params_of(activations).items():
            exact = [state[var] for state in states]
            for each, value in zip(changed, self._rounded_to(var, params, exact, exact), strict=True):
                each[var] = value
        error = sum((self._changed(*each, others) for each in zip(states, changed, strict=True)), np.zeros(len(self._outputs)))
        return _worst(error, np.sum(self._powers[: len(states)], axis=0))

    def alone_on_all(self, groups: Sequence[Sequence[Mapping[TensorId, QuantParams]]]) -> list[list[float]]:
        """Return what `alone` does on all samples that were given, for each of several parameters of groups of activations.

        Where outputs have few values all samples are computed to their end. Else one that isn't kept is for a group alone that
        is moved further on it than on any that is, and what the others add is estimated by what they are moved: what kept ones,
        which are as good as drawn by chance, add for that (ratio estimation; Cochran, Sampling Techniques, 1977, chapter 6).

        Parameters
        ----------
        groups
            Of each its tries, which are for the same activations: the one that moves them furthest last.
        """
        found = [Trials(params=[self._params_of(each) for each in tries]) for tries in groups]
        self._look(found)
        shifts = {trials: trials.shifts() for trials in found}
        for number, state in enumerate(self._exact):
            for trials in found:
                self._try_on(state, trials, shifts[trials], number)
        count = len(self._exact)
        is_small = count * self._values < _MANY_VALUES
        for number, arrays in enumerate(self._given[count:], count):
            far = [trials for trials in found if is_small or trials.is_far(number, count)]
            if far:
                state = self._start(arrays)
                self._run(state)
                for trials in far:
                    self._try_on(state, trials, shifts[trials], number)
        return [[_worst(*each) for each in trials.on_all(count)] for trials in found]

    def _look(self, found: Sequence[Trials]) -> None:
        """See how far tries move their tensors on each sample, and what of it corrected biases take out."""
        variables = {var for trials in found for var in trials.variables}
        for state in self._states_of_all(variables) if found else ():
            for trials in found:
                for number, params in enumerate(trials.params):
                    moved = 0.0
                    for var, each in params.items():
                        rounded, exact = as_array(steps_of(each).rounded(state[var])), as_array(state[var])
                        moved += float(np.sum(np.square(rounded - exact), dtype=np.float64))
                        if var in self._axes:
                            trials.add_shift(number, var, mean_shift([rounded], [exact], self._axes[var]))
                    trials.tensor_errors[number].append(moved)

    def _try_on(self, state: Mapping[Var, Any], trials: Trials, shifts: Sequence[Shifts], sample: int) -> None:
        powers = np.array([_power(as_array(state[var])) for var in self._outputs])
        changes = (
            self._changed(
                state,
                {var: _shifted(steps_of(each).rounded(state[var]), shifts[number].get(var)) for var, each in params.items()},
                {},
            )
            for number, params in enumerate(trials.params)
        )
        trials.add(sample, np.array(list(changes)), powers)

    def together(
        self,
        activations: Mapping[TensorId, QuantParams],
        weights: Collection[TensorId],
        others: Mapping[TensorId, Constants] | None = None,
    ) -> float:
        """Return what rounding these does, each of what the others make of its values; `others`: constants of single layers."""
        constants = self._of_layers(weights)
        for name, each in (others or {}).items():
            constants |= self._of_layers([name], each)
        params = self._params_of(activations)
        states: list[dict[Var, Any]] = [{param: state[param] for param in self._program.params} for state in self._exact]
        for param in params.keys() & set(self._program.params):
            self._round_all(param, params[param], states)
        for number, call in self._needed:  # all samples side by side: a mean is over all
            for state in states:
                run_calls([(number, call)], state, constants)
            if call.var in params:
                self._round_all(call.var, params[call.var], states)
            for state in states:
                for var in self._unread_after[number]:
                    state.pop(var, None)
        error = np.zeros(len(self._outputs))
        for state, exact in zip(states, self._exact, strict=True):
            error += [_difference_power(state[var], exact[var]) for var in self._outputs]
        return _worst(error, np.sum(self._powers, axis=0))

    def effects(self, activations: Mapping[TensorId, QuantParams] | None = None, *, together: float | None = None) -> Effects:
        """Return what each activation's rounding does alone, on the first few samples, what all weights' does, and all together.

        Activations have the parameters of the plan, or, where these are given, others of the same ones. What all do together may
        be known.
        """
        params = self._params if activations is None else {str(name): each for name, each in activations.items()}
        known = {TensorId(name): params[name] for name in self._rounds.values() if name in params}
        return Effects(
            activations=self.activation_effects(known),
            weights=self.alone({}, self.weights, few=True),
            together=self.together(known, self.weights) if together is None else together,
        )

    def activation_effects(self, activations: Mapping[TensorId, QuantParams] | None = None) -> dict[TensorId, float]:
        """Return what the rounding of each activation, with the parameters of the plan or others, does alone, on few samples."""
        params = {TensorId(name): self._params[name] for name in self._rounds.values()} if activations is None else activations
        found = {name: self.alone({name: each}, few=True) for name, each in params.items()}
        least = _COSTLY * sum(min(effect, 1.0) for effect in found.values())
        if _SCREENING_SAMPLES * self._values >= _MANY_VALUES:
            return found
        return found | {name: self.alone({name: params[name]}) for name, effect in found.items() if effect >= least}

    def weight_effects(self) -> dict[TensorId, float]:
        """Return what rounding the weights and bias of each layer, by its output, does alone, on few samples."""
        return {name: self.alone({}, [name], few=True) for name in self._layers}

    def _kept(self, samples: Samples) -> list[dict[Var, Any]]:
        """Return what the float model computes of as many samples as fit."""
        found: list[dict[Var, Any]] = []
        size = 0
        for arrays in samples:
            state = self._start(arrays)
            self._run(state)
            size += _bytes(state)
            if size > _STATE_BYTES and len(found) >= _MIN_SAMPLES:
                break
            found.append(state)
        return found

    def _start(self, arrays: Sequence[Any]) -> dict[Var, Any]:
        params = self._program.params
        return dict(zip(params, (tvm.runtime.tensor(np.asarray(array, order="C")) for array in arrays), strict=True))

    def _run(self, state: dict[Var, Any]) -> None:
        """Compute the float model from its inputs."""
        run_calls(self._needed, state, {})

    def _states_of_all(self, wanted: Collection[Var] | None = None) -> Iterator[dict[Var, Any]]:
        """Give what the float model computes of each sample that was given; only one that was not kept is computed again.

        Of that as much as `wanted` variables need, where there are such.
        """
        calls = self._needed if wanted is None else calls_behind(self._program, self._makers, list(wanted), ())
        yield from self._exact
        for arrays in self._given[len(self._exact) :]:
            state = self._start(arrays)
            run_calls(calls, state, {})
            yield state

    def _params_of(self, activations: Mapping[TensorId, QuantParams]) -> dict[Var, QuantParams]:
        return {var: activations[TensorId(name)] for var, name in self._rounds.items() if TensorId(name) in activations}

    def _round_all(self, var: Var, params: QuantParams, states: Sequence[dict[Var, Any]]) -> None:
        rounded = self._rounded_to(var, params, [state[var] for state in states], [state[var] for state in self._exact])
        for state, value in zip(states, rounded, strict=True):
            state[var] = value

    def _rounded_to(self, var: Var, params: QuantParams, values: Sequence[Any], exact: Sequence[Any]) -> list[Any]:
        """Return a tensor rounded, sample by sample, without what corrected biases take out of it."""
        steps = steps_of(params)
        rounded = [steps.rounded(value) for value in values]
        axis = self._axes.get(var)
        if axis is None:
            return rounded
        shift = mean_shift([as_array(each) for each in rounded], [as_array(each) for each in exact], axis)
        return [_shifted(each, shift) for each in rounded]

    def _channel_axes(self, view: DataflowView, constants: Collection[str]) -> dict[Var, int]:
        """Return the axes of the channels, in the program's layouts, of the tensors whose mean shifts biases take out."""
        axes = channel_axes(view, constants)
        found: dict[Var, int] = {}
        for var, name in self._rounds.items():
            if name in axes:
                order = self._program.orders.get(name)
                found[var] = axes[name] if order is None else order.index(axes[name])
        return found

    def _of_layers(self, layers: Collection[TensorId], constants: Constants | None = None) -> dict[int, list[Any]]:
        if not layers:
            return {}
        others = self._rounded if constants is None else constants
        return {number: others[number] for name in layers for number in self._layers[name]}

    def _changed(self, state: Mapping[Var, Any], changed: Mapping[Var, Any], constants: Mapping[int, list[Any]]) -> Array:
        """Return the power of what changes at the outputs with these tensors, or these constants."""
        path = self._path(changed, constants)
        values = {var: state[var] for var in path.read} | dict(changed)
        for number, call in path.calls:
            run_calls([(number, call)], values, constants)
            for var in path.unread_after[number]:  # its memory is the next one's
                values.pop(var, None)
        return np.array([_difference_power(values[var], state[var]) if var in path.dirty else 0.0 for var in self._outputs])

    def _path(self, changed: Collection[Var], constants: Collection[int]) -> _Path:
        """Return the calls that other tensors and constants make other."""
        key = frozenset([*changed, *constants])
        found = self._paths.get(key)
        if found is None:
            dirty, read = set(changed), set[Var]()
            calls: list[tuple[int, KernelCall]] = []
            for number, call in self._needed:
                if call.var not in changed and (number in constants or not dirty.isdisjoint(self._reads[number])):
                    read.update(var for var in self._reads[number] if var not in dirty)
                    dirty.add(call.var)
                    calls.append((number, call))
            unread = unread_after(calls, self._outputs)
            found = self._paths[key] = _Path(calls=calls, read=read, dirty=dirty, unread_after=unread)
        return found


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Path:
    """What is computed anew behind some change: the calls in order, what these read besides, and all that becomes other."""

    calls: Sequence[tuple[int, KernelCall]]
    read: Collection[Var]
    dirty: Collection[Var]
    unread_after: Mapping[int, Sequence[Var]]


def measured_outputs(view: DataflowView) -> list[str]:
    """Return the float results of a model, those behind which it only squashes scores in place of what that gives."""
    found: list[str] = []
    for result in operand_vars(view.result):
        call = call_behind_views(view, result, *_SQUASHES)
        var = view.binding_of(result if call is None else call.args[0])
        if var is not None and dtype_of(var) == "float32":
            found.append(var.name)
    return list(dict.fromkeys(found))


def telling_samples(model: Model) -> int:
    """Return how many samples tell which roundings cost most: those in which each output has thousands of values, 8 to 32."""
    view = DataflowView(model.module["main"])
    shapes = [static_shape(var) for var in operand_vars(view.result)]
    values = min((math.prod(shape) for shape in shapes if shape), default=_MANY_VALUES)
    return min(max(-(-_MANY_VALUES // values), MAX_SAMPLES), _TELLING_SAMPLES)


def _bytes(state: Mapping[Var, Any]) -> int:
    return sum(as_array(value).nbytes for value in state.values() if isinstance(value, tvm.runtime.Tensor))


def _shifted(value: Any, shift: npt.NDArray[np.float32] | None) -> Any:
    """Return a tensor less what it is off on average."""
    if shift is None:
        return value
    shifted = tvm.runtime.empty(value.shape, "float32")  # as kernels need it aligned
    np.subtract(as_array(value), shift, out=as_array(shifted))
    return shifted


def _difference_power(value: Any, other: Any) -> float:
    difference = as_array(value).astype(np.float64)
    difference -= as_array(other)
    return float(np.sum(np.multiply(difference, difference, out=difference)))


def _power(values: npt.NDArray[Any]) -> float:
    return float(np.sum(np.square(values, dtype=np.float64)))


def _worst(error: npt.NDArray[np.float64], power: npt.NDArray[np.float64]) -> float:
    ratios = [e / p if p else float(e > 0) for e, p in zip(error, power, strict=True)]
    return float(max((math.inf if math.isnan(ratio) else ratio for ratio in ratios), default=0.0))
