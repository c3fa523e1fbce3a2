"""Where the constants of a model lie in those that its kernels read, so that these can be others. It runs nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm.relax import Expr, Var

from ..ir.graph import Model
from ..ir.graph.dataflow import BodyWriter, DataflowView, call_to, operand_vars, replace_operands
from ..ir.graph.model import rewritten
from ..ir.identity import TensorId
from ..ir.identity.naming import NameSupply
from ..runtime.mapped import SHARED_BYTES, can_share, empty_array, shared_tensor

Floats = npt.NDArray[np.float32]
_MAX_AXES = 8


@dataclass(frozen=True, slots=True)
class _Walk:
    """How a constant lies in another, if it was only reshaped, transposed and tiled: a copy then takes a third of looking up.

    Parameters
    ----------
    first
        Where its first number lies there.
    counts, steps
        How many numbers there are along each axis, and how far the next one lies, the last axis innermost.
    """

    first: int
    counts: tuple[int, ...]
    steps: tuple[int, ...]

    @staticmethod
    def of(places: npt.NDArray[np.int32]) -> _Walk | None:
        """Return it of places, None where they lie otherwise."""
        counts, steps, left = list[int](), list[int](), places.reshape(-1)
        while left.size > 1:
            step = int(left[1]) - int(left[0])
            others = np.flatnonzero(np.diff(left) != step)
            count = int(others[0]) + 1 if others.size else left.size
            if left.size % count or len(counts) == _MAX_AXES:
                return None
            counts, steps, left = [count, *counts], [step, *steps], left[::count]
        found = _Walk(int(places.flat[0]), tuple(counts), tuple(steps))
        # Read along the walk, numbers that count up are the places themselves.
        is_it = min(found.ends) >= 0 and np.array_equal(
            found.read(np.arange(max(found.ends) + 1)).reshape(-1), places.reshape(-1)
        )
        return found if is_it else None

    @property
    def ends(self) -> tuple[int, int]:
        """The first and the last number that is read."""
        spans = [step * (count - 1) for count, step in zip(self.counts, self.steps, strict=True)]
        return self.first + sum(min(span, 0) for span in spans), self.first + sum(max(span, 0) for span in spans)

    def read(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the numbers of a flat array, as it counts: a view."""
        strides = [step * values.itemsize for step in self.steps]
        return np.lib.stride_tricks.as_strided(values[self.first :], self.counts, strides, writeable=False)


@dataclass(frozen=True, slots=True, eq=False)
class Deferred:
    """A large constant that is made when a call reads it, and goes behind that.

    Parameters
    ----------
    tensor
        Makes it.
    shape
        Of the tensor.
    """

    tensor: Callable[[], Any]
    shape: tuple[int, ...]

    @staticmethod
    def of(values: Mapping[TensorId, Floats], name: TensorId, shape: tuple[int, ...]) -> Deferred:
        """Return one of these values, which may make it when it is asked for."""
        return Deferred(lambda: shared_tensor(values[name], runs=True), shape)


class Renamed(Mapping[TensorId, Floats]):
    """Some of other values, which may make them when they are asked for, under other names."""

    def __init__(self, values: Mapping[TensorId, Floats], names: Mapping[TensorId, TensorId]) -> None:
        self._values, self._names = values, names

    def __getitem__(self, name: TensorId) -> Floats:
        """Return a value by its name here."""
        return self._values[self._names[name]]

    def __contains__(self, name: object) -> bool:
        """Return whether there is one of a name: it is not made for that."""
        return name in self._names

    def __iter__(self) -> Iterator[TensorId]:
        """Yield the names here."""
        return iter(self._names)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._names)


