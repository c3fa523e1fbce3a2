"""Session: an executable called step by step, whose state stays in memory from one step to the next."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ..errors import DataError, check_type
from .description import Description, OutputSpec, StatePlace, fixed_dimension
from .huge_pages import machine_bytes
from .input_check import InputCheck
from .inputs import InputSpec, check_inputs
from .runner import CallState, NativeRunner, Runner
from .shapes import LARGEST, dimension_places, evaluated, read_sizes
from .size import Size, names_in
from .tensors import empty_tensor, tensor_from

Arrays = dict[str, npt.NDArray[Any]]


class Session:
    """Carries outputs of an executable to its inputs, from step to step. It is for one thread at a time; several may run at once.

    An output that extends its input by rows, as a decoder's cache does, is written behind the rows that are there. None of them
    is copied, and memory stays as large as the capacity. Any other state is handed over.

    Parameters
    ----------
    description, runner
        Of the executable: what it takes and gives, and what calls its code.
    carry
        {output name: input name}.
    capacity
        {dimension name: rows}: for how many there is room in states that grow along it.
    start
        {input name: array} of the first step; by default what the source states, else states that grow have no rows, and others
        are 0.
    fixed
        {input name: array}: inputs that are the same at every step.

    Raises
    ------
    DataError
        An unknown name; an output that does not fit its input; a state that grows without a capacity; a capacity of nothing.
    """

    def __init__(
        self,
        description: Description,
        runner: Runner,
        carry: Mapping[str, str],
        capacity: Mapping[str, int] | None = None,
        start: Mapping[str, npt.NDArray[Any]] | None = None,
        fixed: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> None:
        self._description, self._runner = description, runner
        self._inputs = {spec.source_name: spec for spec in description.inputs}
        self._outputs = {spec.source_name: spec for spec in description.outputs}
        self._carry = dict(carry)
        self._capacity = dict(capacity or {})
        for output, name in self._carry.items():
            check_pair(output, self._outputs, name, self._inputs)
        self._growing = self._find_growing()
        self._check_capacity()
        self._fixed = {name: np.array(array) for name, array in (fixed or {}).items()}
        self._given = [
            spec for name, spec in self._inputs.items() if name not in self._carry.values() and name not in self._fixed
        ]
        self._check = InputCheck(self._given, description.limits, description.extents)
        self._places = dimension_places([spec.shape for spec in self._given])
        self._of_states = names_in(dim for name in self._carry.values() for dim in self._inputs[name].shape)
        """The dimensions that states have."""
        handed = [(output, name) for output, name in self._carry.items() if output not in self._growing]
        self._handed = [name for _, name in handed]
        """The inputs of the states that are handed over."""
        self._places_of_handed = dimension_places([self._inputs[name].shape for name in self._handed])
        self._longer = {
            size.name
            for output, name in handed
            for size, after in zip(self._inputs[name].shape, self._outputs[output].shape, strict=True)
            if isinstance(size, Size) and size.name is not None and size.name not in self._places and size != after
        }
        """The dimensions along which they are another size behind each step: at first they have no rows."""
        self._growth = {
            (place.dimension, self._outputs[output].shape[place.axis]): output for output, place in self._growing.items()
        }
        """An output for each number of rows that growing states will have, and along which dimension."""
        self._sizes: dict[str, int] = {}
        """Of the dimensions that the states fix, but for those along which they grow."""
        self._lengths = dict.fromkeys((place.dimension for place in self._growing.values()), 0)
        self._memory: dict[str, Any] = {}
        """By the name of the input: a growing state's whole memory, or another's tensor."""
        self._before: tuple[CallState, list[int]] | None = None
        """The workspace of the step before, and the sizes of what it keeps."""
        self._flags = [
            fixed_dimension(number) for number in description.fixed if description.inputs[number].source_name in self._fixed
        ]
        self._start = copy.deepcopy(dict(start or {}))  # the arrays are the caller's
        self._is_open = True
        self._take_all()
        self._check_start()

    # ------------------------------------------------------------------------------------------------------- reading

    @property
    def length(self) -> int:
        """Rows that the growing states hold; where they grow along several dimensions, the most."""
        return max(self._lengths.values(), default=0)

    def state(self) -> Arrays:
        """Return copies of the states, by the names of the inputs, as the next step will find them."""
        self._check_open("state()")
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
        self._check_open("step")
        given, known = self._named(data, named), self._known()
        arrays = self._check(given, "step", known)
        own = read_sizes(self._places, [array.shape for array in arrays])
        sizes = {**self._sizes, **own, **self._lengths}
        rows = self._rows_after(sizes)
        room = self._make_room(sizes)
        inputs = {spec.source_name: array for spec, array in zip(self._given, arrays, strict=True)}
        try:
            made = self._run(inputs, sizes)
        except BaseException:  # the next step may have other sizes, for which this memory is none
            self._memory = {name: tensor for name, tensor in self._memory.items() if name not in room}
            raise
        self._lengths |= rows
        for output, name in self._carry.items():
            if output not in self._growing:
                self._memory[name] = made.pop(output)
            else:
                made.pop(output, None)
        found = sizes | read_sizes(self._places_of_handed, [tuple(self._memory[name].shape) for name in self._handed])
        self._sizes |= {key: size for key, size in found.items() if key in self._of_states and key not in self._lengths}
        return {name: np.from_dlpack(tensor).copy() for name, tensor in made.items()}

    def fork(self) -> Session:
        """Return another session with copies of the states, to go on from here in two ways. It starts anew as this one does."""
        self._check_open("fork()")
        other = Session(self._description, self._runner, self._carry, self._capacity, fixed=self._fixed)
        other._start, other._sizes, other._lengths = self._start, dict(self._sizes), dict(self._lengths)
        for name, tensor in self._memory.items():
            if name in self._fixed:
                continue
            other._memory[name] = other._empty(tuple(tensor.shape), str(tensor.dtype), f"fork: the state {name}")
            if self._place(name) is None:
                np.copyto(np.from_dlpack(other._memory[name]), np.from_dlpack(tensor))
            else:
                np.copyto(other._rows_of(name), self._rows_of(name))
        return other

    def reset(self, to: int = 0) -> None:
        """Drop rows behind the first `to` of the growing states; 0 starts anew, with what `start` gave.

        Raises
        ------
        DataError
            More rows than there are; some rows, where a state doesn't grow: of such a state only the last one is there.
        """
        self._check_open("reset()")
        check_type(to, int | np.integer, DataError, "a whole number of rows as the ones that reset(to=...) keeps")
        if not 0 <= to <= min(self._lengths.values(), default=0):
            raise DataError(f"reset(to={to}): the session holds {min(self._lengths.values(), default=0)} rows")
        others = [name for name in self._carry.values() if self._place(name) is None]
        if to and others:
            raise DataError(f"reset(to={to}): the state {others[0]} keeps no earlier steps; reset() starts anew")
        self._lengths = dict.fromkeys(self._lengths, int(to))
        if not to:
            self._memory, self._sizes, self._before = {}, {}, None
            self._take_all()

    def __enter__(self) -> Session:
        """Return the session."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Let its memory go: it runs no more steps."""
        self._memory, self._start, self._before, self._is_open = {}, {}, None, False

    def __reduce__(self) -> NoReturn:
        """Refuse: a copy would write to the same memory, and code has none in another process."""
        raise DataError("a session is not copied or pickled: fork() it, or begin one with start=step.state()")

    def _check_open(self, where: str) -> None:
        if not self._is_open:
            raise DataError(f"{where}: the session was closed at the end of its with block: open another one")

    # ------------------------------------------------------------------------------------------------------- parts

    def _find_growing(self) -> dict[str, StatePlace]:
        """Return the carried outputs that kernels write behind the rows of their inputs, by name."""
        specs = self._description
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
            check_type(rows, int | np.integer, DataError, f"a whole number of rows as the capacity of {name!r}")
            if rows < 1:
                raise DataError(f"capacity {name}={rows}: must be at least 1")
        for place in self._description.states:  # those along one dimension lie in place together
            output, name = self._description.outputs[place.output].source_name, self._description.inputs[place.input].source_name
            if place.dimension in grown and output not in self._growing:
                raise DataError(
                    f"{output} grows along {place.dimension!r} as states that are carried do: carry it to {name!r}, too"
                )
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

    def _rows_after(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return how many rows the growing states will hold; DataError where there is no room for them."""
        found: dict[str, int] = {}
        for (dimension, size), output in self._growth.items():
            [found[dimension]], room = evaluated([size], sizes), self._capacity[dimension]
            if found[dimension] > room:
                before = self._lengths[dimension]
                raise DataError(
                    f"step: {output} would have {found[dimension]} rows along {dimension} ({before} are there), "
                    f"the capacity is {room}; reset the session, or open one with more"
                )
        return found

    def _make_room(self, sizes: Mapping[str, int]) -> Collection[str]:
        """Give memory to the states that have none yet; return their inputs."""
        made: dict[str, Any] = {}
        for output, name in self._carry.items():
            if name in self._memory:
                continue
            spec, place = self._inputs[name], self._growing.get(output)
            unknown = names_in(spec.shape) - sizes.keys()
            if unknown:
                raise DataError(f"step: nothing says the size of {min(unknown)} of the state {name}: give it in start")
            shape = evaluated(spec.shape, sizes)
            what = f"step: the state {name}"
            made[name] = self._empty(shape, spec.dtype, what, made) if place is None else self._room(spec, shape, place, made)
            if place is None:
                np.from_dlpack(made[name])[...] = 0
        self._memory |= made
        return made.keys()

    def _room(self, spec: InputSpec, shape: tuple[int, ...], place: StatePlace, beside: Mapping[str, Any] | None = None) -> Any:
        """Return memory for as many rows of a state as the capacity says; `beside` are tensors that are made with it."""
        rows = self._capacity[place.dimension]
        roomy = (*shape[: place.axis], rows, *shape[place.axis + 1 :])
        if (count := math.prod(roomy)) > LARGEST:
            raise DataError(
                f"capacity {place.dimension}={rows}: {spec.source_name} would have {count} elements, of at most {LARGEST}"
            )
        return self._empty(roomy, spec.dtype, f"capacity {place.dimension}={rows}: the state {spec.source_name}", beside)

    def _empty(self, shape: tuple[int, ...], dtype: str, what: str, beside: Mapping[str, Any] | None = None) -> Any:
        """Return memory for a tensor; DataError where the machine hasn't as much beside what the session has.

        A system grants more than there is, and ends the process once that is written.
        """
        others = [*self._memory.values(), *(beside or {}).values()]
        size = math.prod(shape) * np.dtype(dtype).itemsize
        total = size + sum(math.prod(tensor.shape) * np.dtype(str(tensor.dtype)).itemsize for tensor in others)
        if total <= machine_bytes():
            try:
                return empty_tensor(shape, dtype)
            except Exception as error:  # std::bad_alloc, as TVM passes it on
                raise DataError(_no_room(what, size, total)) from error
        raise DataError(_no_room(what, size, total))

    def _take_all(self) -> None:
        """Begin with the states that are given, and with what stays the same."""
        known = {name: self._inputs[name].start for name in self._carry.values() if name not in self._start}
        known = {name: array for name, array in known.items() if array is not None}
        for name, array in {**known, **self._start}.items():
            if name not in self._carry.values():
                raise DataError(f"start: {name!r} is no carried input; these are {', '.join(sorted(self._carry.values()))}")
            self._take(name, array, "start")
        for name, array in self._fixed.items():
            if name not in self._inputs or name in self._carry.values():
                others = ", ".join(sorted(self._inputs.keys() - self._carry.values()))
                raise DataError(f"fixed: {name!r} is no input beside the carried ones; these are {others}")
            self._take(name, array, "fixed")
        self._sizes = {name: 0 for name in self._longer if name not in self._lengths} | self._sizes

    def _take(self, name: str, array: npt.NDArray[Any], where: str) -> None:
        """Begin with a state, or take what stays the same."""
        spec = self._inputs[name]
        known = {key: size for key, size in self._known().items() if key in self._sizes}
        [checked] = check_inputs([spec], array, where=where, known=known)
        sizes = read_sizes(dimension_places([spec.shape]), [checked.shape])
        place = self._place(name)
        if place is None:
            self._memory[name] = tensor_from(checked)
        else:
            rows, room = sizes.pop(place.dimension), self._capacity[place.dimension]
            others = [other for other in self._along(place.dimension) if other in self._memory]
            if rows > room or (others and self._lengths[place.dimension] != rows):
                raise DataError(f"start: {name} has {rows} rows; the capacity is {room}, and all states begin with as many")
            self._lengths[place.dimension] = rows
            self._memory[name] = self._room(spec, checked.shape, place)
            np.copyto(self._rows_of(name), checked)
        self._sizes |= sizes

    def _along(self, dimension: str) -> list[str]:
        """Return the inputs of the states that grow along a dimension."""
        return [self._carry[output] for output, place in self._growing.items() if place.dimension == dimension]

    def _check_start(self) -> None:
        """Raise DataError where some of the states that grow together begin with rows, and others would have none."""
        for dimension, rows in self._lengths.items():
            missing = [name for name in self._along(dimension) if name not in self._memory]
            if rows and missing:
                raise DataError(f"start: {missing[0]} is missing; others begin with {rows} rows along {dimension}")

    def _run(self, inputs: Mapping[str, npt.NDArray[Any]], sizes: Mapping[str, int]) -> dict[str, Any]:
        """Run the executable on the states' memory; return tensors for the outputs that are not written there."""
        runner = self._runner
        if not self._growing or not isinstance(runner, NativeRunner):
            states = {name: np.ascontiguousarray(self._rows_of(name)) for name in (*self._carry.values(), *self._fixed)}
            arrays = {**inputs, **states}
            results = runner([tensor_from(arrays[name]) for name in self._inputs])
            return dict(zip(self._outputs, results, strict=True))
        given = {name: self._memory[name] if name in self._memory else tensor_from(inputs[name]) for name in self._inputs}
        own = {output: self._memory[self._carry[output]] for output in self._growing}
        others = [(name, spec) for name, spec in self._outputs.items() if name not in own]
        fresh = {name: empty_tensor(evaluated(spec.shape, sizes), spec.dtype) for name, spec in others}
        room = {place.capacity: self._capacity[place.dimension] for place in self._growing.values()}
        places = dict.fromkeys((place.in_place for place in self._growing.values()), 1)
        everything = {**own, **fresh}
        arguments = list(given.values()), [everything[name] for name in self._outputs]
        sizes = {**dict.fromkeys(map(fixed_dimension, self._description.fixed), 0), **sizes, **room, **places}
        if not self._flags:
            runner.run_on(*arguments, sizes)
            return fresh
        dims = names_in(dim for number in self._description.fixed for dim in self._description.inputs[number].shape)
        kept = [sizes[name] for name in sorted(dims)]
        state = self._before[0] if self._before is not None and self._before[1] == kept else None
        self._before = runner.run_again(*arguments, sizes, self._flags, state), kept
        return fresh


def _no_room(what: str, size: int, total: int) -> str:
    return (
        f"{what} takes {size} bytes ({total / 2**30:.1f} GiB with those before it), more than this machine gives; "
        "open the session for fewer rows"
    )


def check_pair(output: str, outputs: Mapping[str, OutputSpec], name: str, inputs: Mapping[str, InputSpec]) -> None:
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
