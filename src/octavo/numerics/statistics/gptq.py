"""Rounding weights so that a layer's sums change least: GPTQ's sweep, then coordinate descent. NumPy only; it knows no graph.

Frantar, Ashkboos, Hoefler and Alistarh, GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers, 2023:
weights are rounded one after the other, and what is left of each error goes to those that come behind it, as far as inputs that
vary together let them make up for it. The sweep never looks back, so single integers then
move by 1 wherever the error becomes less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]
Bound = int | Floats
"""Of integers: of all, or (groups, inputs, outputs)."""

DAMPING = 0.01
"""Share of the mean diagonal that is added to it: keeps the inverse sane where inputs hardly vary, as in the paper."""

_FEW = 12
"""Inputs whose errors are spread one by one; those of more are spread together, by products of matrices."""

_BLOCK = 64
"""Inputs of a triangle that is inverted as a whole."""

_DTYPE = np.float32
"""Sums of as many products are off by far less than what rounding to integers leaves. Only Cholesky's triangles need more."""

CLAMPED = (0.9, 0.8, 0.7)
"""Shares of a scale that are tried: more of them, or shares between them, leave hardly less."""

_MAX_SLOPE = 1.25
"""By which a scale makes up for clamping at most."""

_PASSES = 3
"""Of moving integers by 1 behind the sweep, over all inputs: it ends where none moves any more."""

REFITS = 4
"""Of scales of blocks to integers: of more hardly anything comes."""

_WIDE = 256
"""Outputs that are worth a second part: on their own they take as long as Python takes for each step."""

_MANY = 128
"""Of so many integers a second pass moves hardly any, and takes as long as the first."""


@dataclass(frozen=True, slots=True, eq=False)
class Gram:
    """How the inputs of layers vary together, as it takes to round the weights of any that read them.

    Parameters
    ----------
    matrix
        Covariances up to a factor, (groups, inputs, inputs), those first that vary most: each group has inputs of its own.
    upper
        What makes up for what: triangles whose products with themselves are the inverses.
    order
        (groups, inputs): where each of the inputs was.
    """

    matrix: Floats
    upper: Floats
    order: npt.NDArray[np.intp]

    @staticmethod
    def of(covariances: Floats) -> Gram:
        """Return it of covariances up to a factor, (groups, inputs, inputs): symmetric, no negative eigenvalues."""
        inputs = covariances.shape[1]
        diagonal = np.diagonal(covariances, axis1=1, axis2=2)
        mean = diagonal.mean(axis=1)
        # The largest first: their errors are spread over most others.
        order = np.argsort(-diagonal, axis=1, kind="stable")
        matrix = np.stack([each[places].take(places, axis=1) for each, places in zip(covariances, order, strict=True)])
        # Inputs that never vary leave nothing to be made up for: any positive diagonal gives rounding to nearest.
        matrix[:, np.arange(inputs), np.arange(inputs)] += np.where(mean > 0, DAMPING * mean, 1.0)[:, None]
        return Gram(matrix.astype(_DTYPE), _inverse_root(matrix), order)


Over = Callable[[Callable[[slice], Floats], Sequence[slice]], Iterable[Floats]]


