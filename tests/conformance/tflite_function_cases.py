"""Cases of functions of single elements and of slices and gathers of every kind. Values only, no test and no Octavo."""

from __future__ import annotations

from typing import Any

import numpy as np
from tflite_case import Case, Value
from tflite_draws import RANGE, Maker, Rng, case, feed, options, params, shape_of


def function(op: str, table: str = "", *, positive: bool = False) -> Maker:
    """Draw a function of one tensor; `positive` for what LiteRT takes of values above 0 alone."""

    def make(rng: Rng, dtype: str) -> Case:
        shape = shape_of(rng)
        least = RANGE[dtype][0] if positive and dtype != "float32" else None
        x = Value(shape=shape, **params(rng, dtype, None if dtype == "float32" else 0.02, least))
        y = Value(shape=shape, **params(rng, dtype, None if dtype == "float32" else float(rng.uniform(0.01, 0.04))))
        fed = case(rng, op, f"{shape}", [x], [y], options(table) if table else None)
        return fed if not positive else Case(**{**_fields(fed), "fed": (np.maximum(fed.fed[0], (least or 0) + 1),)})

    return make


def _fields(of: Case) -> dict[str, Any]:
    return {name: getattr(of, name) for name in ("op", "label", "inputs", "outputs", "options")}


def division(rng: Rng, dtype: str) -> Case:
    """Draw a division whose divisor stays away from 0."""
    shape = shape_of(rng)
    a = Value(shape=shape, **params(rng, dtype))
    if dtype == "float32":
        b, y = Value(shape=shape), Value(shape=shape)
        divisor = rng.uniform(0.5, 2, shape).astype(np.float32)
    else:
        b = Value(shape=shape, **params(rng, dtype, None, 3))
        y = Value(shape=shape, **params(rng, dtype, a.scale[0] / b.scale[0] / 50))
        divisor = rng.integers(40, 256, shape).astype(dtype)
    table = options("DivOptions", fusedActivationFunction=0)
    drawn = case(rng, "DIV", f"{shape}", [a, b], [y], table)
    return Case(**{**_fields(drawn), "fed": (drawn.fed[0], divisor)})


def comparison(op: str, table: str) -> Maker:
    def make(rng: Rng, dtype: str) -> Case:
        shape = shape_of(rng)
        a_params = params(rng, dtype)
        b_params = a_params if dtype == "float32" else params(rng, dtype, a_params["scale"][0] * 1.3)
        values = [Value(shape=shape, **a_params), Value(shape=shape, **b_params)]
        return case(rng, op, f"{shape}", values, [Value(shape=shape, dtype="bool")], options(table))

    return make


def gather_by_batch(rng: Rng, dtype: str) -> Case:
    shape = tuple(int(n) for n in rng.integers(2, 5, 4))
    batch = int(rng.integers(1, 3))
    axis = int(rng.integers(batch, 4))
    inner = tuple(int(n) for n in rng.integers(1, 4, int(rng.integers(0, 3))))
    indices = rng.integers(0, shape[axis], (*shape[:batch], *inner)).astype(np.int32)
    out = (*shape[:axis], *inner, *shape[axis + 1 :])
    common = params(rng, dtype)
    table = options("GatherOptions", axis=axis, batchDims=batch)
    inputs = [Value(shape=shape, **common), Value.constant(indices)]
    return case(
        rng, "GATHER", f"{shape} by {indices.shape} axis {axis} batch {batch}", inputs, [Value(shape=out, **common)], table
    )


def gather_by_batch_at_run_time(rng: Rng, dtype: str) -> Case:
    drawn = gather_by_batch(rng, dtype)
    x, places = drawn.inputs
    assert places is not None
    inputs = (x, Value(shape=places.shape, dtype="int32"))
    return Case(**{**_fields(drawn), "inputs": inputs, "fed": (*drawn.fed, places.data)})


def gather_at_run_time(rng: Rng, dtype: str) -> Case:
    """Draw indices that are fed."""
    shape = shape_of(rng, 3)
    axis = int(rng.integers(0, 3))
    places = tuple(int(n) for n in rng.integers(1, 5, int(rng.integers(1, 3))))
    indices = rng.integers(0, shape[axis], places).astype(np.int32)
    common = params(rng, dtype)
    x = Value(shape=shape, **common)
    y = Value(shape=(*shape[:axis], *places, *shape[axis + 1 :]), **common)
    table = options("GatherOptions", axis=axis, batchDims=0)
    inputs, fed = (x, Value(shape=places, dtype="int32")), (feed(rng, x), indices)
    return Case(op="GATHER", label=f"{shape} axis {axis}", inputs=inputs, outputs=(y,), options=table, fed=fed)


def slice_with_new_axes(rng: Rng, dtype: str) -> Case:
    """Draw bounds with an ellipsis, a new axis and an axis that goes."""
    shape = tuple(int(n) for n in rng.integers(2, 6, 3))
    parts: list[str] = (
        ["slice", "shrink"] + (["new"] if rng.integers(0, 2) else []) + (["..."] if rng.integers(0, 3) else ["slice"])
    )
    parts = [parts[i] for i in rng.permutation(len(parts))]
    begin, end, strides = [0] * len(parts), [0] * len(parts), [1] * len(parts)
    masks = {"ellipsisMask": 0, "newAxisMask": 0, "shrinkAxisMask": 0, "beginMask": 0, "endMask": 0}
    index: list[Any] = []
    axis = 0
    for place, part in enumerate(parts):
        bit = 1 << place
        if part == "...":
            masks["ellipsisMask"] |= bit
            index.append(...)
            axis += 3 - sum(other in ("slice", "shrink") for other in parts)
        elif part == "new":
            masks["newAxisMask"] |= bit
            index.append(None)
        else:
            first = int(rng.integers(0, shape[axis]))
            begin[place] = first - (shape[axis] if rng.integers(0, 2) else 0)
            end[place] = shape[axis] if part == "slice" else first + 1
            masks["shrinkAxisMask"] |= bit if part == "shrink" else 0
            index.append(slice(begin[place], end[place]) if part == "slice" else begin[place])
            axis += 1
    out = np.empty(shape)[tuple(index)].shape
    common = params(rng, dtype)
    inputs = [Value(shape=shape, **common), *(Value.constant(np.int32(v)) for v in (begin, end, strides))]
    return case(
        rng, "STRIDED_SLICE", f"{shape} {index}", inputs, [Value(shape=out, **common)], options("StridedSliceOptions", **masks)
    )


I8, U8, F32 = "int8", "uint8", "float32"
FUNCTIONS: dict[str, list[tuple[Maker, tuple[str, ...], int]]] = {
    "EXP": [(function("EXP", "ExpOptions"), (I8, F32), 2)],
    "LOG": [(function("LOG", positive=True), (I8,), 2)],
    "DIV": [(division, (U8, F32), 3)],
    "GREATER": [(comparison("GREATER", "GreaterOptions"), (I8, U8, F32), 2)],
    "LESS_EQUAL": [(comparison("LESS_EQUAL", "LessEqualOptions"), (I8, U8, F32), 2)],
    "EQUAL": [(comparison("EQUAL", "EqualOptions"), (I8, U8, F32), 1)],
}
"""op -> (maker, dtypes, cases of each)."""

GATHERS = [
    (gather_by_batch, (I8, U8, F32), 4),
    (gather_by_batch_at_run_time, (F32,), 2),
    (gather_at_run_time, (I8, U8, F32), 2),
]
NEW_AXES = (slice_with_new_axes, (I8, U8, F32), 4)
