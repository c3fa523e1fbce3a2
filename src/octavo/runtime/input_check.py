"""InputCheck: whether data fits a model's inputs, made once for many calls. `inputs.check_inputs` says what does not fit.

It goes through shapes and sizes in the shortest way; data that does not fit is left to `check_inputs`, which looks at each part
anew and names the one that is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from .inputs import InputSpec, check_inputs, check_values, named_arrays
from .shapes import Line, line_of
from .size import Size, names_in
from .size_functions import size_function

_NOTHING: Mapping[str, tuple[int, str]] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class _Open:
    """An open dimension of an input: its axis, what the size along it is of it, and its bounds."""

    axis: int
    line: Line
    low: int
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shape:
    """The parts of a shape: sizes that are known, dimensions, and (axis, number of the size among those that are computed)."""

    rank: int
    fixed: tuple[tuple[int, int], ...]
    open: tuple[_Open, ...]
    derived: tuple[tuple[int, int], ...]


class InputCheck:
    """What data must be to fit inputs.

    Parameters
    ----------
    specs
        The inputs, in order.
    limits, extents
        As for `check_inputs`.
    """

    def __init__(self, specs: Sequence[InputSpec], limits: Sequence[tuple[Size, int]] = (), extents: Sequence[Size] = ()) -> None:
        self._specs, self._limits, self._extents = tuple(specs), tuple(limits), tuple(extents)
        sizes: list[Size] = []
        self._shapes = [_split_shape(spec, sizes) for spec in specs]
        self._derived, self._most = len(sizes), [most for _, most in limits]
        limited = [size for size, _ in limits]
        self._names = sorted(names_in([*sizes, *extents, *limited]))
        self._numbers = size_function([*sizes, *extents], self._names) if sizes or extents else None
        self._limited = size_function(limited, self._names)
        self._small = next(
            (1 << bits for bits in range(31, -1, -1) if all(size.most(1 << bits) <= most for size, most in limits)), 0
        )

    def __call__(
        self, data: Any, where: str = "input", known: Mapping[str, tuple[int, str]] = _NOTHING
    ) -> list[npt.NDArray[Any]]:
        """Return one array for each input, in order; takes `known` and raises as `check_inputs`."""
        arrays = named_arrays(self._specs, data, where)
        if not self._fits(arrays, known):
            return check_inputs(self._specs, data, where=where, limits=self._limits, extents=self._extents, known=known)
        for spec, array in zip(self._specs, arrays, strict=True):
            check_values(spec, array, where)
        return arrays

    def _fits(self, arrays: Sequence[npt.NDArray[Any]], known: Mapping[str, tuple[int, str]]) -> bool:
        """Return whether shapes are seen to fit."""
        sizes = {name: size for name, (size, _) in known.items()}
        computed: dict[int, int] = {}
        for shape, array in zip(self._shapes, arrays, strict=True):
            given = array.shape
            if len(given) != shape.rank:
                return False
            for axis, size in shape.fixed:
                if given[axis] != size:
                    return False
            for dim in shape.open:
                size = dim.line.solve(given[dim.axis])
                if size is None or sizes.setdefault(dim.line.name, size) != size or not dim.low <= size <= dim.high:
                    return False
            for axis, number in shape.derived:
                computed[number] = given[axis]
        if not self._names:
            return True
        try:
            values = [sizes[name] for name in self._names]
        except KeyError:
            return False
        if self._numbers is not None:
            numbers = self._numbers(*values)
            if any(numbers[number] != size for number, size in computed.items()) or min(numbers[self._derived :], default=1) < 1:
                return False
        if max(values) <= self._small:  # so small that no limit is reached
            return True
        return all(number <= most for number, most in zip(self._limited(*values), self._most, strict=True))


def _split_shape(spec: InputSpec, sizes: list[Size]) -> _Shape:
    """Return the parts of a shape; sizes that are computed are put behind `sizes`."""
    fixed: list[tuple[int, int]] = []
    dims: list[_Open] = []
    derived: list[tuple[int, int]] = []
    for axis, dim in enumerate(spec.shape):
        size: int | Size = dim
        line = line_of(size)
        if not isinstance(size, Size):
            fixed.append((axis, size))
        elif line is None:
            derived.append((axis, len(sizes)))
            sizes.append(size)
        else:
            low, high = spec.bounds.get(line.name, (0, None))
            dims.append(_Open(axis=axis, line=line, low=low, high=np.inf if high is None else high))
    return _Shape(rank=len(spec.shape), fixed=tuple(fixed), open=tuple(dims), derived=tuple(derived))
