"""Shapes of results where inputs have others than the file states: worked out op by op, from the shapes of what an op reads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from ...runtime.size import Size

Dim = int | Size
_MOST = 4096
"""Of combinations that are tried: a shape has few dimensions, and each few meanings."""


def reshaped(
    before: Sequence[Dim], declared: Sequence[int], wanted: Sequence[int] | None, symbols: Mapping[str, int]
) -> list[Dim] | None:
    """Return the shape that a reshape to `declared`, for inputs of the declared sizes, has at others; None where it is not clear.

    Parameters
    ----------
    before
        The shape of what is reshaped.
    declared
        The result's at the sizes that the file states.
    wanted
        What the op says of it, with -1 for what is left; None where that is computed.
    symbols
        The declared size of each open dimension.
    """
    if wanted is not None and list(wanted).count(-1) == 1 and len(wanted) == len(declared):
        rest = math.prod(dim for dim in wanted if dim != -1)
        left = _exact(math.prod(before), rest)
        if left is not None:
            return [left if dim == -1 else dim for dim in wanted]
    open_ones: list[Dim] = [dim for dim in before if isinstance(dim, Size)]
    named: list[Dim] = [Size.named(name) for name in symbols]
    total = math.prod(before)
    fixed = [dim for dim in before if not isinstance(dim, Size)]
    choices = [[*_meanings(dim, [*open_ones, *named, *_products(open_ones)], symbols), *fixed] for dim in declared]
    if math.prod(map(len, choices)) > _MOST:
        return None
    # Of those that fit the nearest to what is declared; open dimensions keep their order, and come early among those of size 1.
    fitting = (each for each in itertools.product(*choices) if math.prod(each) == total)
    nearest = min(fitting, key=lambda each: _changes(each, declared), default=None)
    return None if nearest is None else list(nearest)


def _meanings(declared: int, candidates: Iterable[Dim], symbols: Mapping[str, int]) -> list[Dim]:
    """Return what a size may be: an open one of that value, or itself."""
    fitting = [dim for dim in candidates if isinstance(dim, Size) and dim.evaluate(symbols) == declared]
    return [*dict.fromkeys(fitting), declared]


def _changes(shape: Sequence[Dim], declared: Sequence[int]) -> int:
    """Return how many known sizes are others than declared."""
    return sum(isinstance(dim, int) and dim != wanted for dim, wanted in zip(shape, declared, strict=True))


def _products(dims: Sequence[Dim]) -> list[Dim]:
    return [math.prod(dims[first:last]) for first in range(len(dims)) for last in range(first + 2, len(dims) + 1)]


def _exact(total: Dim, part: int) -> Dim | None:
    """Return the quotient where nothing is left."""
    quotient = total // part
    return quotient if quotient * part == total else None