def at_hand(operands: Sequence[Any]) -> Sequence[Any]:
    """Return operands of a call with those that are deferred made."""
    if not any(isinstance(each, Deferred) for each in operands):
        return operands
    return [each.tensor() if isinstance(each, Deferred) else each for each in operands]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ReplaceableConstant:
    """One constant of a call.

    Parameters
    ----------
    value
        Its own, a tensor.
    places
        Of its shape, flat indices into the constants that may be others, which lie one after the other behind a zero; None of one
        that is none of these. Of a single constant that is only moved, how it lies in that.
    names
        Of the constants that they are of.
    before
        How many numbers lie before those of the first of these, which `places` leave out: layers of one shape share theirs.
    is_unpacked
        Whether it is one of the model's as that has it.
    is_deferred
        Whether a single constant that is only moved is made for one call at a time.
    """

    value: Any
    places: npt.NDArray[np.int32] | _Walk | None = None
    names: frozenset[TensorId] = frozenset()
    before: int = 0
    is_unpacked: bool = False
    is_deferred: bool = False

    @property
    def nbytes(self) -> int:
        """Of the tensor, in float32."""
        return 4 * math.prod(self.value.shape)

    def with_values(self, values: Mapping[TensorId, Floats], starts: Mapping[TensorId, int]) -> Any:
        """Return the tensor with the numbers of others in it; of a large one a `Deferred`."""
        if self.names.isdisjoint(values):
            return self.value
        if self.is_unpacked:
            [name] = self.names
            return Deferred.of(values, name, self.value.shape)
        if self.places is None:
            return self.value
        if isinstance(self.places, _Walk):
            made = partial(self._walked, values, self.places)
            return Deferred(made, self.value.shape) if self.is_deferred else made()
        found = np.from_dlpack(self.value)
        for name in self.names & values.keys():
            value = values[name].reshape(-1)
            places = self.places - np.int32(starts[name] - self.before)
            is_own = (places >= 0) & (places < value.size)
            found = np.where(is_own, np.take(value, places, mode="clip"), found)
        return tvm.runtime.tensor(found)

    def _walked(self, values: Mapping[TensorId, Floats], walk: _Walk) -> Any:
        """Return the tensor of a single constant's numbers."""
        [name] = self.names
        read = walk.read(np.ascontiguousarray(values[name]).reshape(-1))
        if self.is_deferred and read.flags.c_contiguous:  # it lies there as it is in the model
            return shared_tensor(read.reshape(self.value.shape), runs=True)
        result = tvm.runtime.empty(self.value.shape, str(read.dtype))
        np.copyto(np.from_dlpack(result).reshape(read.shape), read)
        return result


def unpacked_weights(model: Model) -> dict[str, Any]:
    """Return the weights that kernels read as the model has them, by the names of their variables.

    Those are tensors on its memory, or what makes one. They are large matrices that products alone read, transposed or not, of a
    large model: packed, all of them would be there once more, and to find where each number goes takes longer than to pack one of
    them for each run.
    """
    if not model.is_large:
        return {}
    view = DataflowView(model.module["main"])
    found: dict[str, Any] = {}
    for param in view.function.params:
        value = model.params.get(TensorId(param.name))
        if value is None or value.ndim != 2 or value.dtype != np.float32 or value.nbytes < SHARED_BYTES:
            continue
        if _is_matrix_of_products(view, param):
            # What lies where kernels can't read it is copied for one call at a time.
            name = TensorId(param.name)
            can_read = can_share(value)
            found[param.name] = shared_tensor(value, runs=True) if can_read else Deferred.of(model.params, name, value.shape)
    return found


def _is_matrix_of_products(view: DataflowView, matrix: Var) -> bool:
    """Return whether products alone read a matrix, as their second operand, or its transpose."""
    users = view.users(matrix)
    if not users or view.is_returned(matrix):
        return False
    for user in users:
        call: Any = view.definition(user)
        if call_to(call, "permute_dims") is not None:
            if not _is_matrix_of_products(view, user):
                return False
        elif call_to(call, "matmul") is None or not call.args[1].same_as(matrix) or call.args[0].same_as(matrix):
            return False
    return True


def unpacked_constant(name: TensorId, value: Any) -> ReplaceableConstant:
    """Return what calls read of a weight of `unpacked_weights`."""
    return ReplaceableConstant(value=value, names=frozenset([name]), is_unpacked=True)


def starts_of(model: Model, names: Collection[TensorId]) -> dict[TensorId, int]:
    """Return where each of these constants begins if they lie one after the other, behind a zero."""
    sizes = {name: value.size for name, value in model.params.items() if name in names}
    return dict(zip(sizes, accumulate(sizes.values(), initial=1), strict=False))


def with_values(model: Model, values: Mapping[TensorId, npt.NDArray[Any]]) -> Model:
    """Return a float model with other values of its constants; those of which it has none of that shape are left."""
    params = dict(model.params)
    for name, value in values.items():
        if name in params and params[name].shape == value.shape:
            params[name] = value.astype(params[name].dtype, copy=False)
    return replace(model, params=params)


def with_places(model: Model, starts: Mapping[TensorId, int]) -> Model:
    """Return the model with constants whose bits say where each number lies: what moves them shows where it went."""
    values: dict[TensorId, npt.NDArray[Any]] = {}
    for name, start in starts.items():
        own = model.params[name]
        places = empty_array(own.size, np.int32)
        places[:] = np.arange(start, start + own.size, dtype=np.int32)
        values[name] = places.view(np.float32).reshape(own.shape)
    return with_values(model, values)


