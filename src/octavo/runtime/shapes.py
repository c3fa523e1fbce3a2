"""Shapes of numbers and sizes: what can be asked of dimensions without knowing which of them are open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

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
    return _outermost("max", sizes, is_surely)


def smallest(sizes: Iterable[int | Size]) -> int | Size:
    """Return the smallest of some sizes, which may have to be found when the model runs; 0 of none."""
    return _outermost("min", sizes, lambda one, other: is_surely(other, one))


def _outermost(op: str, sizes: Iterable[int | Size], surpasses: Callable[[int | Size, int | Size], bool]) -> int | Size:
    found: list[int | Size] = []
    for size in dict.fromkeys(sizes):
        if not any(surpasses(other, size) for other in found):
            found = [other for other in found if not surpasses(size, other)] + [size]
    return reduce(partial(joined, op), found) if found else 0


class Line(NamedTuple):
    """What a size is that one dimension alone makes: factor * dimension + offset."""

    name: str
    factor: int = 1
    offset: int = 0

    def solve(self, size: int) -> int | None:
        """Return the dimension for which it is this size; None where there is none."""
        quotient, rest = divmod(size - self.offset, self.factor)
        return None if rest else quotient

    def at(self, value: int) -> int:
        """Return the size for a value of the dimension."""
        return self.factor * value + self.offset


def line_of(size: int | Size) -> Line | None:
    """Return how one dimension alone makes a size, by a factor of at least 1 and an offset; None for any other size."""
    if not isinstance(size, Size):
        return None
    terms = dict(size.terms)
    offset = terms.pop((), 0)
    [(monomial, factor), *others] = terms.items()
    if others or len(monomial) != 1 or not isinstance(monomial[0], str) or factor < 1:
        return None
    return Line(monomial[0], factor, offset)


class Place(NamedTuple):
    """Where the size of an open dimension is read: from an axis of an input, along which the input is a line of it."""

    input: int
    axis: int
    line: Line


def dimension_places(shapes: Sequence[Sequence[int | Size]]) -> dict[str, Place]:
    """Return where the size of each open dimension of some inputs is read, in the order of the names: where it stands alone."""
    found: dict[str, Place] = {}
    for number, shape in enumerate(shapes):
        for axis, dim in enumerate(shape):
            line = line_of(dim)
            if line is not None and (line.name not in found or (found[line.name].line != line == Line(line.name))):
                found[line.name] = Place(number, axis, line)
    return dict(sorted(found.items()))


def read_sizes(places: Mapping[str, Place], shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """Return the sizes of dimensions, by their names, from the shapes of inputs that fit."""
    return {
        name: (int(shapes[place.input][place.axis]) - place.line.offset) // place.line.factor for name, place in places.items()
    }


EMPTY = "a tensor within would be empty, or read beyond its end"
"""Why a size must be at least 1."""

LEFT_OUT = "a reshape within would leave elements out"
"""Why nothing may be left of a division."""


def division_of(size: Size) -> tuple[Size, int | Size] | None:
    """Return dividend and divisor of 1 - remainder, or of 1 - factor * remainder: the first must be a multiple of the second.

    None for any other size.
    """
    for dividend, divisor in _sides(size, "floordiv"):
        remainder, rest = dividend % divisor, 1 - size
        if isinstance(remainder, Size) and (rest // remainder) * remainder == rest:
            return dividend, divisor
    return None


def without_floor(size: Size) -> Size:
    """Return max(x, n) - n as x - n, and the like: one is at least 1 where the other is."""
    for pair in _sides(size, "max"):
        rest = size - joined("max", *pair)
        for other, floor in (pair, pair[::-1]):
            shorter = other + rest
            if is_surely(0, floor + rest) and isinstance(shorter, Size):
                return shorter
    return size


def _sides(size: Size, op: str) -> list[tuple[Any, Any]]:
    """Return the two sides of each factor that is a quotient, or the larger of two sizes."""
    factors: list[Any] = [each for monomial in size.terms for each in monomial if not isinstance(each, str)]
    return [(each.left, each.right) for each in factors if each.op == op]


LARGEST = 2**31 - 1
"""Most elements of a tensor, and most of any size: kernels count in 32 bits."""

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
