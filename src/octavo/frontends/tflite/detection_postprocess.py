"""Our converter of the custom op TFLite_Detection_PostProcess, with which object detectors end: boxes decoded, the best kept.

A box is kept if no better one of its class (or, by default, of any class) overlaps it by more than the threshold: the best that
is left is taken, and what it overlaps is struck off, as often as there may be detections. All in plain float ops; results that
there are no detections for are 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from flatbuffers import flexbuffers
from tvm import relax

from ...ir.untyped import ops
from ..frontend import RejectedOpError
from .base import BaseConverter, float_const

DETECTIONS = "CUSTOM TFLite_Detection_PostProcess"
_MAX_ROUNDS = 128
"""Rounds that are unrolled: one for each detection, or for each of a class."""
_NOTHING = -1e38
"""Score of a box that is struck off. It is finite: reductions may take the lowest number for no element at all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Options:
    """The op's options; `scales` of y, x, height and width."""

    max_detections: int
    classes: int
    max_per_class: int
    score_threshold: float
    iou_threshold: float
    scales: tuple[float, ...]
    by_class: bool

    @staticmethod
    def read(data: bytes) -> _Options:
        """Read the custom options, a FlexBuffer; RejectedOpError for what is missing or not taken."""
        try:
            loads: Any = flexbuffers.Loads
            values: dict[str, Any] = dict(loads(data))
            found = _Options(
                max_detections=int(values["max_detections"]),
                classes=int(values["num_classes"]),
                max_per_class=int(values.get("detections_per_class", 100)),
                score_threshold=float(values["nms_score_threshold"]),
                iou_threshold=float(values["nms_iou_threshold"]),
                scales=tuple(float(values[f"{name}_scale"]) for name in "yxhw"),
                by_class=bool(values.get("use_regular_nms", False)),
            )
        except Exception as error:
            raise RejectedOpError(f"options that cannot be read ({type(error).__name__})") from error
        if int(values.get("max_classes_per_detection", 1)) != 1 and not found.by_class:
            raise RejectedOpError(f"max_classes_per_detection {values['max_classes_per_detection']}: only 1")
        rounds = found.max_per_class if found.by_class else found.max_detections
        if not (1 <= rounds <= _MAX_ROUNDS and found.classes > 0 and found.max_detections > 0):
            raise RejectedOpError(f"{rounds} detections (at most {_MAX_ROUNDS}) of {found.classes} classes")
        if not all(math.isfinite(scale) and scale > 0 for scale in found.scales):
            raise RejectedOpError(f"scales {found.scales}, which must be above 0")
        return found


class DetectionConverter(BaseConverter):
    """The converter of the op."""

    OWN_OPS = frozenset({DETECTIONS})

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.convert_map[DETECTIONS] = self._detections

    def _detections(self, op: Any) -> Any:
        """Convert boxes [1, n, 4], scores [1, n, classes] and anchors [n, 4] to boxes, classes, scores and their number."""
        encoded, scores, anchors = self.get_input_tensors(op)
        options = _Options.read(op.CustomOptionsAsNumpy().tobytes() if op.CustomOptionsLength() else b"")
        batch, count, width = self._shape(scores)
        if batch != 1 or width - options.classes not in (0, 1):
            raise RejectedOpError(f"scores of shape {self._shape(scores)} for {options.classes} classes, of which a batch is 1")
        work = _Detections(self.bb, options, count)
        work.decode(self._real(encoded), self._real(anchors))
        # What stands before the classes is the background.
        kept = work.emit(ops.strided_slice(self._real(scores), axes=[2], begin=[width - options.classes], end=[width]))
        return work.of_each_class(kept) if options.by_class else work.of_any_class(kept)


