"""Weights of layers, rounded by what the layers read: how inputs vary together, over samples and positions. Runs nothing.

Gram matrices are exact sums of integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ...ir.graph.weighted_sums import Product
from ...numerics import PerAxis, PerBlock, QuantParams
from ...numerics.statistics.covariance import CovarianceSums
from ...numerics.statistics.gptq import REFITS, Gram, gptq_round, gptq_round_and_scale, gptq_round_in_blocks
from ...numerics.statistics.inherited import InheritedErrors, SampleErrors
from ...numerics.statistics.ranges import half_scales, symmetric_params
from ..recipe import WEIGHT_BITS, Recipe
from ..sample_threads import THREADS, in_order

Found = TypeVar("Found")
Rows = Sequence[npt.NDArray[np.float32]]
"""What a layer gives in the float model at some positions, (positions, outputs), sample by sample."""

ROWS_PER_INPUT = 4
"""Positions that are looked at for each input of a layer: as many as tell how the inputs vary."""
_MIN_POSITIONS = 4096
"""Positions in all, of a layer with few inputs."""
_MAX_ROWS_PER_INPUT = 256
"""More of them tell nothing else, in spite of _MIN_POSITIONS: depthwise layers have few inputs to each output, many outputs."""
FINE_BITS = 14
"""Of the largest of values that have no static scale: less than the steps of rows that are 32 times as small."""
_SUMMED = 2**22
"""Times the numbers that a sum in float32 has times all samples, times their largest: each sum of k rounds k times by as much as
a sum's last bit, 2^-24 of it, so that all together are off by a quarter."""
_TINY = 2.0**-100
"""Values below it are zeros beside others."""
_ROUNDS = 2
"""Each takes samples at least so often, where there are enough: none waits long for another one."""
_MAX_BYTES = 2**23
"""Of what is looked at at once, as float32: few large arrays take less time than many small ones, and there may be a large matrix
of each sample."""

BLOCK_INPUTS = 1536
"""Of a layer whose weights make up for each other's errors, at most. Memory grows with the second power, work with the third."""

_PART_INPUTS = 1024
"""Of each block, all of equal size, that a layer with more has: of large layers hardly anything is left to gain by more."""

MIN_ROWS = 0.1
"""Rows for each input that say which errors make up for each other: of fewer, rounding to nearest does as well elsewhere."""

MAX_INPUTS = 4608
"""Of a layer whose scales are chosen with its integers, which needs all inputs at once."""