def gptq_round(weight: Floats, gram: Gram, scale: Floats, *, qmin: int, qmax: int, over: Over = map) -> npt.NDArray[np.int64]:
    """Return integers q, [qmin; qmax], of weights such that the rows of (q * scale - weight) @ inputs have little power.

    Parameters
    ----------
    weight
        (groups, outputs, inputs): each group reads inputs of its own.
    gram
        Of the inputs.
    scale
        (groups, outputs), of each row.
    qmin, qmax
        Bounds of the integers, inclusive.
    over
        Applies a function to each of several, in order, on threads if it likes: to some of the outputs, always the same.
    """
    layer, by_row, outputs = _Layer.of(weight, gram), scale[:, np.newaxis], weight.shape[1]

    def rounded(some: slice) -> Floats:
        part, own = replace(layer, weight=layer.weight[:, :, some]), by_row[:, :, some]
        return part.polished(part.swept(own, qmin, qmax), own, qmin, qmax)

    ends = (0, outputs // 2, outputs) if outputs >= _WIDE else (0, outputs)
    parts = [slice(start, end) for start, end in pairwise(ends)]
    return layer.placed(np.concatenate([*over(rounded, parts)], axis=2))


def gptq_round_and_scale(
    weight: Floats, gram: Gram, scale: Floats, *, qmin: int, qmax: int
) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return integers of weights as `gptq_round` does, and the scale of each row, (groups, outputs).

    Of few integers the largest weights cost the others too much: rows are clamped to the share of `scale` that leaves the least
    power. Clamping makes sums smaller, in layer after layer, so a row's scale then makes up for it: results grow with the exact
    ones as one to one.
    """
    layer, scale = _Layer.of(weight, gram), scale[:, np.newaxis]
    chosen, integers = scale, layer.swept(scale, qmin, qmax)
    least = layer.power(integers, scale)
    for share in CLAMPED:
        found = layer.swept(share * scale, qmin, qmax)
        power = layer.power(found, share * scale)
        is_less = power < least
        chosen, least = np.where(is_less, share * scale, chosen), np.where(is_less, power, least)
        integers = np.where(is_less, found, integers)
    integers = layer.polished(integers, chosen, qmin, qmax)
    return layer.placed(integers), (chosen * layer.slope(integers, chosen))[:, 0]


def gptq_round_in_blocks(
    weight: Floats,
    gram: Gram,
    scale: Floats,
    zero_point: npt.NDArray[np.integer[Any]],
    *,
    qmin: int,
    qmax: int,
    refits: int = REFITS,
) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return integers of weights as `gptq_round` does, of which blocks of inputs have scales and zero points, and these scales.

    Integers are rounded for scales, and scales fitted to integers by least squares of the rows' power, in turn: what leaves least
    is returned.

    Parameters
    ----------
    scale, zero_point
        (groups, outputs, blocks): blocks are neighbours among the inputs, all of one size.
    refits
        How often scales are fitted; 0 leaves them.
    """
    layer, size = _Layer.of(weight, gram), weight.shape[2] // scale.shape[2]
    block_of = layer.gram.order // size
    chosen = scale.transpose(0, 2, 1)

    def spread(scales: Floats) -> Floats:
        return np.take_along_axis(scales, block_of[:, :, np.newaxis], axis=1)

    wide, points = spread(chosen), spread(zero_point.transpose(0, 2, 1).astype(np.float64))
    low, high = qmin - points, qmax - points
    integers = layer.polished(layer.swept(wide, low, high), wide, low, high)
    least = layer.power(integers, wide)
    for _ in range(refits):
        tried = layer.fitted(integers, wide, chosen, block_of)
        wide = spread(tried)
        found = layer.polished(integers, wide, low, high)
        power = layer.power(found, wide)
        is_less = power < least
        least, chosen = np.where(is_less, power, least), np.where(is_less, tried, chosen)
        integers, wide = np.where(is_less, found, integers), spread(chosen)
    return layer.placed(integers + points), chosen.transpose(0, 2, 1)


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """Weights (groups, inputs, outputs), of the inputs that vary most first.

    Outputs lie last, so that what is done for one input after the other reads and writes memory in order.
    """

    weight: Floats
    gram: Gram

    @staticmethod
    def of(weight: Floats, gram: Gram) -> _Layer:
        by_input = np.ascontiguousarray(weight.transpose(0, 2, 1), _DTYPE)
        return _Layer(by_input.reshape(-1, by_input.shape[2])[_rows(gram.order)].reshape(by_input.shape), gram)

    def swept(self, scale: Floats, qmin: Bound, qmax: Bound) -> Floats:
        """Return integers, rounded one input after the other; scales are (groups, inputs or 1, outputs), here and below."""
        left, upper, scale = self.weight.copy(), self.gram.upper, scale.astype(_DTYPE)
        rounded, errors = np.empty_like(left), np.empty_like(left)

        def sweep(start: int, end: int) -> None:
            for index in range(start, end):
                own = scale[:, index if scale.shape[1] > 1 else 0]
                row = _clamped(np.rint(left[:, index] / own), *_at(index, qmin, qmax))
                error = (left[:, index] - row * own) / upper[:, index, index, None]
                rounded[:, index], errors[:, index] = row, error
                left[:, index + 1 : end] -= upper[:, index, index + 1 : end, None] * error[:, None]

        def spread(start: int, half: int, end: int) -> None:
            left[:, half:end] -= upper[:, start:half, half:end].transpose(0, 2, 1) @ errors[:, start:half]

        _in_turn(0, left.shape[1], sweep, spread)
        return rounded

    def polished(self, integers: Floats, scale: Floats, qmin: Bound, qmax: Bound) -> Floats:
        """Return integers of which some are moved by 1: one input after the other, wherever the error becomes less."""
        rounded, gram = integers.copy(), self.gram.matrix
        scale = np.broadcast_to(scale.astype(_DTYPE), rounded.shape)
        bound = np.diagonal(gram, axis1=1, axis2=2)[:, :, None] * scale / 2  # beyond it a step of 1 gains
        for _ in range(1 if np.max(qmax - qmin) >= _MANY else _PASSES):
            slope = gram @ (rounded * scale - self.weight)  # half the error's, by each weight
            changes = np.zeros_like(rounded)

            def move(start: int, end: int, slope: Floats = slope, changes: Floats = changes) -> None:
                for index in range(start, end):
                    mine = slope[:, index]
                    gains = np.abs(mine) > bound[:, index]
                    if gains.any():
                        before = rounded[:, index]
                        moved = _clamped(before - np.sign(mine) * gains, *_at(index, qmin, qmax))
                        changes[:, index] = change = (moved - before) * scale[:, index]
                        rounded[:, index] = moved
                        slope[:, index + 1 : end] += gram[:, index, index + 1 : end, None] * change[:, None]

            def spread(start: int, half: int, end: int, slope: Floats = slope, changes: Floats = changes) -> None:
                if changes[:, start:half].any():
                    slope[:, half:end] += gram[:, half:end, start:half] @ changes[:, start:half]

            _in_turn(0, rounded.shape[1], move, spread)
            if not changes.any():
                break
        return rounded

    def power(self, integers: Floats, scale: Floats) -> Floats:
        """Return the power of the error of each row, (groups, 1, outputs)."""
        error = integers * scale - self.weight
        return np.einsum("gio,gio->go", error, self.gram.matrix @ error)[:, np.newaxis]

    def slope(self, integers: Floats, scale: Floats) -> Floats:
        """Return by how much exact results grow with rounded ones, (groups, 1, outputs)."""
        exact = self.gram.matrix @ self.weight
        together = np.einsum("gio,gio->go", exact, integers * scale)
        power = np.einsum("gio,gio->go", exact, self.weight)
        found = np.divide(power, together, out=np.ones_like(power), where=together > 0)
        return np.clip(found, 1 / _MAX_SLOPE, _MAX_SLOPE)[:, np.newaxis]

    def fitted(self, integers: Floats, scale: Floats, of_blocks: Floats, block_of: npt.NDArray[np.intp]) -> Floats:
        """Return scales of blocks, (groups, blocks, outputs), with which given integers leave rows least power.

        By least squares of what `scale` leaves, one block after the other, each with what those before it leave; within a factor
        of _MAX_SLOPE of `of_blocks`.
        """
        found = of_blocks.copy()
        slope = self.gram.matrix @ (integers * scale - self.weight)
        for block in range(of_blocks.shape[1]):
            own = np.where(block_of[:, :, np.newaxis] == block, integers, 0)
            results = self.gram.matrix @ own
            power, along = np.einsum("gio,gio->go", own, results), np.einsum("gio,gio->go", own, slope)
            wanted = found[:, block] - np.divide(along, power, out=np.zeros_like(power), where=power > 0)
            limited = np.clip(wanted, found[:, block] / _MAX_SLOPE, found[:, block] * _MAX_SLOPE)
            slope += results * (limited - found[:, block])[:, np.newaxis]
            found[:, block] = limited
        return found

    def placed(self, integers: Floats) -> npt.NDArray[np.int64]:
        """Return integers (groups, outputs, inputs) in the order in which the weights were given."""
        result = np.empty((integers.shape[0] * integers.shape[1], integers.shape[2]), np.int64)
        result[_rows(self.gram.order)] = integers.reshape(result.shape)
        return result.reshape(integers.shape).transpose(0, 2, 1)


def _rows(order: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Return which of all rows, those of one group behind those before it, an order by groups names."""
    groups, inputs = order.shape
    return (order + np.arange(0, groups * inputs, inputs)[:, np.newaxis]).reshape(-1)


def _inverse_root(matrices: Floats) -> Floats:
    """Return the upper triangles U with U^T U the inverses of positive matrices.

    A = R R^T, R upper, gives U = R^-1; R is what Cholesky's lower triangle is where rows and columns stand in reverse.
    """
    lower: Any = np.linalg.cholesky(matrices[:, ::-1, ::-1]).astype(_DTYPE)
    return np.ascontiguousarray(_lower_inverse(lower)[:, ::-1, ::-1])


def _lower_inverse(lower: Floats) -> Floats:
    """Return the inverses of lower triangles: halves first, so that most of the work is products of matrices."""
    size = lower.shape[1]
    found = np.zeros_like(lower)
    if size <= _BLOCK:
        found[:] = np.tril(np.linalg.inv(lower))
        return found
    half = size // 2
    first, second = _lower_inverse(lower[:, :half, :half]), _lower_inverse(lower[:, half:, half:])
    found[:, :half, :half], found[:, half:, half:] = first, second
    found[:, half:, :half] = -second @ (lower[:, half:, :half] @ first)
    return found


def _in_turn(start: int, end: int, few: Callable[[int, int], None], spread: Callable[[int, int, int], None]) -> None:
    """Do a few inputs after the other, and spread what those in [start; half) leave over those in [half; end)."""
    if end - start <= _FEW:
        few(start, end)
        return
    half = (start + end) // 2
    _in_turn(start, half, few, spread)
    spread(start, half, end)
    _in_turn(half, end, few, spread)


def _at(index: int, low: Bound, high: Bound) -> tuple[Bound, Bound]:
    """Return the bounds of one input's integers."""
    return (low if isinstance(low, int) else low[:, index]), (high if isinstance(high, int) else high[:, index])


def _clamped(values: Floats, low: Bound, high: Bound) -> Floats:
    """Return values within [low; high]: of few values np.clip takes three times as long."""
    return np.minimum(np.maximum(values, low), high)
