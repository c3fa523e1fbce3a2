"""One compiled program for all plans of a model: what these round, and to what, are numbers that it is given. It scores nothing.

The float model runs call by call. An activation is rounded to the steps of its parameters where it is made, as Q and DQ would; an
integer op reads it rounded, a float op that reads what a float op made does not (qdq.py). Weights and biases are the numbers that
their integers stand for. What integer kernels round besides (multipliers, to float32) is far below that.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from tvm.relax import Var

from ...compiler.codegen.kernel_calls import KernelCall
from ...compiler.float_program import FloatProgram, unread_after
from ...compiler.target_choice import ResolvedTarget
from ...ir.channels import Factors
from ...ir.graph import Model
from ...ir.graph.dataflow import DataflowView, static_shape
from ...ir.identity import TensorId
from ...numerics.arrays import Array
from ...runtime.shapes import typical
from ..last import Last
from ..plan.plan import QuantizationPlan
from ..sample_threads import in_order, parts_of
from .rounding import Floats, Gains, Rounder, Rounding, RowSteps, constants_of, rounding_of
from .score import compared

_ROOM = 4
"""Equalizations of which is known what they multiply: those of folds are asked for in turn."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class State:
    """What one sample is between two calls.

    Parameters
    ----------
    sizes
        What open dimensions are in it, by their names.
    real, integer
        Variables as float ops read them, and as integer ops do where that is rounded.
    rows
        Those that integer ops quantize per row, as these read them: by variables and the axes along which rows lie.
    """

    sizes: Mapping[str, int]
    real: dict[Var, Any]
    integer: dict[Var, Any]
    rows: dict[tuple[Var, int | None], Any] = field(default_factory=dict["tuple[Var, int | None]", Any])

    def read(self, var: Var, steps: Rounder) -> Any:
        """Return a variable as integer ops read it without static parameters: rounded row by row once for all that read it so."""
        if not isinstance(steps, RowSteps):
            return steps.rounded(self.real[var])
        key = var, steps.axis
        if key not in self.rows:
            self.rows[key] = steps.rounded(self.real[var])
        return self.rows[key]

    def forget(self, var: Var) -> None:
        """Drop a variable."""
        for values in (self.real, self.integer):
            values.pop(var, None)
        if self.rows:
            for key in [key for key in self.rows if key[0].same_as(var)]:
                del self.rows[key]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Step:
    """One call as a plan has it run: on what float ops read, on what integer ops read, or on both.

    Parameters
    ----------
    number
        Of the call in the program.
    operands
        Of the call, the constants of its layer among them, for integer ops.
    reads
        Which of them are variables.
    rounded
        What its result is rounded to, in the layout of the program.
    is_layer
        Whether the result is an integer op's: then float ops, too, read it rounded, unless it `leaves_float`.
    rows
        What integer ops read of operands that have no static parameters for them.
    unread
        Variables that nothing reads behind it.
    """

    number: int
    call: KernelCall
    operands: Sequence[Any]
    reads: Sequence[tuple[int, Var]]
    is_real: bool
    is_integer: bool
    rounded: Rounder | None
    is_layer: bool
    leaves_float: bool
    rows: Mapping[Var, Rounder]
    unread: Sequence[Var]

    def run_all(self, states: Sequence[State], operands: Sequence[Any], exact: Sequence[Any]) -> None:
        """Change states: of integer ops by these operands of the call, of float ops by its own; all at hand."""
        for state in states:
            self._run(state, operands, exact)

    def _run(self, state: State, operands: Sequence[Any], own: Sequence[Any]) -> None:
        var, real, integer = self.call.var, state.real, state.integer
        if self.is_real:
            exact = [*own]
            for place, each in self.reads:
                exact[place] = real[each]
            real[var] = self.call.run(exact, state.sizes)
        if self.is_integer:
            values = [*operands]
            for place, each in self.reads:
                steps = self.rows.get(each)
                values[place] = (integer if each in integer else real)[each] if steps is None else state.read(each, steps)
            integer[var] = self.call.run(values, state.sizes)
        if self.leaves_float and self.is_integer:  # else it is what the float model has
            real[var] = integer[var]
        if self.rounded is not None:
            integer[var] = self.rounded.rounded(integer[var] if self.is_integer else real[var])
        if self.is_layer and not self.leaves_float:
            real[var] = integer[var]
        for each in self.unread:
            state.forget(each)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Prepared:
    """A rounding as steps of the program: made once, run on any samples, by several threads at once.

    Parameters
    ----------
    results
        Names of what it computes.
    inputs
        Of the model, those that are read rounded.
    steps
        The calls that compute something else than the float model does, in order.
    read
        Variables that these, or results, have as the float model has them, in order.
    """

    results: Sequence[str]
    inputs: Mapping[Var, Rounder]
    steps: Sequence[_Step]
    read: Sequence[Var]


