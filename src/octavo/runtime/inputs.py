"""What a model takes, and whether data fits it: one check for calibration batches and for running.

It checks and cuts, it never converts: a wrong dtype or shape is the caller's to mend, and silently mending it would hide a bug.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError, printable, shape_advice
from .shapes import EMPTY, LEFT_OUT, Line, division_of, evaluated, line_of, without_floor
from .size import Size, names_in

Bounds = tuple[int, int | None]
"""Least and greatest size of a dimension; None: no bound."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InputSpec:
    """One input of a model: its TensorId, its name in the source, its shape and its dtype.

    An open dimension of the shape is a Size; `bounds` say of some by name what sizes they take, None where there is no largest.
    `indices` are the least and the greatest integer of one that picks rows of a table, as token ids do; None for any other.
    `start` is what one that carries state begins as, where the source states it; None: zeros.
    """

    id: str
    source_name: str
    shape: tuple[int, ...]
    dtype: str
    bounds: Mapping[str, Bounds] = field(default_factory=dict[str, Bounds])
    indices: tuple[int, int] | None = None
    start: npt.NDArray[Any] | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        """Return e.g. "input: float32 [1,3,224,224]"."""
        return printable(f"{self.source_name}: {self.dtype} {_dims(self.shape)}")


def check_inputs(
    specs: Sequence[InputSpec],
    data: Any,
    *,
    where: str = "input",
    limits: Sequence[tuple[Size, int]] = (),
    extents: Sequence[Size] = (),
    known: Mapping[str, tuple[int, str]] = MappingProxyType({}),
) -> list[npt.NDArray[Any]]:
    """Return one array for each input of the model, in order, each of exactly its shape and dtype and finite.

    Parameters
    ----------
    data
        An array (of a model with one input), or {source name or TensorId: array}.
    where
        Opens the error message, e.g. "batch 3".
    limits
        Sizes of open dimensions that are not to be more than a number.
    extents
        Sizes of open dimensions that must be at least 1.
    known
        Open dimensions by name whose sizes something else says: the size, and what says so.

    Raises
    ------
    DataError
        Missing or unknown input, wrong dtype or shape, a size beyond its bounds or limit, NaN or infinity.
    """
    arrays = named_arrays(specs, data, where)
    _known_sizes(specs, arrays, where, limits, extents, known)
    for spec, array in zip(_sized(specs, arrays), arrays, strict=True):
        if array.shape != spec.shape:
            raise DataError(f"{where}: input {spec.source_name} must have shape {_dims(spec.shape)}, got {_dims(array.shape)}")
        check_values(spec, array, where)
    return arrays


def at_sizes(
    specs: Sequence[InputSpec], data: Any, *, where: str = "input", limits: Sequence[tuple[Size, int]] = ()
) -> list[InputSpec]:
    """Return specs whose open dimensions have the sizes that they have in the data; DataError as `check_inputs` for sizes."""
    arrays = named_arrays(specs, data, where)
    _known_sizes(specs, arrays, where, limits)
    return _sized(specs, arrays)


def first_state(
    states: Sequence[InputSpec], specs: Sequence[InputSpec], arrays: Sequence[npt.NDArray[Any]]
) -> dict[str, npt.NDArray[Any]]:
    """Return what inputs that carry state start as, by their names.

    It is what the source states, else zeros, as few as they take beside the other inputs.
    """
    sizes = {name: low for spec in states for name, (low, _) in spec.bounds.items()} | _known_sizes(specs, arrays, "input")
    return {
        spec.source_name: np.zeros(evaluated(spec.shape, sizes), spec.dtype) if spec.start is None else spec.start
        for spec in states
    }


def _sized(specs: Sequence[InputSpec], arrays: Sequence[npt.NDArray[Any]]) -> list[InputSpec]:
    """Return specs with the sizes of arrays, which fit, in place of open dimensions."""
    return [
        replace(spec, shape=tuple(n if isinstance(dim, Size) else dim for dim, n in zip(spec.shape, array.shape, strict=True)))
        if names_in(spec.shape)
        else spec
        for spec, array in zip(specs, arrays, strict=True)
    ]


