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


def interpolated(op: str, table: str = "") -> Maker:
    """Draw every symmetric int16, or those above 0, of a function that LiteRT interpolates."""

    def make(rng: Rng, dtype: str) -> Case:
        size = 65536
        x = Value(shape=(1, size), **params(rng, dtype, float(2.0 ** rng.uniform(-15, -11))))
        y = Value(shape=(1, size), **params(rng, dtype, float(2.0 ** rng.uniform(-13, -9))))
        every = np.arange(-32768, 32768).astype(dtype)[None]
        fed = every if op == "EXP" else np.maximum(np.abs(np.maximum(every, -32767)), 1)
        drawn = options(table) if table else None
        return Case(op=op, label="every int16", inputs=(x,), outputs=(y,), options=drawn, fed=(fed,))

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
        # 8-bit scales down to a tenth of what LiteRT, which compares in steps of 1 / 256, tells apart.
        scale = float(2.0 ** rng.uniform(-11, -2)) if dtype in ("int8", "uint8") else None
        a_params = params(rng, dtype, scale)
        b_params = a_params if dtype == "float32" else params(rng, dtype, a_params["scale"][0] * float(rng.uniform(0.7, 1.3)))
        other = shape if rng.integers(0, 2) else (1,) * (len(shape) - 1) + shape[-1:]
        a, b = Value(shape=shape, **a_params), Value(shape=other, **b_params)
        if rng.integers(0, 3) == 0:
            b = Value.constant(feed(rng, b), scale=b.scale, zero_point=b.zero_point)
        return case(rng, op, f"{shape} {other}", [a, b], [Value(shape=shape, dtype="bool")], options(table))

    return make


def choice(op: str) -> Maker:
    """Draw a condition that is fed; SELECT takes one for each row, too, and SELECT_V2 shapes that broadcast."""

    def make(rng: Rng, dtype: str) -> Case:
        shape, common = shape_of(rng, 3), params(rng, dtype)
        form = int(rng.integers(0, 3))
        asked = shape if form == 0 else shape[:1] if op == "SELECT" else (*shape[:2], 1)
        other = shape if op == "SELECT" or form < 2 else shape[2:]
        a, b = Value(shape=shape, **common), Value(shape=other, **common)
        if form == 0:
            b = Value.constant(feed(rng, b), scale=b.scale, zero_point=b.zero_point)
        inputs = (Value(shape=asked, dtype="bool"), a, b)
        fed = (rng.integers(0, 2, asked).astype(bool), *(feed(rng, value) for value in (a, b) if value.data is None))
        table = options("SelectOptions" if op == "SELECT" else "SelectV2Options")
        outputs = (Value(shape=shape, **common),)
        return Case(op=op, label=f"{asked} {shape} {other}", inputs=inputs, outputs=outputs, options=table, fed=fed)

    return make


def logic(op: str, table: str) -> Maker:
    def make(rng: Rng, dtype: str) -> Case:
        shape = shape_of(rng)
        shapes = (
            [shape] if op == "LOGICAL_NOT" else [shape, shape if rng.integers(0, 2) else (1,) * (len(shape) - 1) + shape[-1:]]
        )
        inputs = tuple(Value(shape=own, dtype=dtype) for own in shapes)
        fed = tuple(rng.integers(0, 2, own).astype(bool) for own in shapes)
        outputs = (Value(shape=shape, dtype=dtype),)
        return Case(op=op, label=f"{shapes}", inputs=inputs, outputs=outputs, options=options(table), fed=fed)

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


I8, U8, I16, F32 = "int8", "uint8", "int16", "float32"
FUNCTIONS: dict[str, list[tuple[Maker, tuple[str, ...], int]]] = {
    "EXP": [(function("EXP", "ExpOptions"), (I8, F32), 2), (interpolated("EXP", "ExpOptions"), (I16,), 2)],
    "LOG": [(function("LOG", positive=True), (I8,), 2), (interpolated("LOG"), (I16,), 2)],
    "DIV": [(division, (U8, F32), 3)],
    **{
        op: [(comparison(op, f"{''.join(word.title() for word in op.split('_'))}Options"), (I8, U8, I16, F32), 2)]
        for op in ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL")
    },
    **{op: [(choice(op), (I8, U8, I16, F32), 3)] for op in ("SELECT", "SELECT_V2")},
    **{
        op: [(logic(op, f"{''.join(word.title() for word in op.split('_'))}Options"), ("bool",), 2)]
        for op in ("LOGICAL_AND", "LOGICAL_OR", "LOGICAL_NOT")
    },
}
"""op -> (maker, dtypes, cases of each)."""

GATHERS = [
    (gather_by_batch, (I8, U8, F32), 4),
    (gather_by_batch_at_run_time, (F32,), 2),
    (gather_at_run_time, (I8, U8, F32), 2),
]
NEW_AXES = (slice_with_new_axes, (I8, U8, F32), 4)
