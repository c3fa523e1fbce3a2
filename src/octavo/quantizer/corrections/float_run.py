"""What products with weights give in the float model: means by channel, and single positions. It corrects nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...numerics.arrays import Samples
from ..referee.rounded_program import RoundedProgram
from ..sample_threads import in_order, parts_of
from .gram import ExactRows, exact_rows, places_of
from .layers import Product

_MIN_RATIO = 32
"""Positions for each input of a layer: with fewer, samples say little of what its weights should be."""
_MAX_BYTES = 2**27
"""Of all rows together: the first layers are those that pass errors on, and gain most."""
_MAX_MODEL = 2**26
"""Bytes of a model's constants up to which rows are kept: a larger one leaves no memory for them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatRun:
    """What a model gave.

    Parameters
    ----------
    means
        float64 (outputs,) of products, over samples and positions and without a bias, by their names.
    rows
        What few of them are at some positions, by their names.
    """

    means: Mapping[str, npt.NDArray[np.float64]]
    rows: Mapping[str, ExactRows]


@dataclass(kw_only=True, slots=True, eq=False)
class _Sums:
    """What samples say of one product: the sum of what it, and maybe others, read, and what it gives at some positions."""

    product: Product
    shape: tuple[int, ...]
    total: npt.NDArray[np.float64]
    rows_of: Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]] | None
    rows: list[npt.NDArray[np.float32]] = field(default_factory=list["npt.NDArray[np.float32]"])


def run_float(program: RoundedProgram, products: Iterable[Product], samples: Samples) -> FloatRun:
    """Run a float model.

    Parameters
    ----------
    products
        Those of which means and rows are wanted, which read what the program has a name for.
    samples
        The model's inputs, sample by sample.
    """
    readers: dict[Any, list[Product]] = {}
    for product in products:
        readers.setdefault(program.variable(product.read), []).append(product)
    readers.pop(None, None)
    # Two sums in order, so that nothing depends on which thread is faster.
    parts = parts_of(len(samples))
    found = in_order(lambda part: _sums_on(program, readers, samples[part], len(samples)), parts, numbers=program.numbers)
    sums = {name: [each[name] for each in found] for name in found[0]}
    return FloatRun(
        means={name: _mean(program, parts, len(samples)) for name, parts in sums.items()},
        rows={name: ExactRows([row for each in parts for row in each.rows]) for name, parts in sums.items() if parts[0].rows},
    )


def _mean(program: RoundedProgram, parts: Sequence[_Sums], samples: int) -> npt.NDArray[np.float64]:
    """Return the mean of a product over so many samples."""
    first, *more = parts
    total = sum((each.total for each in more), first.total)
    program.floats.pages.read(program.simple.params[first.product.weight].nbytes)
    weights = first.product.weights_of(program.simple.params[first.product.weight])  # of one product at a time: it may copy them
    return first.product.mean(total, samples * first.product.positions(first.shape), weights.astype(np.float64))


def _sums_on(program: RoundedProgram, readers: Mapping[Any, Sequence[Product]], samples: Samples, count: int) -> dict[str, _Sums]:
    """Return what some of so many samples say of products, which are given by what they read."""
    sums, totals = dict[str, _Sums](), dict[tuple[str, int, bool], npt.NDArray[np.float64]]()
    room = _MAX_BYTES if program.simple.constant_bytes <= _MAX_MODEL else 0
    for arrays in samples:
        for var, values in program.floats.made(arrays, readers):
            added = set[tuple[str, int, bool]]()
            for product in readers.get(var, ()):
                key = product.read, product.axis, product.has_open_rows or product.is_matmul
                value = product.channels_last(program.floats.value(product.read, values))
                if key not in added:
                    added.add(key)
                    found = product.sum_of(value)
                    totals[key] = np.add(totals[key], found, out=totals[key]) if key in totals else found
                if product.name not in sums:
                    sums[product.name] = _sums_of(program, product, value.shape, totals[key], count, room)
                    if sums[product.name].rows_of is not None:
                        room -= _row_bytes(product, value.shape, count)
                rows_of = sums[product.name].rows_of
                if rows_of is not None:
                    sums[product.name].rows.append(rows_of(value))
    return sums


def _sums_of(
    program: RoundedProgram, product: Product, shape: tuple[int, ...], total: npt.NDArray[np.float64], samples: int, room: int
) -> _Sums:
    """Return what has no rows yet; rows where they say something and there is room for them."""
    has_many = samples * len(places_of(product, shape, samples)) >= _MIN_RATIO * product.inputs
    takes_rows = has_many and not product.is_transposed and _row_bytes(product, shape, samples) <= room
    return _Sums(
        product=product,
        shape=shape,
        total=total,
        rows_of=exact_rows(product, product.weights_of(program.simple.params[product.weight]), shape, samples)
        if takes_rows
        else None,
    )


def _row_bytes(product: Product, shape: tuple[int, ...], samples: int) -> int:
    return samples * len(places_of(product, shape, samples)) * product.outputs * np.dtype(np.float32).itemsize