def _known_sizes(
    specs: Sequence[InputSpec],
    arrays: Sequence[npt.NDArray[Any]],
    where: str,
    limits: Sequence[tuple[Size, int]] = (),
    extents: Sequence[Size] = (),
    given: Mapping[str, tuple[int, str]] = MappingProxyType({}),
) -> dict[str, int]:
    """Return the sizes of open dimensions by their names; DataError where they contradict each other, bounds or limits."""
    known = dict(given)
    for spec, array in sorted(zip(specs, arrays, strict=True), key=lambda pair: _dependence(pair[0])):
        _check_sizes(spec, array.shape, known, where)
    sizes = {name: size for name, (size, _) in known.items()}
    for size in extents:
        if size.evaluate(sizes) < 1:
            said = "; ".join(known[name][1] for name in sorted(size.names))
            raise DataError(f"{where}: {_bound_said(size, sizes, said)}")
    for size, most in limits:
        found = size.evaluate(sizes)
        if found > most:
            said = "; ".join(known[name][1] for name in sorted(size.names))
            raise DataError(
                f"{where}: {size} is {found} ({said}); the executable's kernels count and sum up to {most}: feed less"
            )
    return sizes


def _bound_said(size: Size, sizes: Mapping[str, int], said: str) -> str:
    """Say what dimensions must be for a size to be at least 1; `said` is who gave them.

    A sum of them must be a multiple of what, or at least, or at most, what.
    """
    division = division_of(size)
    if division is not None:
        dividend, divisor = division
        found = dividend.evaluate(sizes)
        of = f"{divisor}, which is {divisor.evaluate(sizes)}" if isinstance(divisor, Size) else divisor
        return f"{dividend} is {found} ({said}) and must be a multiple of {of}: {LEFT_OUT}"
    size = without_floor(size)
    terms, constant = size.terms, size.terms.get((), 0)
    added = {factors: count for factors, count in terms.items() if factors and count > 0}
    taken = {factors: -count for factors, count in terms.items() if factors and count < 0}
    if not added:
        most = Size(taken)
        return f"{most} is {most.evaluate(sizes)} ({said}) and must be at most {constant - 1}: {EMPTY}"
    found, least = Size(added), (Size(taken) if taken else 0) + (1 - constant)
    which = f"{least}, which is {least.evaluate(sizes)}" if isinstance(least, Size) else least
    return f"{found} is {found.evaluate(sizes)} ({said}) and must be at least {which}: {EMPTY}"


def _dependence(spec: InputSpec) -> int:
    """Return how much must be known before an input's sizes are checked: 0 for nothing, 2 for what others alone say."""
    sizes = [size for size in spec.shape if isinstance(size, Size)]
    return max((0 if size.name is not None else 1 if line_of(size) is not None else 2 for size in sizes), default=0)


def _check_sizes(spec: InputSpec, shape: tuple[int, ...], known: dict[str, tuple[int, str]], where: str) -> None:
    """Raise DataError for sizes that don't fit; `known` holds those of open dimensions that were met, with who said so."""
    if not names_in(spec.shape):
        return
    # The first dimension may hold the samples of several runs.
    if len(shape) != len(spec.shape) or any(
        axis and not isinstance(dim, Size) and dim != size for axis, (dim, size) in enumerate(zip(spec.shape, shape, strict=True))
    ):
        raise DataError(f"{where}: input {spec.source_name} must have shape {_dims(spec.shape)}, got {_dims(shape)}")
    for axis, (dim, size) in enumerate(zip(spec.shape, shape, strict=True)):
        if not isinstance(dim, Size):
            continue
        here = f"input {spec.source_name} has {size} along axis {axis}"
        line = line_of(dim)
        if line is not None and line.name not in known:
            low, high = spec.bounds.get(line.name, (0, None))
            value = line.solve(size)
            if value is None or value < low or (high is not None and value > high):
                raise DataError(f"{where}: {here}, dimension {dim} takes {_allowed(line, size, low, high)}")
            known[line.name] = value, here
            continue
        if not dim.names <= known.keys():
            continue  # an input that says so is not there: it is the state of a decoder, say
        wanted = dim.evaluate({name: value for name, (value, _) in known.items()})
        if wanted != size:
            said = "; ".join(known[name][1] for name in sorted(dim.names))
            raise DataError(f"{where}: {here}, where dimension {dim} is {wanted}: {said}")