class _Detections:
    """The rounds of one op. Corners and areas are [n]."""

    def __init__(self, builder: Any, options: _Options, count: int) -> None:
        self._bb = builder
        self._options = options
        self._count = count
        self._corners: list[Any] = []
        self._area: Any = None

    def emit(self, value: Any) -> Any:
        """Bind a value to a variable."""
        return self._bb.emit(value)

    def decode(self, encoded: Any, anchors: Any) -> None:
        """Compute the corners, top, left, bottom, right: center = e / scale * size + center, half = exp(e / scale) * size / 2."""

        def column(value: Any, index: int) -> Any:
            part = self.emit(ops.strided_slice(value, axes=[1], begin=[index], end=[index + 1]))
            return self.emit(ops.reshape(part, [self._count]))

        boxes = self.emit(ops.reshape(encoded, [self._count, 4]))
        centers: list[Any] = []
        half_sizes: list[Any] = []
        for axis in (0, 1):
            size = column(anchors, 2 + axis)
            away = self.emit(ops.divide(column(boxes, axis), float_const(self._options.scales[axis])))
            centers.append(self.emit(ops.add(self.emit(ops.multiply(away, size)), column(anchors, axis))))
            grown = self.emit(
                ops.exp(self.emit(ops.divide(column(boxes, 2 + axis), float_const(self._options.scales[2 + axis]))))
            )
            half_sizes.append(self.emit(ops.multiply(self.emit(ops.multiply(float_const(0.5), grown)), size)))
        self._corners = [
            *(self.emit(ops.subtract(center, half)) for center, half in zip(centers, half_sizes, strict=True)),
            *(self.emit(ops.add(center, half)) for center, half in zip(centers, half_sizes, strict=True)),
        ]
        self._area = self._area_of(self._corners)

    def of_any_class(self, scores: Any) -> Any:
        """Keep boxes by the score of their best class."""
        by_box = self.emit(ops.reshape(scores, [self._count, self._options.classes]))
        best = self.emit(ops.reshape(self.emit(ops.max(by_box, axis=[1])), [1, self._count]))
        kinds = self.emit(ops.astype(self.emit(ops.argmax(by_box, axis=1)), "float32"))
        places, values = self._rounds(best, self._options.max_detections)
        places, values = (self.emit(ops.reshape(value, [self._options.max_detections])) for value in (places, values))
        return self._results(places, self.emit(ops.take(kinds, places, axis=0, mode="clip")), values)

    def of_each_class(self, scores: Any) -> Any:
        """Keep boxes of each class for itself, then the best of all."""
        by_box = self.emit(ops.reshape(scores, [self._count, self._options.classes]))
        rounds, limit = self._options.max_per_class, self._options.max_detections
        places, values = self._rounds(self.emit(ops.permute_dims(by_box, [1, 0])), rounds)
        total = rounds * self._options.classes
        places, values = (self.emit(ops.reshape(value, [total])) for value in (places, values))
        if total < limit:
            places = self.emit(ops.concat([places, relax.const(np.zeros(limit - total, np.int64))], 0))
            values = self.emit(ops.concat([values, relax.const(np.full(limit - total, _NOTHING, np.float32))], 0))
        kinds = relax.const(np.minimum(np.arange(max(total, limit)) // rounds, self._options.classes).astype(np.float32))
        order = self.emit(ops.topk(values, limit, ret_type="indices", dtype="int64"))
        places, kinds, values = (self.emit(ops.take(value, order, axis=0, mode="clip")) for value in (places, kinds, values))
        return self._results(places, kinds, values)

    def _rounds(self, scores: Any, count: int) -> tuple[Any, Any]:
        """Return places (int64) and scores, _NOTHING where none is left, of the best `count` in each row of scores [rows, n]."""
        none = float_const(_NOTHING)
        left = self.emit(
            ops.where(self.emit(ops.greater_equal(scores, float_const(self._options.score_threshold))), scores, none)
        )
        everywhere = relax.const(np.arange(self._count, dtype=np.int64))
        places, values = list[Any](), list[Any]()
        for _ in range(count):
            place = self.emit(ops.argmax(left, axis=1, keepdims=True))
            places.append(place)
            values.append(self.emit(ops.max(left, axis=[1], keepdims=True)))
            taken = self.emit(ops.equal(place, everywhere))
            gone = self.emit(ops.logical_or(self._overlaps(place), taken))
            left = self.emit(ops.where(gone, none, left))
        if count == 1:
            return places[0], values[0]
        return self.emit(ops.concat(places, 1)), self.emit(ops.concat(values, 1))

    def _overlaps(self, place: Any) -> Any:
        """Return which boxes share more than the threshold of their union with the one at a place; boxes without area none."""
        top, left, bottom, right = self._corners
        mine = [self.emit(ops.take(corner, place, axis=0, mode="clip")) for corner in self._corners]
        height = ops.subtract(self.emit(ops.minimum(mine[2], bottom)), self.emit(ops.maximum(mine[0], top)))
        width = ops.subtract(self.emit(ops.minimum(mine[3], right)), self.emit(ops.maximum(mine[1], left)))
        shared = self.emit(ops.multiply(*(self.emit(ops.nn.relu(self.emit(extent))) for extent in (height, width))))
        area = self._area_of(mine)
        union = self.emit(ops.subtract(self.emit(ops.add(area, self._area)), shared))
        overlap = self.emit(ops.divide(shared, union))
        solid = [self.emit(ops.greater(value, float_const(0.0))) for value in (area, self._area)]
        is_beyond = self.emit(ops.greater(overlap, float_const(self._options.iou_threshold)))
        return self.emit(ops.logical_and(is_beyond, self.emit(ops.logical_and(*solid))))

    def _area_of(self, corners: list[Any]) -> Any:
        extents = [self.emit(ops.subtract(corners[2 + axis], corners[axis])) for axis in (0, 1)]
        return self.emit(ops.multiply(*extents))

    def _results(self, places: Any, kinds: Any, values: Any) -> Any:
        """Return boxes [1, limit, 4], classes and scores [1, limit], and how many there are [1]; 0 behind these."""
        limit, zero = self._options.max_detections, float_const(0.0)
        found = self.emit(ops.greater(values, float_const(_NOTHING)))
        corners = [self.emit(ops.take(corner, places, axis=0, mode="clip")) for corner in self._corners]
        columns = [self.emit(ops.reshape(self.emit(ops.where(found, corner, zero)), [1, limit, 1])) for corner in corners]
        rows = [self.emit(ops.reshape(self.emit(ops.where(found, value, zero)), [1, limit])) for value in (kinds, values)]
        number = self.emit(ops.sum(self.emit(ops.astype(found, "float32")), axis=[0], keepdims=True))
        return relax.Tuple([self.emit(ops.concat(columns, 2)), *rows, number])
