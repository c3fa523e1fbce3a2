"""Cases of ops about places, and of those of integers as they are stored. Values only, no test and no Octavo."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from flatbuffers import flexbuffers
from tflite_case import Case, Value
from tflite_draws import NONE, Maker, Rng, case, feed, options, params, shape_of
from tflite_function_cases import function, interpolated


def top(rng: Rng, dtype: str) -> Case:
    """Draw rows of a few values, so that some are met more than once."""
    shape = (*shape_of(rng, int(rng.integers(1, 4))), int(rng.integers(1, 70)))
    count = int(rng.integers(1, shape[-1] + 1))
    x = Value(shape=shape, **params(rng, dtype))
    y, places = replace(x, shape=(*shape[:-1], count)), Value(shape=(*shape[:-1], count), dtype="int32")
    fed = rng.choice(feed(rng, Value(shape=(17,), dtype=dtype)), shape)
    size = Value.constant(np.full((1,) if rng.integers(0, 2) else (), count, np.int32))
    inputs, table = (x, size), options("TopKV2Options")
    return Case(op="TOPK_V2", label=f"{count} of {shape}", inputs=inputs, outputs=(y, places), options=table, fed=(fed,))


def gather_nd(*, at_run_time: bool) -> Maker:
    def make(rng: Rng, dtype: str) -> Case:
        shape, depth = shape_of(rng), int(rng.integers(1, 3))
        outer = tuple(int(n) for n in rng.integers(1, 4, int(rng.integers(1, 3))))
        places = np.stack([rng.integers(0, size, outer) for size in shape[:depth]], axis=-1).astype(np.int32)
        x = Value(shape=shape, **params(rng, dtype))
        y = replace(x, shape=(*outer, *shape[depth:]))
        index = Value(shape=places.shape, dtype="int32") if at_run_time else Value.constant(places)
        fed = (feed(rng, x), places) if at_run_time else (feed(rng, x),)
        label, table = f"{shape} by {places.shape}", options("GatherNdOptions")
        return Case(op="GATHER_ND", label=label, inputs=(x, index), outputs=(y,), options=table, fed=fed)

    return make


def _single(rng: Rng, dtype: str) -> Value:
    own = params(rng, dtype)
    value = feed(rng, Value(shape=(1,), dtype=dtype)).reshape(())
    return Value.constant(value, scale=own.get("scale", ()), zero_point=own.get("zero_point", ()))


def one_hot(rng: Rng, dtype: str) -> Case:
    """Draw places of which some are none of the depth's, and values whose parameters LiteRT doesn't look at."""
    shape, depth = shape_of(rng, int(rng.integers(1, 4))), int(rng.integers(1, 9))
    axis = int(rng.integers(-1, len(shape) + 1))
    out = list(shape)
    out.insert(len(shape) if axis < 0 else axis, depth)
    y = Value(shape=tuple(out), **params(rng, dtype))
    on, off = (_single(rng, dtype) for _ in range(2))
    inputs = (Value(shape=shape, dtype="int32"), Value.constant(np.asarray(depth, np.int32)), on, off)
    fed = (rng.integers(-1, depth + 1, shape).astype(np.int32),)
    label, table = f"{shape} depth {depth} axis {axis}", options("OneHotOptions", axis=axis)
    return Case(op="ONE_HOT", label=label, inputs=inputs, outputs=(y,), options=table, fed=fed)


def whole_quotient(op: str, table: str) -> Maker:
    """Draw divisors other than 0, at which LiteRT stops."""

    def make(rng: Rng, dtype: str) -> Case:
        shape = shape_of(rng)
        other = shape if rng.integers(0, 2) else (1,) * (len(shape) - 1) + shape[-1:]
        a, b, y = (Value(shape=own, **params(rng, dtype)) for own in (shape, other, shape))
        drawn = case(rng, op, f"{shape} {other}", [a, b], [y], options(table))
        return replace(drawn, fed=(drawn.fed[0], np.where(drawn.fed[1] == 0, 1, drawn.fed[1]).astype(drawn.fed[1].dtype)))

    return make


def stored_concatenation(rng: Rng, dtype: str) -> Case:
    """Draw inputs of different scales, whose integers LiteRT copies as they are."""
    shape = shape_of(rng, 3)
    inputs: list[Value | None] = [Value(shape=shape, **params(rng, dtype)) for _ in range(2)]
    y = Value(shape=(*shape[:2], 2 * shape[2]), **params(rng, dtype))
    table = options("ConcatenationOptions", axis=2, fusedActivationFunction=NONE)
    return case(rng, "CONCATENATION", f"{shape} of different scales", inputs, [y], table)


def broadcast(rng: Rng, dtype: str) -> Case:
    out = shape_of(rng, 4)
    shape = tuple(1 if rng.integers(0, 2) else size for size in out)[int(rng.integers(0, 3)) :]
    x = Value(shape=shape, **params(rng, dtype))
    table = options("BroadcastToOptions")
    return case(rng, "BROADCAST_TO", f"{shape} to {out}", [x, Value.constant(np.int32(out))], [replace(x, shape=out)], table)


def embedding(rng: Rng, dtype: str) -> Case:
    """Draw rows of a table of the result's own parameters."""
    rows, size, count = (int(n) for n in rng.integers(2, 20, 3))
    own = params(rng, dtype)
    held = feed(rng, Value(shape=(rows, size), dtype=dtype))
    table = Value.constant(held, scale=own.get("scale", ()), zero_point=own.get("zero_point", ()))
    places = rng.integers(0, rows, count).astype(np.int32)
    inputs, y = (Value(shape=(count,), dtype="int32"), table), Value(shape=(count, size), **own)
    return Case(op="EMBEDDING_LOOKUP", label=f"{count} of {rows}", inputs=inputs, outputs=(y,), fed=(places,))


