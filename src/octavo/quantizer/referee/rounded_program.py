"""One compiled program for all plans of a model: what these round, and to what, are numbers that it is given. It scores nothing.

The float model runs call by call. An activation is rounded to the steps of its parameters where it is made, as Q and DQ would; an
integer op reads it rounded, a float op that reads what a float op made does not (qdq.py). Weights and biases are the numbers that
their integers stand for. What integer kernels round besides (multipliers, to float32) is far below that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import tvm
from tvm.relax import Var

from ...compiler.codegen.kernel_calls import KernelCall
from ...compiler.target_choice import ResolvedTarget
from ...ir.graph import Model
from ...ir.graph.dataflow import DataflowView
from ...ir.graph.lineage import lineage_paused
from ...ir.identity import TensorId
from ...numerics.arrays import Array
from .program import FloatProgram, as_array, calls_behind, unread_after, with_values
from .rounded import Rounder, RowSteps
from .rounding import Floats, Rounding

AnySteps = TypeVar("AnySteps", Rounder, RowSteps)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Constant:
    """One constant of a call.

    Parameters
    ----------
    value
        Its own, a tensor.
    places
        Of its shape, flat indices into the constants that may be others, which lie one after the other behind a zero; None of one
        that is none of these.
    names
        Of the constants that they are of.
    """

    value: Any
    places: npt.NDArray[np.int32] | None = None
    names: frozenset[TensorId] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Step:
    """One call as a plan has it run: on what float ops read, on what integer ops read, or on both.

    Parameters
    ----------
    operands
        Of the call, the constants of its layer among them, for integer ops.
    rounded
        What its result is rounded to, in the layout of the program.
    is_layer
        Whether the result is an integer op's: then float ops, too, read it rounded, unless it `leaves_float`.
    rows
        What integer ops read of some operands that they quantize per row.
    unread
        Variables that nothing reads behind it.
    """

    call: KernelCall
    operands: Sequence[Any]
    is_real: bool
    is_integer: bool
    rounded: Rounder | None
    is_layer: bool
    leaves_float: bool
    rows: Mapping[Var, RowSteps]
    unread: Sequence[Var]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Prepared:
    """A rounding as steps of the program: made once, run on any samples, by several threads at once.

    Parameters
    ----------
    inputs
        Of the model, those that are read rounded.
    steps
        The calls that compute something else than the float model does, in order.
    read
        Variables that these, or results, have as the float model has them.
    """

    inputs: Mapping[Var, Rounder]
    steps: Sequence[_Step]
    read: Collection[Var]


class RoundedProgram:
    """A float model that rounds what it is told to.

    Parameters
    ----------
    simple
        The float model, simplified.
    names
        Tensors that may be rounded, and what integer layers give: kernels compute nothing across these.
    exchanged
        Constants for which there may be others.
    target
        Whose kernels run it here.

    Raises
    ------
    NotImplementedError
        TVM's virtual machine alone can run the model, or its kernels compute with constants what samples do not change.
    """

    def __init__(self, simple: Model, names: Sequence[str], exchanged: Collection[TensorId], target: ResolvedTarget) -> None:
        view = DataflowView(simple.module["main"])
        known = {var.name for var in (*view.function.params, *(binding.var for binding in view.bindings))}
        self._names = [name for name in dict.fromkeys(names) if name in known]
        with lineage_paused():
            self._program = FloatProgram(simple, self._names, target)
            self._starts, total = _starts(simple, exchanged)
            placed = FloatProgram(_with_places(simple, self._starts), self._names, target, runs=False).constants()
        flat = _flat(simple, self._starts, total)
        self._constants = [
            [_constant(value, place, flat, self._starts) for value, place in zip(*each, strict=True)]
            for each in zip(self._program.constants(), placed, strict=True)
        ]
        self._makers = {call.var: number for number, call in enumerate(self._program.calls)}
        self._reads = [[each for each in call.operands if isinstance(each, Var)] for call in self._program.calls]
        self._exchanged: dict[TensorId, tuple[Mapping[TensorId, Any], dict[int, list[Any]]]] = {}

    def prepare(self, rounding: Rounding, results: Collection[str]) -> Prepared:
        """Return what computes results, by their names, with these roundings.

        Raises
        ------
        ValueError
            It rounds a tensor that was not named.
        """
        named = (*rounding.activations, *(name for rows in rounding.rows.values() for name in rows))
        unknown = next((name for name in named if str(name) not in self._program.variables), None)
        if unknown is not None:
            raise ValueError(f"{unknown} is none of the tensors that this program can round")
        program = self._program
        rounded = {program.variables[str(name)]: self._laid(str(name), steps) for name, steps in rounding.activations.items()}
        layers = {program.variables[str(name)] for name in rounding.layers}
        operands, rows = self._operands(rounding), self._rows(rounding)
        leaving = {program.variables[str(name)] for name in rounding.rows}
        wanted = [program.variables[name] for name in results]
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
                call=program.calls[number],
                operands=operands.get(number, program.calls[number].operands),
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
        inputs = {param: rounded[param] for param in program.params if param in rounded and param in read_integer}
        before = {program.calls[number].var for number, *_ in order} & only_rounded
        read = {*(read_real - real), *(read_integer - integer), *inputs, *before}
        return Prepared(inputs=inputs, steps=steps, read=read)

    def run(self, prepared: Prepared, arrays: Sequence[Array], results: Collection[str]) -> list[Array]:
        """Return results of one sample, by their names, in the source's layout."""
        [found] = self.run_each([prepared], arrays, results)
        return found

    def run_each(self, prepared: Sequence[Prepared], arrays: Sequence[Array], results: Collection[str]) -> Iterator[list[Array]]:
        """Yield what `run` returns of several roundings, each from the first tensor on that it makes another.

        What the float model has before is computed once, and held until the last.
        """
        floats = self._floats(arrays, {var for each in prepared for var in each.read})
        for each in prepared:
            real = {var: floats[var] for var in each.read}
            self._run(each, real)
            yield [self._in_source_layout(name, as_array(real[self._program.variables[name]])) for name in results]

    def _run(self, prepared: Prepared, real: dict[Var, Any]) -> None:
        """Add what steps make to the values that they read."""
        integer = {param: steps.rounded(real[param]) for param, steps in prepared.inputs.items()}
        in_rows: dict[Var, Any] = {}
        for step in prepared.steps:
            var = step.call.var
            for each, rows in step.rows.items():
                if each not in in_rows:
                    in_rows[each] = rows.rounded(real[each])
            if step.is_real:
                real[var] = step.call.run([real[each] if isinstance(each, Var) else each for each in step.call.operands])
            if step.is_integer:
                read = {each: in_rows[each] for each in step.rows}
                integer[var] = step.call.run(
                    [
                        read.get(each, integer.get(each, real.get(each))) if isinstance(each, Var) else each
                        for each in step.operands
                    ]
                )
            if step.leaves_float:
                real[var] = integer[var]
            if step.rounded is not None:
                integer[var] = step.rounded.rounded(integer[var] if step.is_integer else real[var])
            if step.is_layer and not step.leaves_float:
                real[var] = integer[var]
            for each in step.unread:
                for values in (real, integer, in_rows):
                    values.pop(each, None)

    def _floats(self, arrays: Sequence[Array], wanted: Collection[Var]) -> dict[Var, Any]:
        """Return variables of one sample as the float model has them."""
        program = self._program
        found: dict[Var, Any] = {
            param: tvm.runtime.tensor(np.asarray(array, order="C")) for param, array in zip(program.params, arrays, strict=True)
        }
        calls = calls_behind(program, self._makers, list(wanted), ())
        unread = unread_after(calls, wanted)
        for number, call in calls:
            found[call.var] = call.run([found[each] if isinstance(each, Var) else each for each in call.operands])
            for each in unread[number]:
                found.pop(each, None)
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
        real, integer, only_rounded = set[Var](), {param for param in self._program.params if param in rounded}, set[Var]()
        for number, call in enumerate(self._program.calls):
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
            if values:
                found |= self._operands_of(layer, values)
        return found

    def _rows(self, rounding: Rounding) -> dict[int, dict[Var, RowSteps]]:
        """Return what calls of layers read per row, by their numbers."""
        found: dict[int, dict[Var, RowSteps]] = {}
        for layer, rows in rounding.rows.items():
            read = {self._program.variables[str(name)]: self._laid(str(name), steps) for name, steps in rows.items()}
            for number in self._calls_of(layer):
                operands = self._program.calls[number].operands
                found[number] = {each: read[each] for each in operands if isinstance(each, Var) and each in read}
        return found

    def _operands_of(self, layer: TensorId, values: Mapping[TensorId, Floats]) -> dict[int, list[Any]]:
        """Return the operands of a layer's calls; those that it had last are at hand: many roundings differ in others alone."""
        known = self._exchanged.get(layer)
        if known is not None and known[0] is values:
            return known[1]
        found: dict[int, list[Any]] = {}
        for number in self._calls_of(layer):
            if self._reads_one_of(number, values):
                constants = iter(self._with_values(each, values) for each in self._constants[number])
                operands = self._program.calls[number].operands
                found[number] = [next(constants) if isinstance(each, tvm.runtime.Tensor) else each for each in operands]
        self._exchanged[layer] = values, found
        return found

    def _with_values(self, constant: _Constant, values: Mapping[TensorId, Floats]) -> Any:
        """Return a constant with the numbers of others in it."""
        if constant.places is None or constant.names.isdisjoint(values):
            return constant.value
        found = as_array(constant.value).copy()
        for name in constant.names & values.keys():
            places = constant.places - self._starts[name]
            is_own = (places >= 0) & (places < values[name].size)
            found[is_own] = values[name].reshape(-1)[places[is_own]]
        return tvm.runtime.tensor(found)

    def _calls_of(self, layer: TensorId) -> list[int]:
        """Return the numbers of the calls between what a layer reads and what it gives."""
        program = self._program
        seen = {program.variables[name] for name in self._names}
        return [number for number, _ in calls_behind(program, self._makers, [program.variables[str(layer)]], seen)]

    def _reads_one_of(self, number: int, names: Collection[TensorId]) -> bool:
        """Return whether a call reads one of these constants."""
        return any(not each.names.isdisjoint(names) for each in self._constants[number])

    def _laid(self, name: str, steps: AnySteps) -> AnySteps:
        order = self._program.orders.get(name)
        return steps if order is None else steps.transposed(order)

    def _in_source_layout(self, name: str, value: Array) -> Array:
        order = self._program.orders.get(name)
        return value if order is None else value.transpose(np.argsort(order))


