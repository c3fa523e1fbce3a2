"""Cases of the TFLite ops that only move values: reshapes, slices, splits, gathers. Values only, no test and no Octavo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tflite_case import Case, Value
from tflite_draws import Maker, Rng, case, options, params, shape_of


def moving(op: str) -> Maker:
    """Ops that only move values: scale and zero point stay."""

    def make(rng: Rng, dtype: str) -> Case:
        x_params = params(rng, dtype)
        shape, extra, out, table = MOVES[op](rng)
        x = Value(shape=shape, **x_params)
        outputs = [Value(shape=size, **x_params) for size in out]
        constants = [Value.constant(np.asarray(value, np.int32)) for value in extra]
        inputs: list[Value | None] = [*constants, x] if op == "SPLIT" else [x, *constants]
        return case(rng, op, f"{shape} {[list(np.ravel(v)) for v in extra]}", inputs, outputs, table)

    return make


Move = tuple[tuple[int, ...], list[Any], list[tuple[int, ...]], Any]


def _reshape(rng: Rng) -> Move:
    shape = shape_of(rng, 4)
    out = (shape[0], shape[1] * shape[2], shape[3])
    return shape, [out], [out], options("ReshapeOptions", newShape=list(out))


def _squeeze(rng: Rng) -> Move:
    shape = (1, *shape_of(rng, 2), 1, int(rng.integers(2, 9)))
    axes = [[0], [3], [0, 3], [0, 1, 3]][int(rng.integers(0, 4))]
    return shape, [], [tuple(n for i, n in enumerate(shape) if i not in axes)], options("SqueezeOptions", squeezeDims=axes)


def _expand_dims(rng: Rng) -> Move:
    shape = shape_of(rng, 3)
    axis = int(rng.integers(-4, 4))
    return shape, [axis], [tuple(np.expand_dims(np.empty(shape), axis).shape)], options("ExpandDimsOptions")


def _transpose(rng: Rng) -> Move:
    shape = shape_of(rng)
    order = rng.permutation(len(shape))
    return shape, [order], [tuple(shape[i] for i in order)], options("TransposeOptions")


def _slice(rng: Rng) -> Move:
    shape = shape_of(rng, 4)
    begin = [int(rng.integers(0, n)) for n in shape]
    size = [int(rng.integers(1, n - b + 1)) for n, b in zip(shape, begin, strict=True)]
    given = [-1 if b + s == n and rng.integers(0, 2) else s for n, b, s in zip(shape, begin, size, strict=True)]
    return shape, [begin, given], [tuple(size)], options("SliceOptions")


def _strided_slice(rng: Rng) -> Move:
    shape = (1, *(int(n) for n in rng.integers(4, 9, 3)))
    begin, end, strides = [0], [1], [1]
    masks = {"beginMask": int(rng.integers(0, 16)), "endMask": int(rng.integers(0, 16)), "shrinkAxisMask": 0}
    index: list[Any] = [slice(None)]
    for axis, n in enumerate(shape[1:], 1):
        step = int(rng.choice([1, 2, -1]))
        first, last = sorted(rng.choice(n, 2, replace=False).tolist())
        low, high = (first, last) if step > 0 else (last, first)
        begin.append(int(low) - (n if rng.integers(0, 2) else 0))
        end.append(int(high))
        strides.append(step)
        bit = 1 << axis
        index.append(slice(None if masks["beginMask"] & bit else begin[-1], None if masks["endMask"] & bit else end[-1], step))
    if rng.integers(0, 2):
        masks["shrinkAxisMask"], masks["beginMask"], strides[1] = 2, masks["beginMask"] & ~2, 1
        index[1] = begin[1]
    out = np.empty(shape)[tuple(index)].shape
    return shape, [begin, end, strides], [out], options("StridedSliceOptions", ellipsisMask=0, newAxisMask=0, **masks)


def _split(rng: Rng) -> Move:
    count, axis = int(rng.integers(2, 4)), int(rng.integers(1, 4))
    shape = list(shape_of(rng, 4))
    part = tuple(shape)
    shape[axis] *= count
    return tuple(shape), [axis], [part] * count, options("SplitOptions", numSplits=count)


def _split_v(rng: Rng) -> Move:
    axis, sizes = int(rng.integers(1, 4)), [int(n) for n in rng.integers(1, 5, int(rng.integers(2, 4)))]
    shape = list(shape_of(rng, 4))
    shape[axis] = sum(sizes)
    out = [tuple(size if i == axis else n for i, n in enumerate(shape)) for size in sizes]
    return tuple(shape), [sizes, axis], out, options("SplitVOptions", numSplits=len(sizes))


def _gather(rng: Rng) -> Move:
    shape, axis = shape_of(rng, 3), int(rng.integers(0, 3))
    indices = rng.integers(0, shape[axis], tuple(int(n) for n in rng.integers(1, 4, int(rng.integers(1, 3)))))
    return (
        shape,
        [indices],
        [tuple(np.take(np.empty(shape), indices, axis).shape)],
        options("GatherOptions", axis=axis, batchDims=0),
    )


def _unpack(rng: Rng) -> Move:
    shape, axis = shape_of(rng, 3), int(rng.integers(1, 3))
    out = tuple(n for i, n in enumerate(shape) if i != axis)
    return shape, [], [out] * shape[axis], options("UnpackOptions", num=shape[axis], axis=axis)


def _space(rng: Rng, *, to_depth: bool) -> Move:
    block, (_, height, width, channels) = 2, shape_of(rng, 4)
    wide, deep = (1, height * block, width * block, channels), (1, height, width, channels * block * block)
    table = "SpaceToDepthOptions" if to_depth else "DepthToSpaceOptions"
    return (
        (wide, [], [deep], options(table, blockSize=block)) if to_depth else (deep, [], [wide], options(table, blockSize=block))
    )


def _tile(rng: Rng) -> Move:
    shape = shape_of(rng, 3)
    times = [int(n) for n in rng.integers(1, 4, 3)]
    return shape, [times], [tuple(n * t for n, t in zip(shape, times, strict=True))], options("TileOptions")


MOVES: dict[str, Callable[[Rng], Move]] = {
    "RESHAPE": _reshape,
    "SQUEEZE": _squeeze,
    "EXPAND_DIMS": _expand_dims,
    "TRANSPOSE": _transpose,
    "SLICE": _slice,
    "STRIDED_SLICE": _strided_slice,
    "SPLIT": _split,
    "SPLIT_V": _split_v,
    "GATHER": _gather,
    "UNPACK": _unpack,
    "SPACE_TO_DEPTH": lambda rng: _space(rng, to_depth=True),
    "DEPTH_TO_SPACE": lambda rng: _space(rng, to_depth=False),
    "TILE": _tile,
}