I8, U8, I16, F32 = "int8", "uint8", "int16", "float32"
DETECTIONS = "CUSTOM TFLite_Detection_PostProcess"


def detections(*, by_class: bool) -> Maker:
    """Draw boxes that overlap; by class so few above the least score that some places stay empty."""

    def make(rng: Rng, dtype: str) -> Case:
        boxes, classes, most = int(rng.integers(30, 60)), int(rng.integers(2, 5)), int(rng.integers(4, 9))
        zero = 128 if dtype == "uint8" else 0
        places = rng.uniform(0.1, 0.9, (boxes, 4))
        anchors = Value.constant(places.astype(np.float32))
        if zero:
            anchors = Value.constant(np.rint(places * 200).astype(np.uint8), scale=(1 / 200,), zero_point=(0,))
        quantized = [
            {"scale": (scale,), "zero_point": (point,)} if zero else {} for scale, point in ((1 / 16, zero), (1 / 256, 0))
        ]
        encoded = Value(shape=(1, boxes, 4), dtype=dtype, **quantized[0])
        scores = Value(shape=(1, boxes, classes + 1), dtype=dtype, **quantized[1])
        fed = (rng.normal(zero, 16, encoded.shape), rng.uniform(0, 256, scores.shape))
        if zero:
            fed = tuple(np.clip(np.rint(array), 0, 255).astype(np.uint8) for array in fed)
        else:
            fed = (fed[0].astype(np.float32) / 16, fed[1].astype(np.float32) / 256)
        names = {"max_detections": most, "max_classes_per_detection": 1, "detections_per_class": 3, "num_classes": classes}
        reals = {"nms_score_threshold": 0.95 if by_class else 0.1, "nms_iou_threshold": 0.6, "y_scale": 10.0, "x_scale": 10.0}
        data = flexbuffers.Dumps({**names, **reals, "h_scale": 5.0, "w_scale": 4.0, "use_regular_nms": by_class})
        outputs = tuple(Value(shape=shape) for shape in ((1, most, 4), (1, most), (1, most), (1,)))
        label = f"{most} of {boxes}, {classes} classes, {'each' if by_class else 'any'}"
        inputs = (encoded, scores, anchors)
        return Case(op=DETECTIONS, label=label, inputs=inputs, outputs=outputs, options=bytes(data), fed=fed)

    return make


PLACES: dict[str, list[tuple[Maker, tuple[str, ...], int]]] = {
    "BROADCAST_TO": [(broadcast, (I8, U8, I16, F32), 2)],
    "EMBEDDING_LOOKUP": [(embedding, (I8, F32), 2)],
    "TOPK_V2": [(top, (I8, U8, I16, F32), 2)],
    "GATHER_ND": [(gather_nd(at_run_time=late), (I8, U8, I16, F32), 2) for late in (False, True)],
    "ONE_HOT": [(one_hot, (I8, U8, F32), 2)],
    "FLOOR_DIV": [(whole_quotient("FLOOR_DIV", "FloorDivOptions"), (I8, I16, F32), 2)],
    "FLOOR_MOD": [(whole_quotient("FLOOR_MOD", "FloorModOptions"), (I8, I16, F32), 2)],
    DETECTIONS: [(detections(by_class=by_class), (U8, F32), 1) for by_class in (False, True)],
    "NEG": [(function("NEG", "NegOptions"), (I8, I16, F32), 2)],
    "SQRT": [(function("SQRT", positive=True), (I8, F32), 2), (interpolated("SQRT"), (I16,), 2)],
}
"""op -> (maker, dtypes, cases of each)."""

WITHOUT_KERNEL = frozenset({("FLOOR_DIV", I16), ("FLOOR_MOD", I16), (DETECTIONS, U8)})
"""(op, dtype) of quantized cases that are computed in float32, with the values of integers."""
