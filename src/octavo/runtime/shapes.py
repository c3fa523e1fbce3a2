"""Shapes of numbers and sizes: what can be asked of dimensions without knowing which of them are open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

from .size import OpenSizeError, Size, is_open, is_surely, joined


def evaluated(shape: Iterable[int | Size], values: Mapping[str, int]) -> tuple[int, ...]:
    """Return a shape as numbers."""
    return tuple(dim.evaluate(values) if isinstance(dim, Size) else dim for dim in shape)


def without_sizes(value: Any) -> Any:
    """Return plain values, as JSON has them, with sizes as text."""
    if isinstance(value, dict):
        return {key: without_sizes(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_sizes(each) for each in value]
    return str(value) if isinstance(value, Size) else value


def fits(sizes: Sequence[int], shape: Sequence[int | Size]) -> bool:
    """Return whether sizes are a shape's where this one is not open."""
    return len(sizes) == len(shape) and all(is_open(dim) or dim == size for size, dim in zip(sizes, shape, strict=True))


def largest(sizes: Iterable[int | Size]) -> int | Size:
    """Return the largest of some sizes, which may have to be found when the model runs; 0 of none."""
    found: list[int | Size] = []
    for size in dict.fromkeys(sizes):
        if not any(is_surely(other, size) for other in found):
            found = [other for other in found if not is_surely(size, other)] + [size]
    return reduce(lambda one, other: joined("max", one, other), found) if found else 0


def smallest(sizes: Iterable[int | Size]) -> int | Size:
    """Return the smallest of some sizes, which may have to be found when the model runs; 0 of none."""
    return -largest(-size for size in sizes)


def dimension_places(shapes: Sequence[Sequence[int | Size]]) -> dict[str, tuple[int, int]]:
    """Return where the size of each open dimension of some inputs is read, as (input, axis), in the order of the names."""
    found: dict[str, tuple[int, int]] = {}
    for number, shape in enumerate(shapes):
        for axis, dim in enumerate(shape):
            if isinstance(dim, Size) and dim.name is not None:
                found.setdefault(dim.name, (number, axis))
    return dict(sorted(found.items()))


TYPICAL = 64
"""What an open dimension counts as where something is chosen by sizes: any choice is right for all, and best for such."""


def typical(size: int | Size) -> int:
    """Return a size as a number to choose by."""
    return size.evaluate(dict.fromkeys(size.names, TYPICAL)) if isinstance(size, Size) else size


def surpasses(size: int | Size, most: int) -> bool:
    """Return whether a size is sure to be more than this number."""
    return is_surely(size, most + 1)


def known(size: int | Size) -> int:
    """Return a size that is known; OpenSizeError for one that is open."""
    return size if isinstance(size, int) else int(size)


def bounded(size: int | Size, most: int) -> int:
    """Return a size, for an open one the most that it is let to be (`limits`)."""
    return most if isinstance(size, Size) else size


def limits(*sizes: tuple[int | Size, int]) -> tuple[tuple[Size, int], ...]:
    """Return the limits of sizes, given with the most that they may be, that are open and may be more."""
    return tuple((size, most) for size, most in sizes if isinstance(size, Size) and not is_surely(most, size))


def surely(question: Callable[[], bool]) -> bool:
    """Return whether something is true for all values; False where that is open."""
    try:
        return question()
    except OpenSizeError:
        return False