def _allowed(line: Line, size: int, low: int, high: int | None) -> str:
    """Say what a size may be that is not allowed: its bounds, or the next ones that the dimension makes."""
    least, most = line.at(low), None if high is None else line.at(high)
    of = f"multiples of {line.factor} " if line.factor > 1 and line.offset % line.factor == 0 else ""
    if line.solve(size) is None:
        below = (size - line.offset) // line.factor
        near = [str(line.at(value)) for value in (below, below + 1) if value >= low and (high is None or value <= high)]
        if near:
            return f"{of}only: {' or '.join(near)}" if of else " or ".join(near)
    return f"{of}{'from ' if of else ''}{least} to {'any size' if most is None else most}"


def check_batch_size(specs: Sequence[InputSpec], data: Any, allowed: tuple[int, int | None]) -> None:
    """Raise DataError for a number of samples that the source rules out; `allowed`: fewest and most (None: no bound)."""
    values = dict(data) if isinstance(data, Mapping) else {spec.source_name: data for spec in specs}
    fewest, most = allowed
    for spec in specs:
        shape = np.shape(values.get(spec.source_name, values.get(spec.id, ())))
        fits = len(shape) == len(spec.shape) > 0 and shape[1:] == spec.shape[1:] and shape[0] > 0
        if fits and (shape[0] < fewest or (most is not None and shape[0] > most)):
            bound = f"at least {fewest}" if most is None else f"{fewest} to {most}"
            raise DataError(
                f"input {spec.source_name} holds {shape[0]} samples, the program was exported for {bound}; "
                "give as many in a call or export with another torch.export.Dim"
            )


def check_samples(specs: Sequence[InputSpec], data: Any, obstacle: str) -> None:
    """Raise DataError for another number of samples than the model's own, where the source allows it and `obstacle` says no."""
    values = dict(data) if isinstance(data, Mapping) else {spec.source_name: data for spec in specs}
    for spec in specs if obstacle else ():
        shape = np.shape(values.get(spec.source_name, ()))
        if len(shape) == len(spec.shape) and shape[1:] == spec.shape[1:] and shape != spec.shape:
            raise DataError(
                f"input {spec.source_name} holds {shape[0]} samples and the model is compiled for {spec.shape[0]}: {obstacle}; "
                f"load it for that: {shape_advice(spec.source_name, tuple(int(dim) for dim in shape))}"
            )


def split_batch(
    specs: Sequence[InputSpec],
    data: Any,
    *,
    where: str = "batch",
    finite: bool = True,
    limits: Sequence[tuple[Size, int]] = (),
) -> Iterator[list[npt.NDArray[Any]]]:
    """Cut a batch into runs of the model's own shape: [100,3,224,224] is 100 runs of a model that takes [1,3,224,224].

    `finite` refuses NaN and infinity, `limits` sizes, as `check_inputs` does. Where the first dimension is open a batch is one
    run.

    Raises
    ------
    DataError
        As `check_inputs`; the first dimension may be a multiple of the model's, the same multiple for every input. A scalar may
        be one number for each sample, or one for all.
    """
    arrays = named_arrays(specs, data, where)
    _known_sizes(specs, arrays, where, limits)
    specs = _sized(specs, arrays)
    runs: int | None = None
    for spec, array in zip(specs, arrays, strict=True):
        count = _count_runs(spec, array, where)
        if _is_for_all(spec, array) and len(specs) > 1:
            check_values(spec, array, where, finite=finite)
            continue
        if runs is not None and count != runs:
            raise DataError(f"{where}: the inputs hold different numbers of samples: {runs} and {count} ({spec.source_name})")
        runs = count
        check_values(spec, array, where, finite=finite)
    # Of scalars alone, each the same for all, there is one run.
    for index in range(1 if runs is None and specs else runs or 0):
        yield [_run_of(spec, array, index) for spec, array in zip(specs, arrays, strict=True)]


def _is_for_all(spec: InputSpec, array: npt.NDArray[Any]) -> bool:
    """Return whether an array is one scalar, a rate say, which is that of all samples."""
    return not spec.shape and not array.shape


