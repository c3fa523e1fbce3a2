"""What the outputs of detectors mean: boxes in pixels and scores by class, for the forms that detectors are exported in.

It evaluates nothing: suppression and average precision are in `numerics/statistics/detection.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..errors import DataError
from ..numerics.arrays import Array
from ..numerics.statistics.detection import Detections, detections

Size = tuple[int, int]
"""Height and width of the picture that the network takes, in pixels."""
_STRIDES = (8, 16, 32)
"""Of the grids that YOLOX's rows come from."""


def decode_yolox(raw: Array, size: Size) -> tuple[Array, Array]:
    """Return boxes [anchors, 4] and scores [anchors, classes] of the raw [anchors, 5 + classes]: places in grids, objectness."""
    grids: list[Array] = []
    for stride in _STRIDES:
        rows, columns = size[0] // stride, size[1] // stride
        y, x = np.divmod(np.arange(rows * columns), columns)
        grids.append(np.stack([x, y, np.full_like(x, stride)], axis=1))
    grid = np.concatenate(grids)
    if raw.ndim != 2 or len(grid) != len(raw) or raw.shape[1] < 6:
        raise DataError(
            f"an output of shape {list(raw.shape)} is none of YOLOX for {size[0]}x{size[1]} pixels, which has {len(grid)} rows "
            "of 5 numbers and one for each class; choose another task"
        )
    values, stride = raw.astype(np.float64), grid[:, 2:]
    centres, sizes = (values[:, :2] + grid[:, :2]) * stride, np.exp(values[:, 2:4]) * stride
    return _corners(centres, sizes), values[:, 4:5] * values[:, 5:]


def _yolox(outputs: Sequence[Array], size: Size) -> Detections:
    return detections(*decode_yolox(_only(outputs), size))


def _yolov5(outputs: Sequence[Array], size: Size) -> Detections:
    values = _only(outputs).astype(np.float64)
    return detections(_corners(values[:, :2], values[:, 2:4]), values[:, 4:5] * values[:, 5:])


def _yolov8(outputs: Sequence[Array], size: Size) -> Detections:
    values = _only(outputs).astype(np.float64).T
    return detections(_corners(values[:, :2], values[:, 2:4]), values[:, 4:])


def _ssd(outputs: Sequence[Array], size: Size) -> Detections:
    """Of TFLite_Detection_PostProcess: boxes as top, left, bottom, right, of 1; classes; scores; how many count."""
    if len(outputs) != 4 or outputs[0].ndim != 3 or outputs[0].shape[2] != 4:
        raise DataError(f"detection:ssd reads 4 outputs, boxes [1,n,4] first, got {[list(each.shape) for each in outputs]}")
    count = int(outputs[3].reshape(-1)[0])
    boxes = outputs[0][0, :count][:, [1, 0, 3, 2]].astype(np.float64) * np.array([size[1], size[0], size[1], size[0]])
    classes, scores = (each[0, :count].astype(np.float64) for each in outputs[1:3])
    return Detections(boxes=boxes, classes=np.rint(classes).astype(np.int64), scores=scores)


def _only(outputs: Sequence[Array]) -> Array:
    first = outputs[0]
    if first.ndim != 3 or first.shape[0] != 1:
        raise DataError(f"a detector's output must have shape [1,rows,columns], got {list(first.shape)}; choose another task")
    return first[0]


def _corners(centres: Array, sizes: Array) -> Array:
    return np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=1)


FORMS: dict[str, Callable[[Sequence[Array], Size], Detections]] = {
    "yolox": _yolox,
    "yolov5": _yolov5,
    "yolov8": _yolov8,
    "ssd": _ssd,
}
"""Readers of all outputs of one image: raw YOLOX, centres and sizes with objectness [1,n,5 + classes], the same without it
[1,4 + classes,n], and what TFLite's op for detectors gives."""
