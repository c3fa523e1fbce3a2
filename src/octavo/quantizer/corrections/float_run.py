"""Running a float model on samples: its results, and means of its tensors by channel. It corrects nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...compiler.float_values import FloatValues
from ...ir.graph import Model
from ...numerics.arrays import Array, Samples
from .gram import ExactRows, picked_places

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
        float64 (channels,) of variables, over the first samples and all axes but one, by name.
    seen
        How many samples these are over, by name.
    results
        The model's, sample by sample.
    rows
        What few of the variables are at some positions, by name.
    """

    means: dict[str, npt.NDArray[np.float64]]
    seen: dict[str, int]
    results: list[list[Array]]
    rows: dict[str, ExactRows]


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """What is wanted of a product with weights.

    Parameters
    ----------
    axis
        Of its channels; -1: the last.
    inputs
        How many each output is a sum of.
    """

    axis: int
    inputs: int


MEAN_SAMPLES = 16
"""Samples that means of many positions are over: those of 64 are hardly others."""
_MANY_POSITIONS = 256
"""Of one sample; with fewer all samples count, and take little time."""


def run_float(model: Model, products: Mapping[str, Product], samples: Samples, floats: FloatValues) -> FloatRun:
    """Run a float model.

    Parameters
    ----------
    products
        The variables of which means and rows are wanted, in the order of the graph.
    samples
        The model's inputs, sample by sample.
    """
    sums: dict[str, Any] = dict.fromkeys(products, 0.0)
    counts, seen = dict.fromkeys(products, 0), dict.fromkeys(products, 0)
    results: list[list[Array]] = []
    picked: _Picked | None = None
    for own, values in floats.on(model, list(products), samples):
        results.append(own)
        last = {
            name: np.moveaxis(value, product.axis, -1) for (name, product), value in zip(products.items(), values, strict=True)
        }
        for name, value in last.items():
            positions = value.size // value.shape[-1]
            if positions < _MANY_POSITIONS or len(results) <= MEAN_SAMPLES:
                sums[name], seen[name] = sums[name] + _sum(value), len(results)
                counts[name] += positions
        if model.constant_bytes <= _MAX_MODEL:
            picked = picked or _Picked(products, last, len(samples))
            picked.add(last)
    rows = {} if picked is None else picked.rows
    means = {name: sums[name] / counts[name] for name in products}
    return FloatRun(means=means, seen=seen, results=results, rows=rows)


def _sum(value: Array) -> npt.NDArray[np.float64]:
    """Return the sums over all axes but the last: of rows in float32, which takes half the time, of these in float64."""
    rows = value.sum(axis=-2, keepdims=True) if value.ndim > 2 else value
    return rows.sum(axis=tuple(range(value.ndim - 1)), dtype=np.float64)


class _Picked:
    """Keeps some positions of the first products: those of many positions and few inputs, whose weights samples say most of."""

    def __init__(self, products: Mapping[str, Product], first: Mapping[str, Array], samples: int) -> None:
        self.rows: dict[str, ExactRows] = {}
        self._places: dict[str, Array] = {}
        self._blocks: dict[str, Array] = {}
        """Of all samples together: the system gives memory in large pages, and a small one for each page of a small array."""
        self._samples = 0
        room = _MAX_BYTES
        for name, product in products.items():
            channels, dtype = first[name].shape[-1], first[name].dtype
            positions = first[name].size // channels
            places = picked_places(positions, product.inputs, samples)
            size = samples * len(places) * channels * dtype.itemsize
            if samples * len(places) >= _MIN_RATIO * product.inputs and size <= room:
                room -= size
                self._places[name], self.rows[name] = places, ExactRows(positions, [])
                self._blocks[name] = np.empty((samples, len(places), channels), dtype)

    def add(self, values: Mapping[str, Array]) -> None:
        for name, places in self._places.items():
            value, picked = values[name], self._blocks[name][self._samples]
            if value.flags.c_contiguous:
                np.take(value.reshape(-1, value.shape[-1]), places, axis=0, out=picked, mode="clip")  # "raise" copies once more
            else:
                picked[:] = value[np.unravel_index(places, value.shape[:-1])]
            self.rows[name].values.append(picked)
        self._samples += 1
