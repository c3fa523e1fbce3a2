"""Shapes of results where inputs have others than the file states: worked out op by op, from the shapes of what an op reads."""

from __future__ import annotations

import itertools
import math
import operator
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
    if wanted is not None and -1 not in wanted and math.prod(wanted) == math.prod(before):
        return list(wanted)
    open_ones: list[Dim] = [dim for dim in before if isinstance(dim, Size)]
    named: list[Dim] = [Size.named(name) for name in symbols]
    choices = [_meanings(dim, [*open_ones, *named, *_products(open_ones)], symbols) for dim in declared]
    if math.prod(map(len, choices)) > _MOST:
        return None
    # The first that fits: open dimensions keep their order, and come early among those of size 1.
    total = math.prod(before)
    first = next((list(each) for each in itertools.product(*choices) if math.prod(each) == total), None)
    return first if first is not None and _keeps_places(before, first, list(symbols)) else None


def _keeps_places(before: Sequence[Dim], after: Sequence[Dim], order: list[str]) -> bool:
    """Return whether each open size of a result is that of one dimension of the operand, or of neighbours, in its place.

    A reshape that is written for a batch of 1 could else put the batch anywhere, and values of one sample into another. Where a
    dimension of the operand is a product of open ones, these lie in it in their `order`.
    """
    parts = [part for dim in before for part in (_factors(dim, order) if isinstance(dim, Size) else [dim])]
    ends = list(itertools.accumulate(parts, operator.mul, initial=1))
    places = list(itertools.accumulate(after, operator.mul, initial=1))
    return all(places[axis] in ends and places[axis + 1] in ends for axis, dim in enumerate(after) if isinstance(dim, Size))


def _factors(dim: Size, order: list[str]) -> list[Dim]:
    """Return the open dimensions that a size is the product of, or it alone."""
    names: list[Dim] = [Size.named(name) for name in sorted(dim.names, key=order.index)] if dim.names <= set(order) else []
    return names if math.prod(names) == dim else [dim]


def _meanings(declared: int, candidates: Iterable[Dim], symbols: Mapping[str, int]) -> list[Dim]:
    """Return what a size may be: an open one of that value, or itself."""
    fitting = [dim for dim in candidates if isinstance(dim, Size) and dim.evaluate(symbols) == declared]
    return [*dict.fromkeys(fitting), declared]


def _products(dims: Sequence[Dim]) -> list[Dim]:
    return [math.prod(dims[first:last]) for first in range(len(dims)) for last in range(first + 2, len(dims) + 1)]


def _exact(total: Dim, part: int) -> Dim | None:
    """Return the quotient where nothing is left."""
    quotient = total // part
    return quotient if quotient * part == total else None