def _run_of(spec: InputSpec, array: npt.NDArray[Any], index: int) -> npt.NDArray[Any]:
    if array.shape == spec.shape:
        return array
    return array[index * spec.shape[0] : (index + 1) * spec.shape[0]] if spec.shape else array[index, ...]


def split_batches(specs: Sequence[InputSpec], batches: Any) -> list[list[npt.NDArray[Any]]]:
    """Return the runs of several batches, or of a single one, each cut as `split_batch` does; DataError names the batch."""
    listed: Any = [batches] if isinstance(batches, np.ndarray | Mapping) else batches
    return [arrays for index, batch in enumerate(listed) for arrays in split_batch(specs, batch, where=f"batch {index}")]


def _count_runs(spec: InputSpec, array: npt.NDArray[Any], where: str) -> int:
    if array.shape == spec.shape:
        return 1
    if array.ndim == len(spec.shape) and spec.shape and array.shape[1:] == spec.shape[1:]:
        if array.shape[0] == 0:
            raise DataError(f"{where}: input {spec.source_name} is empty: shape {_dims(array.shape)}; give at least one sample")
        if array.shape[0] % spec.shape[0] == 0:
            return array.shape[0] // spec.shape[0]
    if not spec.shape and array.ndim == 1 and array.size:
        return array.size
    first = "any number" if spec.shape[:1] == (1,) else f"a multiple of {spec.shape[0]}" if spec.shape else ""
    expected = f"{_dims(spec.shape)} (or {first} first)" if spec.shape else "[] (or one number for each sample)"
    raise DataError(f"{where}: input {spec.source_name} must have shape {expected}, got {_dims(array.shape)}")


def named_arrays(specs: Sequence[InputSpec], data: Any, where: str) -> list[npt.NDArray[Any]]:
    """Return one array for each input, in order; DataError for one that is missing, unknown or no array."""
    if not isinstance(data, Mapping):
        if len(specs) != 1:
            raise DataError(f"{where}: the model takes {len(specs)} inputs ({_listed(specs)}); give a dict of name: array")
        return [_as_array(specs[0], data, where)]
    named: dict[str, Any] = {str(name): value for name, value in data.items()}
    arrays: list[npt.NDArray[Any]] = []
    for spec in specs:
        name = spec.source_name if spec.source_name in named else spec.id
        if name not in named:
            raise DataError(
                f"{where}: input {spec.source_name} is missing; the model takes {_listed(specs)}, got {sorted(named)}"
            )
        arrays.append(_as_array(spec, named.pop(name), where))
    if named:
        raise DataError(f"{where}: unknown input {sorted(named)}; the model takes {_listed(specs)}")
    return arrays


def _listed(specs: Sequence[InputSpec]) -> str:
    return ", ".join(str(spec) for spec in specs)


@cache
def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(name)


def _as_array(spec: InputSpec, value: Any, where: str) -> npt.NDArray[Any]:
    if not isinstance(value, np.ndarray):
        raise DataError(f"{where}: input {spec.source_name} must be a NumPy array ({spec}), got {type(value).__name__}")
    return value


def check_values(spec: InputSpec, array: npt.NDArray[Any], where: str, *, finite: bool = True) -> None:
    """Raise DataError for another dtype, indices outside their table, and, if `finite`, NaN and infinity."""
    if array.dtype != _dtype(spec.dtype):
        raise DataError(
            f"{where}: input {spec.source_name} must be {spec.dtype}, got {array.dtype}; preprocess it and save "
            f"or pass it as {spec.dtype}"
        )
    if spec.indices is not None and array.size and not spec.indices[0] <= array.min() <= array.max() <= spec.indices[1]:
        index = tuple(int(i) for i in np.argwhere((array < spec.indices[0]) | (array > spec.indices[1]))[0])
        raise DataError(
            f"{where}: input {spec.source_name} holds {array[index]} at index {list(index)}; it picks rows of a table, whose "
            f"indices are {spec.indices[0]} to {spec.indices[1]}"
        )
    if finite and array.dtype.kind == "f" and not np.isfinite(array).all():
        index = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise DataError(
            f"{where}: input {spec.source_name} holds {array[index]} at index {list(index)}; every value must be finite"
        )


def _dims(shape: tuple[int, ...]) -> str:
    return f"[{','.join(str(dim) for dim in shape)}]"