def _starts(model: Model, names: Collection[TensorId]) -> tuple[dict[TensorId, int], int]:
    """Return where each of these constants begins if they lie one after the other, behind a zero, and where the last ends."""
    starts: dict[TensorId, int] = {}
    total = 1
    for name, value in model.params.items():
        if name in names:
            starts[name] = total
            total += value.size
    return starts, total


def _flat(model: Model, starts: Mapping[TensorId, int], total: int) -> npt.NDArray[np.float32]:
    flat = np.zeros(total, np.float32)
    for name, start in starts.items():
        value = model.params[name]
        flat[start : start + value.size] = value.reshape(-1)
    return flat


def _with_places(model: Model, starts: Mapping[TensorId, int]) -> Model:
    """Return the model with constants whose bits say where each number lies: what moves them shows where it went."""
    values = {
        name: np.arange(start, start + model.params[name].size, dtype=np.int32).view(np.float32).reshape(model.params[name].shape)
        for name, start in starts.items()
    }
    return with_values(model, values)


def _constant(value: Any, place: Any, flat: npt.NDArray[np.float32], starts: Mapping[TensorId, int]) -> _Constant:
    own, found = as_array(value), as_array(place)
    if own.dtype != np.float32 or own.shape != found.shape:
        return _Constant(value=value)
    places = found.view(np.int32)
    if np.array_equal(own.view(np.int32), places):
        return _Constant(value=value)
    is_place = bool(((places >= 0) & (places < flat.size)).all())
    if not is_place or not np.array_equal(flat[places].view(np.int32), own.view(np.int32)):
        raise NotImplementedError("kernels compute with constants of the model")
    ordered = list(starts)
    numbers = np.unique(np.searchsorted(np.array([*starts.values()]), places[places > 0], side="right"))
    return _Constant(value=value, places=places, names=frozenset(ordered[number - 1] for number in numbers))