def unshared(model: Model) -> tuple[Model, dict[TensorId, TensorId]]:
    """Return a model in which each op that reads a vector has one of its own, and what each constant was called before.

    Constants are in the order in which they are read, and those left out that nothing reads: two models that compute the same but
    for constants have one structure.
    """
    view = DataflowView(model.module["main"])
    supply, origins, params = NameSupply([*model.tensors, *view.names]), dict[TensorId, TensorId](), list[Var]()
    new: dict[Var, dict[Var, Var]] = {}
    for reader, var in ((each.var, var) for each in view.bindings for var in dict.fromkeys(operand_vars(each.value))):
        name = TensorId(var.name)
        if name in model.params and name not in origins:
            is_own = model.params[name].ndim == 1 and len(view.users(var)) > 1 and not view.is_returned(var)
            own = Var(supply.fresh(var.name), var.ty) if is_own else var
            new.setdefault(reader, {})[var] = own
            origins[TensorId(own.name)] = name
            params.append(own)
    mapping: dict[Var, Expr] = {}

    def body(out: BodyWriter) -> Expr:
        for binding in view.bindings:
            own: dict[Var, Expr] = {**new.get(binding.var, {})}
            value = replace_operands(binding.value, lambda var, own=own: own.get(var, mapping.get(var, var)))
            mapping[binding.var] = out.emit(binding.var.name, value, is_output=view.is_returned(binding.var))
        return replace_operands(view.result, lambda var: mapping.get(var, var))

    inputs = [param for param in view.function.params if TensorId(param.name) not in model.params]
    returned = [each for each in view.function.params if TensorId(each.name) in model.params and view.is_returned(each)]
    params += [each for each in returned if TensorId(each.name) not in origins]
    origins |= {TensorId(each.name): TensorId(each.name) for each in returned}
    values = {own: model.params[name] for own, name in origins.items()}
    found = rewritten(model, body, [*inputs, *params], values)
    return found, {own: name for own, name in origins.items() if own in found.params}


class Finder:
    """Finds the constants of a model in those of calls.

    Parameters
    ----------
    model
        The model; `starts` of its constants are those of `starts_of`.
    defers
        Whether large ones are made for one call at a time.
    """

    def __init__(self, model: Model, starts: Mapping[TensorId, int], *, defers: bool = False) -> None:
        self._params, self._starts, self._defers = model.params, starts, defers
        self._known: dict[tuple[int, ...], list[npt.NDArray[np.int32]]] = {}

    def constant(self, value: Any, place: Any) -> ReplaceableConstant:
        """Return a constant of a call, of which `place` is what `with_places` makes.

        Raises
        ------
        NotImplementedError
            It is computed of the model's.
        """
        own, found = np.from_dlpack(value), np.from_dlpack(place)
        if own.dtype != np.float32 or own.shape != found.shape:
            return ReplaceableConstant(value=value)
        places = found.view(np.int32)
        if np.array_equal(own.view(np.int32), places):
            return ReplaceableConstant(value=value)
        last = max((start + self._params[name].size for name, start in self._starts.items()), default=1)
        if not (int(places.min()) >= 0 and 0 < int(places.max()) < last):
            raise NotImplementedError("kernels compute with constants of the model")
        names = _names_at(places, self._starts)
        ordered = [name for name in self._starts if name in names]
        # The constants between the first and the last are read, too: mostly there are none.
        start = self._starts[ordered[0]]
        stop = self._starts[ordered[-1]] + self._params[ordered[-1]].size
        places = np.where(places > 0, places - np.int32(start - 1), np.int32(0))
        flat = np.zeros(1 + stop - start, np.float32)
        for name in ordered:
            at = self._starts[name] - start + 1
            flat[at : at + self._params[name].size] = self._params[name].reshape(-1)
        if not np.array_equal(flat[places].view(np.int32), own.view(np.int32)):
            raise NotImplementedError("kernels compute with constants of the model")
        walk = _Walk.of(places - 1) if len(names) == 1 else None
        return ReplaceableConstant(
            value=value,
            places=walk or self._shared(places),
            names=names,
            before=start - 1,
            is_deferred=self._defers and own.nbytes >= SHARED_BYTES,
        )

    def _shared(self, places: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return these places, as one array for all layers that have the same."""
        alike = self._known.setdefault(places.shape, [])
        same = next((each for each in alike if np.array_equal(each, places)), None)
        if same is None:
            alike.append(places)
        return places if same is None else same


def _names_at(places: npt.NDArray[np.int32], starts: Mapping[TensorId, int]) -> frozenset[TensorId]:
    """Return the constants that places are of."""
    ordered, ends = list(starts), np.array([*starts.values()])
    first, last = (int(np.searchsorted(ends, each, side="right")) - 1 for each in (places[places > 0].min(), places.max()))
    if first == last:  # nearly always: the places need not be looked at one by one
        return frozenset([ordered[first]])
    numbers = np.unique(np.searchsorted(ends, places[places > 0], side="right"))
    return frozenset(ordered[number - 1] for number in numbers)