class RoundedProgram:
    """A float model that rounds what it is told to.

    Parameters
    ----------
    simple
        The float model, simplified; its channels are undivided where plans divide them.
    plans
        Those that round most: others may round fewer tensors than these, and any of them otherwise.
    target
        Whose kernels run it here.
    build
        Makes what runs the model with variables of these names and other constants of those; it is compiled without.
    seen
        Names of tensors that are to be seen besides.

    Raises
    ------
    NotImplementedError
        TVM's virtual machine alone can run the model, or its kernels compute with constants what samples do not change.
    """

    def __init__(
        self,
        simple: Model,
        plans: Iterable[QuantizationPlan],
        target: ResolvedTarget,
        build: Callable[[Model, Sequence[str], Collection[TensorId]], FloatProgram] | None = None,
        *,
        seen: Collection[str] = (),
    ) -> None:
        self.simple = simple
        self.view = DataflowView(simple.module["main"])
        # Kernels compute nothing across what may be rounded, and what integer layers give.
        names, others = dict[str, None](), set[TensorId]()
        for plan in plans:
            names |= dict.fromkeys(_names_of(plan))
            others |= self._others(plan)
        own = [name for name in names if name in self.view.variables]
        self.compared = compared(self.view)
        """The variables of the results; of one of integers, that of the reals they are chosen by."""
        self.results = [self.view.root_of(var).name for var in self.compared]
        named = [*dict.fromkeys((*own, *self.results, *seen))]
        self.floats = FloatProgram(simple, named, target, others) if build is None else build(simple, named, others)
        """The model that rounds nothing."""
        self._names = [*own, *self.results]
        self._reads = [[var for _, var in reads] for reads in self.floats.reads]
        self._variables = (*self.floats.params, *(call.var for call in self.floats.calls))
        self._places = {var: place for place, var in enumerate(self._variables)}
        self._numbers = [_size(call.var) for call in self.floats.calls]
        self.float_bytes = 4 * (sum(map(_size, self.floats.params)) + sum(self._numbers))
        """What `all_floats` takes."""
        self._gains = Last[tuple[Factors, Gains]](_ROOM)
        self._exchanged: dict[TensorId, tuple[Mapping[TensorId, Any], dict[int, list[Any]]]] = {}

    def can_round(self, plan: QuantizationPlan) -> bool:
        """Return whether it has a name for all that a plan rounds."""
        names = set(_names_of(plan)) & self.view.variables.keys()
        return set(self._names) >= names and self.floats.others >= self._others(plan)

    def rounding(self, plan: QuantizationPlan) -> Rounding:
        """Return what a plan rounds, which has the integers of its weights and biases."""
        factors = plan.equalization.factors
        # By the arrays themselves: plans that are compared have the same, and others of them are others.
        key = {name: id(each) for name, each in factors.items()}
        _, gains = self._gains.find(key, lambda: (factors, Gains(self.simple, factors)))
        return rounding_of(self.simple, plan, self.view, gains)

    def variable(self, name: str) -> Var | None:
        """Return what stands for a tensor in states; None of one that was not named."""
        return self.floats.variables.get(name)

    def place(self, name: str) -> float:
        """Return the place of a tensor in the order in which all are made; one that was not named comes first."""
        var = self.floats.variables.get(name)
        return -1 if var is None else self._places[var]

    def prepare(self, rounding: Rounding, results: Collection[str] | None = None) -> Prepared:
        """Return what computes results, by their names, or the model's, with these roundings.

        Raises
        ------
        ValueError
            It rounds a tensor that was not named.
        """
        unknown = next((name for name in rounding.names if str(name) not in self.floats.variables), None)
        if unknown is not None:
            raise ValueError(f"{unknown} is none of the tensors that this program can round")
        program = self.floats
        rounded = {program.variables[str(name)]: self._laid(str(name), steps) for name, steps in rounding.activations.items()}
        layers = {program.variables[str(name)] for name in rounding.layers}
        operands, rows = self._operands(rounding), self._rows(rounding)
        leaving = {program.variables[str(name)] for name in rounding.rows}
        chosen = self.results if results is None else tuple(results)
        wanted = [program.variables[name] for name in chosen]
        changed_calls = {*operands, *(number for number, each in rows.items() if each)}
        real, integer, only_rounded = self._changed(rounded, layers, changed_calls)
        read_real, read_integer = set(wanted), set[Var]()  # by float ops and by integer ops
        backwards: list[tuple[int, bool, bool]] = []
        for number in reversed(range(len(program.calls))):
            var = program.calls[number].var
            is_real, is_integer = var in real and var in read_real, var in integer and var in read_integer
            if var in layers:
                is_real, is_integer = False, (is_real or is_integer) and var not in only_rounded
            elif var in rounded:  # what integer ops read is made of what float ops do
                is_real, is_integer = is_real or (is_integer and var in real), False
            is_read = var in read_real or var in read_integer
            by_row = rows.get(number, {})
            for each in self._reads[number]:
                if is_real or (is_integer and each in by_row):
                    read_real.add(each)
                if is_integer and each not in by_row:
                    read_integer.add(each)
            if is_real or is_integer or (is_read and var in only_rounded):
                backwards.append((number, is_real, is_integer))
        order = backwards[::-1]
        unread = unread_after([(number, program.calls[number]) for number, *_ in order], wanted)
        steps = [
            _Step(
                number=number,
                call=program.calls[number],
                operands=operands.get(number, program.calls[number].operands),
                reads=program.reads[number],
                is_real=is_real,
                is_integer=is_integer,
                rounded=rounded.get(program.calls[number].var),
                is_layer=program.calls[number].var in layers,
                leaves_float=program.calls[number].var in leaving,
                rows=rows.get(number, {}),
                unread=unread[number],
            )
            for number, is_real, is_integer in order
        ]
        inputs = {param: rounded[param] for param in program.params if param in rounded and param in {*read_integer, *wanted}}
        before = {program.calls[number].var for number, *_ in order} & only_rounded
        read = {*(read_real - real), *(read_integer - integer), *inputs, *before}
        return Prepared(results=chosen, inputs=inputs, steps=steps, read=[var for var in self._variables if var in read])

    def start(self, prepared: Prepared, arrays: Sequence[Array], floats: Mapping[Var, Any] | None = None) -> State:
        """Return what a sample is before the first call that computes something else than the float model does.

        Parameters
        ----------
        floats
            What the float model has of it, where that is known.
        """
        found = floats or self._floats(arrays, prepared.read)
        real, sizes = {var: found[var] for var in prepared.read}, self.floats.sizes(arrays)
        integer = {param: steps.rounded(real[param]) for param, steps in prepared.inputs.items()}
        return State(sizes=sizes, real=real, integer=integer)

    def made_by_calls(
        self, prepared: Prepared, states: Sequence[State], operands: Mapping[int, Sequence[Any]] = MappingProxyType({})
    ) -> Iterator[Var]:
        """Run samples side by side, one call after the other, and yield each variable once it is there, inputs first.

        Parameters
        ----------
        states
            As `start` gives them; changed.
        operands
            Of calls, by their numbers, in place of their own, as `operands` gives them; those behind may be added on the way.
        """
        made = {step.call.var for step in prepared.steps}
        yield from (var for var in prepared.read if var not in made)
        for step in prepared.steps:
            read = self.floats.at_hand(operands.get(step.number, step.operands)) if step.is_integer else ()
            exact = self.floats.at_hand(step.call.operands) if step.is_real else ()
            parts = [states[part] for part in parts_of(len(states))] if len(states) > 1 else [states]
            in_order(partial(step.run_all, operands=read, exact=exact), parts, numbers=self._numbers[step.number])
            del read, exact
            self.floats.was_run(step.number)
            yield step.call.var

    def run(self, prepared: Prepared, arrays: Sequence[Array], floats: Mapping[Var, Any] | None = None) -> list[Array]:
        """Return the results of one sample, in the source's layout."""
        [(_, found)] = self.run_each([prepared], arrays, floats)
        return found

    def run_each(
        self, prepared: Sequence[Prepared], arrays: Sequence[Array], floats: Mapping[Var, Any] | None = None
    ) -> Iterator[tuple[int, list[Array]]]:
        """Yield what `run` returns of several roundings, and the place of each: from the first tensor on that it makes another.

        What the float model has before is computed once, and goes behind the last that reads it; `floats` is that, where it is
        known.
        """
        places = self._places
        ready = [max((places[var] for var in each.read), default=0) for each in prepared]
        left = sorted(range(len(prepared)), key=ready.__getitem__, reverse=True)  # those first that read what is made last
        readers = Counter(var for each in prepared for var in each.read)
        there: dict[Var, Any] = {}
        for var, values in self.floats.made(arrays, readers, keeps=False) if floats is None else floats.items():
            if var in readers:
                there[var] = values[var] if floats is None else values
            while left and ready[left[-1]] <= places[var]:
                place = left.pop()
                state = self.start(prepared[place], arrays, there)
                readers.subtract(prepared[place].read)
                for each in prepared[place].read:
                    if not readers[each]:
                        del there[each]
                for _ in self.made_by_calls(prepared[place], [state]):
                    pass
                yield place, self.results_of(prepared[place], state)

    def run_together(self, prepared: Prepared, samples: Sequence[Sequence[Array]]) -> list[list[Array]]:
        """Return what `run` does of several samples: each call has all of them before the next, and makes constants once."""
        states = in_order(partial(self.start, prepared), samples, numbers=self.numbers)
        for _ in self.made_by_calls(prepared, states):
            pass
        return [self.results_of(prepared, state) for state in states]

    @property
    def numbers(self) -> float:
        """How many numbers what a call gives has on average."""
        return sum(self._numbers) / max(len(self._numbers), 1)

    def all_floats(self, arrays: Sequence[Array]) -> Mapping[Var, Any]:
        """Return all variables of one sample as the float model has them."""
        return self._floats(arrays, self._variables)

    def results_of(self, prepared: Prepared, state: State) -> list[Array]:
        """Return the results of a sample behind the last call, in the source's layout."""
        return [self.floats.value(name, state.real) for name in prepared.results]

    def value_read(self, name: str, state: State, rows: Rounder | None = None) -> Array:
        """Return what an integer op reads of a tensor that was made just now, by `rows` if given; as `value` does."""
        if rows is None:
            return self.floats.value(name, state.integer)
        var = self.floats.variables[name]
        return self.floats.value(name, {var: state.read(var, self._laid(name, rows))})

    def operands(self, layer: TensorId, values: Mapping[TensorId, Floats]) -> dict[int, list[Any]]:
        """Return the operands of those of a layer's calls that read other constants, by their numbers."""
        found = ((number, self.floats.operands(number, values)) for number in self._calls_of(layer))
        return {number: operands for number, operands in found if operands is not None}

    def _floats(self, arrays: Sequence[Array], wanted: Collection[Var]) -> Mapping[Var, Any]:
        """Return variables of one sample as the float model has them."""
        found: Mapping[Var, Any] = {}
        for _, values in self.floats.made(arrays, wanted):
            found = values
        return found

    def _changed(
        self, rounded: Collection[Var], layers: Collection[Var], exchanged: Collection[int]
    ) -> tuple[set[Var], set[Var], set[Var]]:
        """Return the variables that float ops, and those that integer ops read as the float model does not have them.

        Last those that are rounded, and before that as the float model has them.

        Parameters
        ----------
        exchanged
            Calls that have other constants in layers, by their numbers.
        """
        real, integer, only_rounded = set[Var](), {param for param in self.floats.params if param in rounded}, set[Var]()
        for number, call in enumerate(self.floats.calls):
            var, reads = call.var, self._reads[number]
            is_real, is_integer = not real.isdisjoint(reads), number in exchanged or not integer.isdisjoint(reads)
            if var in rounded and not (is_integer if var in layers else is_real):
                only_rounded.add(var)
            if is_integer or var in rounded:
                integer.add(var)
            if is_real or (var in layers and var in integer):
                real.add(var)
        return real, integer, only_rounded

    def _operands(self, rounding: Rounding) -> dict[int, list[Any]]:
        """Return the operands of calls that have other constants, by their numbers."""
        found: dict[int, list[Any]] = {}
        for layer, values in rounding.layers.items():
            if values:  # what it gave last is at hand: many roundings differ in others alone
                known = self._exchanged.get(layer)
                if known is None or known[0] is not values:
                    known = self._exchanged[layer] = values, self.operands(layer, values)
                found |= known[1]
        return found

    def _rows(self, rounding: Rounding) -> dict[int, dict[Var, Rounder]]:
        """Return what calls of layers read per row, by their numbers."""
        found: dict[int, dict[Var, Rounder]] = {}
        for layer, rows in rounding.rows.items():
            read = {self.floats.variables[str(name)]: self._laid(str(name), steps) for name, steps in rows.items()}
            for number in self._calls_of(layer):
                found[number] = {each: read[each] for each in self._reads[number] if each in read}
        return found

    def _calls_of(self, layer: TensorId) -> list[int]:
        """Return the numbers of the calls between what a layer reads and what it gives."""
        program = self.floats
        seen = {program.variables[name] for name in self._names}
        return [number for number, _ in program.calls_behind([program.variables[str(layer)]], seen)]

    def _others(self, plan: QuantizationPlan) -> set[TensorId]:
        """Return the constants of which a plan has other values."""
        return {name for own in constants_of(self.simple, plan, self.view).values() for name in own}

    def _laid(self, name: str, steps: Rounder) -> Rounder:
        order, shape = self.floats.orders.get(name), static_shape(self.floats.variables[name])
        laid = steps if order is None else steps.transposed(order)
        return laid if shape is None else laid.spread(shape)


def _size(var: Var) -> int:
    return typical(math.prod(static_shape(var) or ()))


def _names_of(plan: QuantizationPlan) -> list[str]:
    """Return what a plan rounds, and what its integer ops give."""
    reals = (name for layer in plan.layers if layer.reads_reals for name in layer.inputs)
    return list(map(str, (*plan.activations, *reals, *(layer.output for layer in plan.layers))))
