"""Weights of layers, rounded by what the layers read. Runs nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ...numerics import PerAxis, PerBlock, QuantParams
from ...numerics.statistics.gptq import REFITS, Gram, gptq_round, gptq_round_and_scale, gptq_round_in_blocks
from ...numerics.statistics.ranges import half_scales, symmetric_params
from ..recipe import WEIGHT_BITS, Recipe
from ..sample_threads import THREADS, in_order
from .gram import ExactRows, Inputs, covariances, gram_of, inherited_errors, places_of
from .layers import Product

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
class Weights:
    """The float weights of a layer in the model that is quantized, which may be equalized.

    Parameters
    ----------
    values
        float32, as the parameter holds them.
    params
        Of their integers.
    is_free
        Whether their scales may become others: those that their values alone ask for.
    """

    values: npt.NDArray[np.float32]
    params: QuantParams
    is_free: bool

    @staticmethod
    def of(values: npt.NDArray[np.float32], params: QuantParams, recipe: Recipe, *, is_kept: bool) -> Weights:
        """Return weights that keep their scales where somebody chose them, or they have the usual width."""
        granularity, bits = params.granularity, params.num_bits
        is_free = False
        if recipe.weight_range == "auto" and bits != WEIGHT_BITS and not is_kept and isinstance(granularity, PerAxis):
            usual = symmetric_params(values, params.dtype, axis=granularity.axis, bits=bits)
            is_same = usual.granularity == granularity and np.array_equal(usual.zero_point, params.zero_point)
            is_free = is_same and np.allclose(usual.scale, params.scale, rtol=_SAME_SCALE, atol=0)
        return Weights(values=values, params=params, is_free=is_free)


def tells_errors(product: Product, shape: tuple[int, ...], samples: int) -> bool:
    """Return whether so many samples, of a shape channels last, say which errors of a layer's inputs make up for each other."""
    return samples * len(places_of(product, shape, samples)) >= MIN_ROWS * product.inputs


def rounded_in_blocks(product: Product, weights: Weights, inputs: Inputs) -> tuple[npt.NDArray[Any], QuantParams] | None:
    """Return what `rounded_weights` does of weights that have a scale for each block of inputs.

    Nothing behind the layer takes back what its results are off on average, so that counts, too.
    """
    blocks, size = weights.params.granularity, product.inputs
    assert isinstance(blocks, PerBlock), "checked by the caller"
    if not tells_errors(product, inputs.shape, len(inputs.values)):
        return None
    wanted = product.weights_of(weights.values).T[np.newaxis].astype(np.float64)
    of_outputs = (1, 0) if blocks.axis == 0 else (0, 1)
    scale = weights.params.scale.transpose(of_outputs).astype(np.float64)[np.newaxis].copy()
    zero_point = weights.params.zero_point.transpose(of_outputs)[np.newaxis]
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
            qmin=weights.params.qmin,
            qmax=weights.params.qmax,
            refits=REFITS if weights.is_free else 0,
        )
    integers = product.in_parameter(found[0].T.astype(weights.params.dtype), weights.values.shape)
    of_blocks = scale[0] if blocks.axis else scale[0].T
    scales = half_scales(of_blocks) if weights.is_free else of_blocks.astype(np.float32)
    params = replace(weights.params, scale=np.ascontiguousarray(scales))
    return integers, params


def rounded_weights(
    product: Product, weights: Weights, inputs: Inputs, exact: ExactRows | None = None, *, has_bias: bool = True
) -> tuple[npt.NDArray[Any], QuantParams] | None:
    """Return integers of a layer's weights that change its sums least on what it reads, as the parameter holds them, and theirs.

    None where they have a zero point, and where too little is read to say so.

    Parameters
    ----------
    exact
        What the layer should give: then weights make up, too, for what is wrong with its inputs, as far as they can.
    has_bias
        Whether one takes back what results are off on average.
    """
    if product.is_transposed or np.any(weights.params.zero_point):
        return None
    groups, outputs, size = product.groups, product.outputs, product.inputs
    if not weights.is_free and not tells_errors(product, inputs.shape, len(inputs.values)):
        return None
    wanted: npt.NDArray[np.floating[Any]] = product.weights_of(weights.values).reshape(size, groups, -1).transpose(1, 2, 0)
    scale = np.broadcast_to(np.ravel(weights.params.scale).astype(np.float64), (outputs,)).reshape(groups, -1)
    bounds, given, known = {"qmin": weights.params.qmin, "qmax": weights.params.qmax}, weights.params, None
    if exact is not None and size <= BLOCK_INPUTS:
        unit = float(inputs.unit)
        errors = inherited_errors(product, inputs, wanted.astype(np.float64) * unit, exact)
        wanted, known = errors.made_up_for() / unit, errors.covariances()
    found = np.empty((groups, size, outputs // groups), given.dtype).transpose(0, 2, 1)

    def gram(some: slice) -> Callable[[], Gram]:
        return inputs.gram(product, some, has_bias=has_bias) if known is None else partial(gram_of, known)

    if weights.is_free and size <= MAX_INPUTS:
        found[:], scales = gptq_round_and_scale(wanted, gram(slice(0, size))(), scale, **bounds)
        given = replace(given, scale=scales.reshape(given.scale.shape).astype(np.float32))
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
    return product.in_parameter(integers, weights.values.shape), given
