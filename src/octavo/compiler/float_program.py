"""A float model call by call, its tensors seen by name, and its constants exchanged for others. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import tvm
from tvm.ir import GenericConst
from tvm.relax import Var
from tvm_ffi import structural_equal

from ..ir.graph import Model
from ..ir.graph.dataflow import DataflowView, computed_results, static_shape
from ..ir.graph.lineage import lineage_paused
from ..ir.graph.results import with_results
from ..ir.identity import TensorId
from ..numerics.arrays import Array
from ..runtime.heap import trim_heap
from ..runtime.mapped import Pages, forget_pages
from ..runtime.shapes import dimension_places, read_sizes
from .backends.cpu.kernels.language.vectors import without_bodies
from .backends.cpu.link import link
from .backends.cpu.lowering import lower_composites
from .backends.cpu.storage import TO_NHWC
from .codegen.kernel_calls import KernelCall, KernelCalls
from .partition.pipeline import partition_module
from .replaceable_constants import Finder, Renamed, at_hand, starts_of, unpacked_constant, unpacked_weights, unshared, with_places
from .target_choice import ResolvedTarget

NO_GAINS: Mapping[str, Array] = MappingProxyType({})


class FloatProgram:
    """The calls of a float model whose tensors are seen by name.

    Parameters
    ----------
    model
        Float, simplified.
    names
        The tensors that are to be variables of their own, besides results: nothing is fused across them.
    others
        Constants that may be others.

    Raises
    ------
    NotImplementedError
        TVM's virtual machine alone can run the model, or its kernels compute with constants that may be others.
    """

    def __init__(self, model: Model, names: Sequence[str], target: ResolvedTarget, others: Collection[TensorId] = ()) -> None:
        view = DataflowView(model.module["main"])
        self.results: tuple[str, ...] = tuple(view.root_of(var).name for var in computed_results(view))
        names = list(dict.fromkeys((*names, *self.results)))
        self.others = frozenset(others)
        self._model, self._origins = unshared(model)
        unpacked = unpacked_weights(self._model)
        packed = replace(
            self._model, params={name: value for name, value in self._model.params.items() if str(name) not in unpacked}
        )
        self._starts = starts_of(packed, [own for own, name in self._origins.items() if name in self.others])
        with lineage_paused():
            program, view, stored = _calls(packed, names, target)
            forget_pages()
            placed = _calls(with_places(packed, self._starts), names, target, runs=False)[0] if self._starts else program
        self.calls: list[KernelCall] = program.calls
        self.params: tuple[Var, ...] = program.params[: len(model.input_ids)]
        self._dimensions = dimension_places([static_shape(param) or () for param in self.params])
        known = {hash(var): var for var in (*program.params, *(call.var for call in program.calls))}
        self.variables: dict[str, Var] = {
            name: known[hash(view.root_of(result))] for name, result in zip(names, program.results, strict=True)
        }
        self.orders: dict[str, tuple[int, ...]] = {name: TO_NHWC for name, is_nhwc in zip(names, stored, strict=True) if is_nhwc}
        """By the names of tensors the order in which the axes of the source lie, where it is another."""
        finder = Finder(packed, self._starts, defers=bool(unpacked))
        self._constants = [
            [
                unpacked_constant(TensorId(value), unpacked[value]) if isinstance(value, str) else finder.constant(value, place)
                for value, place in zip(_values(call, unpacked), _values(other, unpacked), strict=True)
            ]
            for call, other in zip(program.calls, placed.calls, strict=True)
        ]
        del program, placed
        trim_heap(model.constant_bytes)
        for call in self.calls:  # to take a tensor out of its constant each time takes as long as a small kernel
            call.operands[:] = [_value(each, unpacked) for each in call.operands]
        self.reads = [[(place, each) for place, each in enumerate(call.operands) if isinstance(each, Var)] for call in self.calls]
        """Of each call which operands are variables."""
        self.has_unpacked = bool(unpacked)
        """Whether it reads large weights as the model has them, which others are made for one call at a time."""
        self._last: tuple[tuple[frozenset[int], bool], tuple[list[int], dict[int, list[Var]]]] | None = None
        self.pages = Pages()
        self._read = [sum(each.nbytes for each in constants if each.is_unpacked) for constants in self._constants]
        """Bytes of the large weights that each call reads as the model has them."""
        self.makers = {call.var: number for number, call in enumerate(self.calls)}
        self._found = frozenset[TensorId]().union(*(each.names for constants in self._constants for each in constants))

    def of(self, model: Model, names: Collection[str], gains: Mapping[str, Array] = NO_GAINS) -> FloatProgram | None:
        """Return what runs a model in which constants alone are others; None where more is, or a name has no variable.

        Parameters
        ----------
        gains
            What tensors are multiplied by where they are made, by their names, which have variables.
        """
        if not self.variables.keys() >= set(names):
            return None
        own, origins = unshared(model)
        if not structural_equal(own.module, self._model.module):
            return None
        values = {name: own.params[other] for name, other in zip(self._origins, origins, strict=True)}
        changed = {name: value for name, value in values.items() if value is not self._model.params[name]}
        if not self._found >= changed.keys():
            return None
        found = copy(self)
        found._model, found._constants = replace(self._model, params=values), list(self._constants)
        found.calls = list(self.calls)
        for number, constants in enumerate(self._constants):
            if any(not each.names.isdisjoint(changed) for each in constants):
                found._constants[number] = [replace(each, value=each.with_values(changed, self._starts)) for each in constants]
                operands = self._with_constants(number, (each.value for each in found._constants[number]))
                found.calls[number] = replace(self.calls[number], operands=operands)
        for name, gain in gains.items():
            number, order = self.makers[self.variables[name]], self.orders.get(name)
            run = partial(_multiplied, found.calls[number].run, gain if order is None else _in_order(gain, order))
            found.calls[number] = replace(found.calls[number], run=run)
        return found

    def operands(self, number: int, values: Mapping[TensorId, Any]) -> list[Any] | None:
        """Return the operands of a call that reads other constants, those of these values; None of one that reads none."""
        constants = self._constants[number]
        read = Renamed(values, {own: name for each in constants for own in each.names if (name := self._origins[own]) in values})
        return self._with_constants(number, (each.with_values(read, self._starts) for each in constants)) if read else None

    def made(
        self, arrays: Sequence[Array], wanted: Collection[Var], *, keeps: bool = True
    ) -> Iterator[tuple[Var, Mapping[Var, Any]]]:
        """Run the model on one sample, and yield each variable once it is there, inputs first, with all that are there.

        Parameters
        ----------
        wanted
            What is computed.
        keeps
            Whether that is left in the end, too, which no other call reads.
        """
        found: dict[Var, Any] = {
            param: tvm.runtime.tensor(np.asarray(array, order="C")) for param, array in zip(self.params, arrays, strict=True)
        }
        for param in self.params:
            yield param, found
        sizes = self.sizes(arrays)
        numbers, unread = self._needed(wanted, keeps=keeps)
        for number in numbers:
            call = self.calls[number]
            operands = [*self.at_hand(call.operands)]
            for place, var in self.reads[number]:
                operands[place] = found[var]
            found[call.var] = call.run(operands, sizes)
            self.was_run(number)
            yield call.var, found
            for each in unread[number]:
                found.pop(each, None)

    def at_hand(self, operands: Sequence[Any]) -> Sequence[Any]:
        """Return operands of a call with those that are deferred made."""
        return at_hand(operands) if self.has_unpacked else operands

    def was_run(self, number: int) -> None:
        """Give pages of files back, once calls have read many."""
        self.pages.read(self._read[number])

    def sizes(self, arrays: Sequence[Array]) -> dict[str, int]:
        """Return what open dimensions are in one sample, by their names."""
        return read_sizes(self._dimensions, [array.shape for array in arrays])

    def _needed(self, wanted: Collection[Var], *, keeps: bool) -> tuple[list[int], dict[int, list[Var]]]:
        """Return the numbers of the calls that variables need, and what nothing reads behind each: mostly that of before."""
        key, last = (frozenset(map(hash, wanted)), keeps), self._last
        if last is None or last[0] != key:
            calls = self.calls_behind(list(wanted), ())
            last = self._last = key, ([number for number, _ in calls], unread_after(calls, wanted if keeps else ()))
        return last[1]

    def on(self, samples: Iterable[Sequence[Array]], names: Iterable[str] = ()) -> Iterator[tuple[list[Array], list[Array]]]:
        """Yield for each sample the model's results and the values of tensors, in the source's layout."""
        seen = [*names]
        wanted = {self.variables[name] for name in (*self.results, *seen)}
        for arrays in samples:
            found: Mapping[Var, Any] = {}
            for _, values in self.made(arrays, wanted):
                found = values
            yield [self.value(name, found) for name in self.results], [self.value(name, found) for name in seen]

    def value(self, name: str, values: Mapping[Var, Any]) -> Array:
        """Return what a tensor is among the values of variables, in the source's layout: a view."""
        order, value = self.orders.get(name), np.from_dlpack(values[self.variables[name]])
        return value if order is None else value.transpose(np.argsort(order))

    def calls_behind(self, wanted: Sequence[Var], until: Collection[Var]) -> list[tuple[int, KernelCall]]:
        """Return the calls that variables need, in order, back to those of `until`, each with its number."""
        found: set[int] = set()
        ahead = [var for var in wanted if var in self.makers]
        while ahead:
            number = self.makers[ahead.pop()]
            if number not in found:
                found.add(number)
                reads = (each for each in self.calls[number].operands if isinstance(each, Var))
                ahead.extend(var for var in reads if var in self.makers and var not in until)
        return [(number, self.calls[number]) for number in sorted(found)]

    def _with_constants(self, number: int, constants: Iterable[Any]) -> list[Any]:
        left = iter(constants)
        return [each if isinstance(each, Var) else next(left) for each in self.calls[number].operands]