_SAME_SCALE = 1e-6
"""By as much of itself a scale may be off that is the one which weights ask for: factors of channels were taken out and in."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Inputs:
    """What a layer reads, rounded.

    Parameters
    ----------
    values
        Channels last, sample by sample.
    factors
        What equalization divides them by, of shape (1,) or (channels,).
    unit
        The values, divided by factors, are taken for whole multiples of it: float32, of shape ().
    largest
        What these numbers are at most.
    """

    values: Sequence[npt.NDArray[np.float32]]
    factors: npt.NDArray[np.float32]
    unit: npt.NDArray[np.float32]
    largest: int = 2**16
    _grams: dict[tuple[int, int, bool], Gram] = field(default_factory=dict[tuple[int, int, bool], Gram])

    def gram(self, product: Product, some: slice, *, has_bias: bool) -> Callable[[], Gram]:
        """Return what makes, on any thread, the matrix of some inputs of a product, whose sums are found now.

        Products of matrices that read the same have the same one, if a bias takes back what results of all are off on average, or
        of none: then that counts, too.
        """
        key = some.start, some.stop, has_bias
        if product.is_matmul and key in self._grams:
            return partial(self._grams.__getitem__, key)
        sums = covariances(product, self, some)

        def make() -> Gram:
            found = Gram.of(sums.shrunk() if has_bias else sums.moments())
            return self._grams.setdefault(key, found) if product.is_matmul else found

        return make

    @property
    def scale(self) -> npt.NDArray[np.float32]:
        """What the values are whole multiples of, of the factors' shape."""
        return self.unit * self.factors

    @property
    def shape(self) -> tuple[int, ...]:
        """Of each sample."""
        return self.values[0].shape

    def total(self) -> npt.NDArray[np.float64]:
        """Return the sum of the samples' whole numbers."""
        found, count = np.zeros(self.shape), len(self.values)
        # In float32, in a third of the time, as many as are off by less than half a number in the end.
        at_once = max(1, _SUMMED // (count * self.largest))
        for start in range(0, count, at_once):
            first, *more = self.values[start : start + at_once]
            some = first.copy() if more else first
            for each in more:
                some += each
            found += some
        return np.rint(found / self.scale)


def fine_unit(values: Sequence[npt.NDArray[np.float32]], factors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return a power of two that values, divided by factors, are all but whole multiples of: they have no scale in common.

    Sums of numbers of so few bits are exact.
    """
    largest = np.max([np.abs(each / factors).max(initial=0) for each in values])
    return np.exp2(np.floor(np.log2(np.maximum(largest, _TINY))) + 1 - FINE_BITS, dtype=np.float32)


def exact_rows(
    product: Product, weights: npt.NDArray[np.float32], shape: tuple[int, ...], samples: int
) -> Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]:
    """Return what gives, of what a layer reads of one of so many samples, what it makes of that at the positions looked at.

    Weights are in the product's `shape`; `shape` is that of what it reads, channels last.
    """
    rows_of = _rows_of(product, shape, samples)
    by_group = weights.reshape(-1, product.groups, product.outputs // product.groups).transpose(1, 0, 2)
    return lambda value: (rows_of([value])[0] @ by_group).transpose(1, 0, 2).reshape(-1, product.outputs)


def covariances(product: Product, inputs: Inputs, some: slice = slice(None)) -> CovarianceSums:
    """Return how the whole numbers that each group of a layer reads vary together, some of its inputs in the weights' order."""
    every = _rows_of(product, inputs.shape, len(inputs.values), inputs.scale)

    def rows_of(values: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
        return every(values)[..., some]

    first = rows_of(inputs.values[:1])
    sums = CovarianceSums(first[0])
    for each in _on_threads(lambda few: sums.of(rows_of(inputs.values[few])), len(inputs.values), first.size):
        sums.add(each)
    return sums


def inherited_errors(product: Product, inputs: Inputs, weight: npt.NDArray[np.float64], exact: Rows) -> InheritedErrors:
    """Return what a layer's exact weights make of its inputs, against what it should give.

    Weights are (groups, outputs, inputs), in units of the results for one of an integer of the inputs.
    """
    rows_of, groups = _rows_of(product, inputs.shape, len(inputs.values), inputs.scale), weight.shape[0]
    first = rows_of(inputs.values[:1])[0]
    sums = InheritedErrors(weight, first)

    def errors_of(few: slice) -> tuple[SampleErrors, ...]:
        results = np.stack(exact[few])
        by_group = results.reshape(*results.shape[:2], groups, -1).transpose(0, 2, 1, 3)
        return sums.of(rows_of(inputs.values[few]), by_group)

    for each in _on_threads(errors_of, len(inputs.values), first.size):
        sums.add(each)
    return sums


def _on_threads(find: Callable[[slice], Found], samples: int, size: int) -> Iterator[Found]:
    """Yield what is found of a few samples, an even number, after the other; `size` numbers of each are looked at."""
    at_once = min(_MAX_BYTES // (size * np.dtype(np.float32).itemsize), samples // (THREADS * _ROUNDS))
    few = 2 * max(1, at_once // 2)
    starts = range(0, samples, few)
    for first in range(0, len(starts), THREADS):
        some = starts[first : first + THREADS]
        yield from in_order(lambda start: find(slice(start, start + few)), some, numbers=size * few)


def _rows_of(
    product: Product, shape: tuple[int, ...], samples: int, scale: npt.NDArray[np.float32] | None = None
) -> Callable[[Sequence[npt.NDArray[np.float32]]], npt.NDArray[np.float32]]:
    """Return what gives, of a few of so many samples, what the weights of each group are multiplied by at some positions.

    That is (samples, groups, positions, inputs), in the order of the weights: HWIO's of a convolution. With a scale it is the
    whole numbers of which the samples are multiples.
    """

    def in_steps(picked: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        if scale is not None:
            picked /= scale
            np.rint(picked, out=picked)
        return picked

    if product.is_matmul:
        places = places_of(product, shape, samples)
        return lambda values: in_steps(np.stack([value.reshape(-1, shape[-1])[places] for value in values]))[:, np.newaxis]
    pixels, is_outside = _window_pixels(product, shape, samples)
    groups, channels = product.groups, shape[3]

    def rows(values: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
        # (samples, positions, taps, channels)
        picked = np.empty((len(values), *pixels.shape, channels), np.float32)
        for value, into in zip(values, picked, strict=True):
            np.take(value.reshape(-1, channels), pixels, axis=0, out=into, mode="clip")  # no pixel is beyond, and "raise" copies
        picked = in_steps(picked)
        if is_outside is not None:
            picked[:, is_outside] = 0
        by_group = picked.reshape(*picked.shape[:3], groups, channels // groups).transpose(0, 3, 1, 2, 4)
        return by_group.reshape(len(values), groups, pixels.shape[0], -1)

    return rows


def _window_pixels(
    product: Product, shape: tuple[int, ...], samples: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]:
    """Return the pixels under each tap at some positions, (positions, taps), and which lie outside the image; None: none do."""
    kernel_h, kernel_w = product.shape[:2]
    _, height, width, _ = shape
    window, (top, left, _, _) = product.window, product.window.padding
    image, row, column = np.unravel_index(places_of(product, shape, samples), product.sizes)
    rows = (row * window.strides[0] - top)[:, None, None] + (np.arange(kernel_h) * window.dilation[0])[:, None]
    columns = (column * window.strides[1] - left)[:, None, None] + np.arange(kernel_w) * window.dilation[1]
    is_outside = ((rows < 0) | (rows >= height) | (columns < 0) | (columns >= width)).reshape(len(image), -1)
    pixels = (image[:, None, None] * height + rows.clip(0, height - 1)) * width + columns.clip(0, width - 1)
    return pixels.reshape(len(image), -1), is_outside if is_outside.any() else None


def places_of(product: Product, shape: tuple[int, ...], samples: int) -> npt.NDArray[np.int64]:
    """Return the positions of one of so many samples of a layer that are looked at, evenly; `shape` is channels last."""
    rows = max(ROWS_PER_INPUT * product.inputs, min(_MIN_POSITIONS, _MAX_ROWS_PER_INPUT * product.inputs))
    positions, wanted = product.positions(shape), -(-rows // samples)
    return np.arange(min(wanted, positions), dtype=np.int64) * positions // min(wanted, positions)


def are_free(values: npt.NDArray[np.float32], params: QuantParams, recipe: Recipe) -> bool:
    """Return whether scales of weights may become others: not of the usual width, nor others than their values alone ask for."""
    granularity, bits = params.granularity, params.num_bits
    if recipe.weight_range != "auto" or bits == WEIGHT_BITS or not isinstance(granularity, PerAxis):
        return False
    usual = symmetric_params(values, params.dtype, axis=granularity.axis, bits=bits)
    is_same = usual.granularity == granularity and np.array_equal(usual.zero_point, params.zero_point)
    return is_same and np.allclose(usual.scale, params.scale, rtol=_SAME_SCALE, atol=0)


def tells_errors(product: Product, shape: tuple[int, ...], samples: int) -> bool:
    """Return whether so many samples, of a shape channels last, say which errors of a layer's inputs make up for each other."""
    return samples * len(places_of(product, shape, samples)) >= MIN_ROWS * product.inputs


def rounded_in_blocks(
    product: Product, values: npt.NDArray[np.float32], params: QuantParams, inputs: Inputs, *, is_free: bool
) -> tuple[npt.NDArray[Any], QuantParams] | None:
    """Return what `rounded_weights` does of weights that have a scale for each block of inputs.

    Nothing behind the layer takes back what its results are off on average, so that counts, too.
    """
    blocks, size = params.granularity, product.inputs
    assert isinstance(blocks, PerBlock), "checked by the caller"
    if not tells_errors(product, inputs.shape, len(inputs.values)):
        return None
    wanted = product.weights_of(values).T[np.newaxis].astype(np.float64)
    of_outputs = (1, 0) if blocks.axis == 0 else (0, 1)
    scale = params.scale.transpose(of_outputs).astype(np.float64)[np.newaxis].copy()
    zero_point = params.zero_point.transpose(of_outputs)[np.newaxis]
    found = np.empty(wanted.shape, np.int64)
    step = max(1, MAX_INPUTS // blocks.size) * blocks.size
    for start in range(0, size, step):
        some, own = slice(start, start + step), slice(start // blocks.size, (start + step) // blocks.size)
        gram = Gram.of(covariances(product, inputs, some).moments())
        found[:, :, some], scale[:, :, own] = gptq_round_in_blocks(
            wanted[:, :, some],
            gram,
            scale[:, :, own],
            zero_point[:, :, own],
            qmin=params.qmin,
            qmax=params.qmax,
            refits=REFITS if is_free else 0,
        )
    integers = product.in_parameter(found[0].T.astype(params.dtype), values.shape)
    of_blocks = scale[0] if blocks.axis else scale[0].T
    scales = half_scales(of_blocks) if is_free else of_blocks.astype(np.float32)
    return integers, replace(params, scale=np.ascontiguousarray(scales))


def rounded_weights(
    product: Product,
    values: npt.NDArray[np.float32],
    params: QuantParams,
    inputs: Inputs,
    exact: Rows | None = None,
    *,
    is_free: bool = False,
    has_bias: bool = True,
) -> tuple[npt.NDArray[Any], QuantParams] | None:
    """Return integers of a layer's weights that change its sums least on what it reads, as the parameter holds them, and theirs.

    None where they have a zero point, and where too little is read to say so.

    Parameters
    ----------
    values, params
        The float weights in the model that is quantized, as the parameter holds them, and the parameters of their integers.
    exact
        What the layer should give: then weights make up, too, for what is wrong with its inputs, as far as they can.
    is_free
        Whether their scales may become others.
    has_bias
        Whether one takes back what results are off on average.
    """
    if product.is_transposed or np.any(params.zero_point):
        return None
    groups, outputs, size = product.groups, product.outputs, product.inputs
    if not is_free and not tells_errors(product, inputs.shape, len(inputs.values)):
        return None
    wanted: npt.NDArray[np.floating[Any]] = product.weights_of(values).reshape(size, groups, -1).transpose(1, 2, 0)
    scale = np.broadcast_to(np.ravel(params.scale).astype(np.float64), (outputs,)).reshape(groups, -1)
    bounds, known = {"qmin": params.qmin, "qmax": params.qmax}, None
    if exact is not None and size <= BLOCK_INPUTS:
        unit = float(inputs.unit)
        errors = inherited_errors(product, inputs, wanted.astype(np.float64) * unit, exact)
        wanted, known = errors.made_up_for() / unit, errors.covariances()
    found = np.empty((groups, size, outputs // groups), params.dtype).transpose(0, 2, 1)

    def gram(some: slice) -> Callable[[], Gram]:
        return inputs.gram(product, some, has_bias=has_bias) if known is None else partial(Gram.of, known.shrunk())

    if is_free and size <= MAX_INPUTS:
        found[:], scales = gptq_round_and_scale(wanted, gram(slice(0, size))(), scale, **bounds)
        params = replace(params, scale=scales.reshape(params.scale.shape).astype(np.float32))
    else:
        step = -(-size // -(-size // (BLOCK_INPUTS if size <= BLOCK_INPUTS else _PART_INPUTS)))
        parts = [slice(start, start + step) for start in range(0, size, step)]
        over = in_order if len(parts) == 1 else map  # one block's outputs, or blocks side by side

        def rounded(part: tuple[slice, Callable[[], Gram]]) -> None:
            some, make = part
            found[:, :, some] = gptq_round(wanted[:, :, some], make(), scale, over=over, **bounds)

        for first in range(0, len(parts), THREADS):
            in_order(rounded, [(some, gram(some)) for some in parts[first : first + THREADS]])
    integers = found.reshape(outputs, -1).T.reshape(product.shape)
    return product.in_parameter(integers, values.shape), params
