"""Session: an executable called step by step, whose state stays in memory from one step to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tvm

from ..errors import DataError
from .inputs import InputSpec, check_inputs
from .runner import NativeRunner, Runner
from .size import Size, evaluated, names_in

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class StatePlace:
    """A result that extends an input by rows along an axis, and may be written in its memory.

    Parameters
    ----------
    input, output
        Their numbers.
    axis
        Along which it grows.
    dimension
        Name of the open dimension that the input has there.
    capacity
        Name of the dimension that says for how many rows the memory has room.
    in_place
        Name of the dimension that is 1 where input and result are one memory.
    """

    input: int
    output: int
    axis: int
    dimension: str
    capacity: str
    in_place: str


class _Spec(Protocol):
    """What an executable takes or gives."""

    @property
    def source_name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...


class _Described(Protocol):
    """What an executable says of itself."""

    @property
    def inputs(self) -> tuple[InputSpec, ...]: ...
    @property
    def outputs(self) -> Sequence[_Spec]: ...
    @property
    def states(self) -> tuple[StatePlace, ...]: ...
    @property
    def limits(self) -> tuple[tuple[Size, int], ...]: ...
    @property
    def extents(self) -> tuple[Size, ...]: ...


class Stepped(Protocol):
    """What a session calls: an executable."""

    @property
    def description(self) -> _Described:
        """What it takes and gives."""
        ...

    @property
    def runner(self) -> Runner:
        """What calls the code."""
        ...


class Session:
    """Carries outputs of an executable to its inputs, from step to step. It is for one thread at a time; several may run at once.

    An output that extends its input by rows, as a decoder's cache does, is written behind the rows that are there. None of them
    is copied, and memory stays as large as the capacity. Any other state is handed over.

    Parameters
    ----------
    executable
        What is called.
    carry
        {output name: input name}.
    capacity
        {dimension name: rows}: for how many there is room in states that grow along it.
    start
        {input name: array} of the first step; by default states that grow have no rows, and others are 0.

    Raises
    ------
    DataError
        An unknown name; an output that does not fit its input; a state that grows without a capacity; a capacity of nothing.
    """

    def __init__(
        self,
        executable: Stepped,
        carry: Mapping[str, str],
        capacity: Mapping[str, int] | None = None,
        start: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> None:
        self._executable = executable
        self._inputs = {spec.source_name: spec for spec in executable.description.inputs}
        self._outputs = {spec.source_name: spec for spec in executable.description.outputs}
        self._carry = dict(carry)
        self._capacity = dict(capacity or {})
        for output, name in self._carry.items():
            _check_pair(output, self._outputs, name, self._inputs)
        self._growing = self._find_growing()
        self._check_capacity()
        self._given = [spec for name, spec in self._inputs.items() if name not in self._carry.values()]
        self._sizes: dict[str, int] = {}
        """Of the dimensions that the states fix, but for those along which they grow."""
        self._lengths = dict.fromkeys((place.dimension for place in self._growing.values()), 0)
        self._memory: dict[str, Any] = {}
        """By the name of the input: a growing state's whole memory, or another's tensor."""
        self._start = dict(start or {})
        for name, array in self._start.items():
            self._take(name, array)

    # ------------------------------------------------------------------------------------------------------- reading

    @property
    def length(self) -> int:
        """Rows that the growing states hold; where they grow along several dimensions, the most."""
        return max(self._lengths.values(), default=0)

    def state(self) -> Arrays:
        """Return copies of the states, by the names of the inputs, as the next step will find them."""
        return {name: self._rows_of(name).copy() for name in self._carry.values() if name in self._memory}

    def _rows_of(self, name: str) -> npt.NDArray[Any]:
        array, place = np.from_dlpack(self._memory[name]), self._place(name)
        if place is None:
            return array
        return array[(slice(None),) * place.axis + (slice(0, self._lengths[place.dimension]),)]

    # ------------------------------------------------------------------------------------------------------- running

    def __call__(
        self, data: npt.NDArray[Any] | Mapping[str, npt.NDArray[Any]] | None = None, /, **named: npt.NDArray[Any]
    ) -> Arrays:
        """Run one step.

        Parameters
        ----------
        data, named
            The inputs that are not carried: {name: array}, or by keyword; of one input an array.

        Returns
        -------
        dict
            The outputs that are not carried, by name.

        Raises
        ------
        DataError
            As a call of the executable; more rows than the capacity. The session is as it was before.
        """
        facts = self._executable.description
        given, known = self._named(data, named), self._known()
        arrays = check_inputs(self._given, given, where="step", limits=facts.limits, extents=facts.extents, known=known)
        sizes = {**self._sizes, **self._lengths, **_sizes_of(self._given, arrays)}
        outputs = {name: evaluated(spec.shape, {**sizes, **self._lengths}) for name, spec in self._outputs.items()}
        rows = self._rows_after(outputs)
        self._make_room(sizes)
        inputs = {spec.source_name: array for spec, array in zip(self._given, arrays, strict=True)}
        made = self._run(inputs, outputs, sizes)
        self._lengths |= rows
        for output, name in self._carry.items():
            if output not in self._growing:
                self._memory[name] = made.pop(output)
            else:
                made.pop(output, None)
        self._sizes |= {key: size for key, size in sizes.items() if key in self._fixed() and key not in self._lengths}
        return {name: np.from_dlpack(tensor).copy() for name, tensor in made.items()}

    def fork(self) -> Session:
        """Return another session with copies of the states, to go on from here in two ways."""
        other = Session(self._executable, self._carry, self._capacity)
        other._sizes, other._lengths = dict(self._sizes), dict(self._lengths)
        for name, tensor in self._memory.items():
            other._memory[name] = tvm.runtime.empty(tuple(tensor.shape), str(tensor.dtype))
            if self._place(name) is None:
                np.copyto(np.from_dlpack(other._memory[name]), np.from_dlpack(tensor))
            else:
                np.copyto(other._rows_of(name), self._rows_of(name))
        return other

    def reset(self, to: int = 0) -> None:
        """Drop rows behind the first `to` of the growing states; 0 starts anew.

        Raises
        ------
        DataError
            More rows than there are; some rows, where a state doesn't grow: of such a state only the last one is there.
        """
        if not 0 <= to <= min(self._lengths.values(), default=0):
            raise DataError(f"reset(to={to}): the session holds {min(self._lengths.values(), default=0)} rows")
        others = [name for name in self._carry.values() if self._place(name) is None]
        if to and others:
            raise DataError(f"reset(to={to}): the state {others[0]} keeps no earlier steps; reset() starts anew")
        self._lengths = dict.fromkeys(self._lengths, to)
        if not to:
            self._memory, self._sizes = {}, {}
            for name, array in self._start.items():
                self._take(name, array)

    def __enter__(self) -> Session:
        """Return the session."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Let its memory go."""
        self._memory = {}

    # ------------------------------------------------------------------------------------------------------- parts

    def _find_growing(self) -> dict[str, StatePlace]:
        """Return the carried outputs that kernels write behind the rows of their inputs, by name."""
        specs = self._executable.description
        places = {specs.outputs[each.output].source_name: each for each in specs.states}
        return {
            output: places[output]
            for output, name in self._carry.items()
            if output in places and specs.inputs[places[output].input].source_name == name
        }

    def _place(self, name: str) -> StatePlace | None:
        """Return how the state of an input grows; None where it is handed over."""
        output = next((output for output, other in self._carry.items() if other == name), None)
        return None if output is None else self._growing.get(output)

    def _check_capacity(self) -> None:
        grown = {place.dimension for place in self._growing.values()}
        for name, rows in self._capacity.items():
            if name not in grown:
                along = ", ".join(sorted(grown)) or "none"
                raise DataError(f"capacity {name}={rows}: no state is written in place along {name!r}; states grow along {along}")
            if rows < 1:
                raise DataError(f"capacity {name}={rows}: must be at least 1")
        missing = sorted(grown - self._capacity.keys())
        if missing:
            advice = f"capacity={{{missing[0]!r}: 2048}}"
            raise DataError(f"states grow along {missing[0]!r}: say for how many rows there is to be room, as in {advice}")

    def _named(self, data: Any, named: Mapping[str, Any]) -> Any:
        if data is None:
            return dict(named)
        if isinstance(data, Mapping):
            return {**data, **named}
        return {**{spec.source_name: data for spec in self._given[:1]}, **named} if named else data

    def _known(self) -> dict[str, tuple[int, str]]:
        """Return the sizes that the states fix, and who says so."""
        known = {name: (size, f"the session's states have {size}") for name, size in self._sizes.items()}
        return {**known, **{name: (rows, f"the session holds {rows} rows") for name, rows in self._lengths.items()}}

    def _fixed(self) -> frozenset[str]:
        """Return the dimensions that states have."""
        return names_in(dim for name in self._carry.values() for dim in self._inputs[name].shape)

    def _rows_after(self, outputs: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """Return how many rows the growing states will hold; DataError where there is no room for them."""
        found: dict[str, int] = {}
        for output, place in self._growing.items():
            found[place.dimension], room = outputs[output][place.axis], self._capacity[place.dimension]
            if found[place.dimension] > room:
                held = self._lengths[place.dimension]
                raise DataError(
                    f"step: {output} would have {found[place.dimension]} rows along {place.dimension} ({held} are there), "
                    f"the capacity is {room}; reset the session, or open one with more"
                )
        return found

    def _make_room(self, sizes: Mapping[str, int]) -> None:
        """Give memory to the states that have none yet."""
        for output, name in self._carry.items():
            if name in self._memory:
                continue
            spec, place = self._inputs[name], self._growing.get(output)
            unknown = names_in(spec.shape) - sizes.keys()
            if unknown:
                raise DataError(f"step: nothing says the size of {min(unknown)} of the state {name}: give it in start")
            shape = list(evaluated(spec.shape, sizes))
            if place is not None:
                shape[place.axis] = self._capacity[place.dimension]
            self._memory[name] = tvm.runtime.empty(tuple(shape), spec.dtype)
            if place is None:
                np.from_dlpack(self._memory[name])[...] = 0

    def _take(self, name: str, array: npt.NDArray[Any]) -> None:
        """Begin with a state."""
        spec = self._inputs.get(name)
        if spec is None or name not in self._carry.values():
            raise DataError(f"start: {name!r} is no carried input; these are {', '.join(sorted(self._carry.values()))}")
        known = {key: size for key, size in self._known().items() if key in self._sizes}
        [checked] = check_inputs([spec], array, where="start", known=known)
        sizes = _sizes_of([spec], [checked])
        place = self._place(name)
        if place is None:
            self._memory[name] = tvm.runtime.tensor(checked)
        else:
            rows, room = sizes.pop(place.dimension), self._capacity[place.dimension]
            if rows > room or self._lengths[place.dimension] not in (0, rows):
                raise DataError(f"start: {name} has {rows} rows; the capacity is {room}, and all states begin with as many")
            self._lengths[place.dimension] = rows
            shape = list(checked.shape)
            shape[place.axis] = room
            self._memory[name] = tvm.runtime.empty(tuple(shape), spec.dtype)
            np.copyto(self._rows_of(name), checked)
        self._sizes |= sizes

    def _run(
        self, inputs: Mapping[str, npt.NDArray[Any]], outputs: Mapping[str, tuple[int, ...]], sizes: Mapping[str, int]
    ) -> dict[str, Any]:
        """Run the executable on the states' memory; return tensors for the outputs that are not written there."""
        runner = self._executable.runner
        if not self._growing or not isinstance(runner, NativeRunner):
            whole = {**inputs, **{name: np.ascontiguousarray(self._rows_of(name)) for name in self._carry.values()}}
            results = runner([tvm.runtime.tensor(whole[name]) for name in self._inputs])
            return dict(zip(self._outputs, results, strict=True))
        given = {name: self._memory[name] if name in self._memory else tvm.runtime.tensor(inputs[name]) for name in self._inputs}
        own = {output: self._memory[self._carry[output]] for output in self._growing}
        fresh = {name: tvm.runtime.empty(shape, self._outputs[name].dtype) for name, shape in outputs.items() if name not in own}
        room = {place.capacity: self._capacity[place.dimension] for place in self._growing.values()}
        places = dict.fromkeys((place.in_place for place in self._growing.values()), 1)
        everything = {**own, **fresh}
        runner.run_on(list(given.values()), [everything[name] for name in self._outputs], {**sizes, **room, **places})
        return fresh


def _check_pair(output: str, outputs: Mapping[str, _Spec], name: str, inputs: Mapping[str, InputSpec]) -> None:
    """Raise DataError where an output can't be carried to an input."""
    for kind, known, given in (("output", outputs, output), ("input", inputs, name)):
        if given not in known:
            raise DataError(f"carry {output!r} to {name!r}: there is no {kind} {given!r}; there are {', '.join(known)}")
    one, other = outputs[output], inputs[name]
    fits = len(one.shape) == len(other.shape) and one.dtype == other.dtype
    alike = [a == b for a, b in zip(one.shape, other.shape, strict=False)]
    if not fits or alike.count(False) > 1:
        raise DataError(
            f"carry {output!r} to {name!r}: {one.dtype} [{_dims(one.shape)}] is no state of {other.dtype} [{_dims(other.shape)}]"
        )


def _dims(shape: tuple[int, ...]) -> str:
    return ",".join(map(str, shape))


def _sizes_of(specs: list[InputSpec], arrays: list[npt.NDArray[Any]]) -> dict[str, int]:
    """Return the sizes of open dimensions that inputs have."""
    found: dict[str, int] = {}
    for spec, array in zip(specs, arrays, strict=True):
        dims: zip[tuple[int | Size, int]] = zip(spec.shape, array.shape, strict=True)
        found |= {dim.name: size for dim, size in dims if isinstance(dim, Size) and dim.name is not None}
    return found
