"""Gram matrices of what layers read: how their inputs vary together, over samples and positions. Exact sums of integers."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from ...ir.composites.weighted import Conv2dOp, MatmulOp
from ...numerics.statistics.covariance import CovarianceSums
from ...numerics.statistics.inherited import InheritedErrors, SampleErrors

Found = TypeVar("Found")

ROWS_PER_INPUT = 4
"""Positions that are looked at for each input of a layer: as many as tell how the inputs vary."""
_MIN_ROWS = 4096
"""Positions in all, of a layer with few inputs."""
_MAX_ROWS_PER_INPUT = 256
"""More of them tell nothing else, in spite of _MIN_ROWS: a depthwise layer has few inputs to each output, and many outputs."""
_THREADS = 2
"""That look at samples: what they find are exact sums, the same in any order."""
_ROUNDS = 2
"""Each takes samples at least so often, where there are enough: none waits long for another one."""
_MAX_BYTES = 2**23
"""Of what is looked at at once, as float32: few large arrays take less time than many small ones, and there may be a large matrix
of each sample."""


@dataclass(frozen=True, slots=True, eq=False)
class ExactRows:
    """What a layer gives in the float model at some positions of each sample.

    Parameters
    ----------
    positions
        How many each sample has, those that are not looked at, too.
    values
        float32 (positions that are looked at, outputs), sample by sample.
    """

    positions: int
    values: list[npt.NDArray[np.float32]]


def covariances(op: Conv2dOp | MatmulOp, inputs: Sequence[npt.NDArray[Any]], some: slice = slice(None)) -> CovarianceSums:
    """Return how the inputs of each group of a layer vary together.

    Parameters
    ----------
    inputs
        The layer's inputs as kernels hold them, channels last, sample by sample.
    some
        Of the inputs of each group, in the order of the weights: those that are looked at.
    """
    every = _rows_of(op, inputs[0].shape, len(inputs))

    def rows_of(values: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        return every(values)[..., some]

    first = rows_of(inputs[:1])
    sums = CovarianceSums(first[0])
    for each in _on_threads(lambda few: sums.of(rows_of(inputs[few])), len(inputs), first.size):
        sums.add(each)
    return sums


def inherited_errors(
    op: Conv2dOp | MatmulOp, inputs: Sequence[npt.NDArray[Any]], weight: npt.NDArray[np.float64], exact: ExactRows
) -> InheritedErrors | None:
    """Return what a layer's exact weights make of its inputs, against what it should give; None where positions are others.

    Parameters
    ----------
    inputs
        As `covariances` takes them.
    weight
        (groups, outputs, inputs), in units of the results for one of an integer of the inputs.
    """
    rows_of, groups = _rows_of(op, inputs[0].shape, len(inputs)), weight.shape[0]
    first = rows_of(inputs[:1])[0]
    if exact.positions != _positions(op, inputs[0].shape) or len(exact.values[0]) != first.shape[1]:
        return None
    sums = InheritedErrors(weight, first)

    def errors_of(few: slice) -> tuple[SampleErrors, ...]:
        results = np.stack(exact.values[few])
        by_group = results.reshape(*results.shape[:2], groups, -1).transpose(0, 2, 1, 3)
        return sums.of(rows_of(inputs[few]), by_group)

    for each in _on_threads(errors_of, len(inputs), first.size):
        sums.add(each)
    return sums


def _on_threads(find: Callable[[slice], Found], samples: int, size: int) -> Iterator[Found]:
    """Yield what is found of a few samples, an even number, after the other; `size` numbers of each are looked at."""
    at_once = min(_MAX_BYTES // (size * np.dtype(np.float32).itemsize), samples // (_THREADS * _ROUNDS))
    few = 2 * max(1, at_once // 2)
    starts, pool = range(0, samples, few), _pool()
    for start in starts[::_THREADS]:
        yield from pool.map(lambda each: find(slice(each, each + few)), starts[start // few : start // few + _THREADS])


@cache
def _pool() -> ThreadPoolExecutor:
    """Return the threads that look at samples: to start some for each layer takes longer than many layers take them."""
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="octavo-samples")


if hasattr(os, "register_at_fork"):  # a child process has no thread of its parent's
    os.register_at_fork(after_in_child=_pool.cache_clear)


def _rows_of(
    op: Conv2dOp | MatmulOp, shape: tuple[int, ...], samples: int
) -> Callable[[Sequence[npt.NDArray[Any]]], npt.NDArray[Any]]:
    """Return what gives, of a few of so many samples, what the weights of each group are multiplied by at some positions.

    That is (samples, groups, positions, inputs), in the order of the weights: HWIO's of a convolution.
    """
    if isinstance(op, MatmulOp):
        inputs = shape[-1]
        places = picked_places(_positions(op, shape), inputs, samples)
        return lambda values: np.stack([value.reshape(-1, inputs)[places] for value in values])[:, np.newaxis]
    pixels, is_outside = _window_pixels(op, shape, samples)
    zero_point, groups, channels = cast("Any", op.x).zero_point, op.groups, shape[3]

    def rows(values: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        # (samples, positions, taps, channels)
        picked = np.stack([np.take(value.reshape(-1, channels), pixels, axis=0) for value in values])
        if is_outside is not None:
            picked[:, is_outside] = zero_point
        by_group = picked.reshape(*picked.shape[:3], groups, channels // groups).transpose(0, 3, 1, 2, 4)
        return by_group.reshape(len(values), groups, pixels.shape[0], -1)

    return rows


def _window_pixels(
    op: Conv2dOp, shape: tuple[int, ...], samples: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]:
    """Return the pixels under each tap at some positions, (positions, taps), and which lie outside the image; None: none do."""
    kernel_h, kernel_w, inputs, _ = op.weight.values.shape
    _, height, width, _ = shape
    top, left, _, _ = op.padding
    outputs = _output_shape(op, shape)
    places = picked_places(math.prod(outputs), kernel_h * kernel_w * inputs, samples)
    image, row, column = np.unravel_index(places, outputs)
    rows = (row * op.strides[0] - top)[:, None, None] + (np.arange(kernel_h) * op.dilation[0])[:, None]
    columns = (column * op.strides[1] - left)[:, None, None] + np.arange(kernel_w) * op.dilation[1]
    is_outside = ((rows < 0) | (rows >= height) | (columns < 0) | (columns >= width)).reshape(len(image), -1)
    pixels = (image[:, None, None] * height + rows.clip(0, height - 1)) * width + columns.clip(0, width - 1)
    return pixels.reshape(len(image), -1), is_outside if is_outside.any() else None


def row_count(op: Conv2dOp | MatmulOp, shape: tuple[int, ...], samples: int) -> int:
    """Return how many positions of so many samples are looked at in all."""
    inputs = math.prod(op.weight.values.shape[:-1])
    return samples * len(picked_places(_positions(op, shape), inputs, samples))


def _positions(op: Conv2dOp | MatmulOp, shape: tuple[int, ...]) -> int:
    return math.prod(shape[:-1] if isinstance(op, MatmulOp) else _output_shape(op, shape))


def _output_shape(op: Conv2dOp, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return batch, height and width of what a convolution gives."""
    kernel_h, kernel_w = op.weight.values.shape[:2]
    batch, height, width, _ = shape
    top, left, bottom, right = op.padding
    out_h = (height + top + bottom - (kernel_h - 1) * op.dilation[0] - 1) // op.strides[0] + 1
    out_w = (width + left + right - (kernel_w - 1) * op.dilation[1] - 1) // op.strides[1] + 1
    return batch, out_h, out_w


def picked_places(positions: int, inputs: int, samples: int) -> npt.NDArray[np.int64]:
    """Return evenly spaced positions of one of so many samples of a layer with so many inputs to each output."""
    rows = max(ROWS_PER_INPUT * inputs, min(_MIN_ROWS, _MAX_ROWS_PER_INPUT * inputs))
    wanted = -(-rows // samples)
    return np.arange(min(wanted, positions), dtype=np.int64) * positions // min(wanted, positions)