def _calls(
    model: Model, names: Sequence[str], target: ResolvedTarget, *, runs: bool = True
) -> tuple[KernelCalls, DataflowView, tuple[bool, ...]]:
    """Return the calls of a model, "main" as it is linked, and which results lie in NHWC of NCHW.

    Parameters
    ----------
    runs
        Whether calls are run, not only looked at for their constants.
    """
    with nullcontext() if runs else without_bodies():
        parts = partition_module(with_results(model.bound(runs=False), names), target.host)
        lowered = lower_composites(parts, target.host, target.isas, 1, stored_from=0)
        linked = link(lowered, target.llvm)
    return KernelCalls(linked, target.llvm if runs else None), DataflowView(linked["main"]), lowered.stored


def _in_order(gain: Array, order: Sequence[int]) -> Array:
    """Return factors, whose first axes may be left out as NumPy broadcasts them, with their axes in this order."""
    return gain.reshape((1,) * (len(order) - gain.ndim) + gain.shape).transpose(order)


def _multiplied(
    run: Callable[[Sequence[Any], Mapping[str, int]], Any], gain: Array, operands: Sequence[Any], sizes: Mapping[str, int]
) -> Any:
    value = np.from_dlpack(run(operands, sizes))
    return tvm.runtime.tensor(value * gain)


def _value(operand: Any, unpacked: Mapping[str, Any]) -> Any:
    """Return an operand, and a constant as a tensor: one that is `unpacked` is a variable in the module."""
    if isinstance(operand, Var):
        return unpacked.get(operand.name, operand)
    return operand.value if isinstance(operand, GenericConst) else operand


def _values(call: KernelCall, unpacked: Mapping[str, Any]) -> list[Any]:
    """Return the constants of a call, as tensors; those that are unpacked by their names."""
    found = [each.name if isinstance(each, Var) and each.name in unpacked else _value(each, {}) for each in call.operands]
    return [each for each in found if not isinstance(each, Var)]


def unread_after(calls: Sequence[tuple[int, KernelCall]], kept: Collection[Var]) -> dict[int, list[Var]]:
    """Return the variables that nothing reads behind a call, by its number."""
    last = {var: number for number, call in calls for var in (*call.operands, call.var) if isinstance(var, Var)}
    found, left = {number: list[Var]() for number, _ in calls}, set(kept)  # to look through a list compares variables
    for var, number in last.items():
        if var not in left:
            found[number].append(var)
    return found
