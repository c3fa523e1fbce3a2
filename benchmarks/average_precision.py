"""Average precision of YOLOX's raw output against labelled boxes, at 50% overlap.

It must not depend on where the output comes from: a float model, or an integer one.
"""

from __future__ import annotations

import numpy as np

STRIDES = (8, 16, 32)
LEAST_SCORE = 0.01
"""From where on an anchor counts as a detection: the low end of the precision-recall curve."""
SUPPRESSED_FROM = 0.65
"""Overlap from where on the lower of two scores of a class goes; the network's own setting."""
MATCHED_FROM = 0.5


def decode(raw: np.ndarray, *, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return boxes [anchors, left top right bottom] in pixels and scores [anchors, classes] of the raw [anchors, 5 + classes]."""
    grids: list[np.ndarray] = []
    for stride in STRIDES:
        y, x = np.divmod(np.arange((size // stride) ** 2), size // stride)
        grids.append(np.stack([x, y, np.full_like(x, stride)], axis=1))
    grid = np.concatenate(grids)
    stride = grid[:, 2:]
    centres, sizes = (raw[:, :2] + grid[:, :2]) * stride, np.exp(raw[:, 2:4]) * stride
    return np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=1), raw[:, 4:5] * raw[:, 5:]


def overlaps(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return intersection over union of one box with each of the others."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    shared = np.prod(np.maximum(sides, 0), axis=1)
    return shared / (np.prod(box[2:] - box[:2]) + np.prod(others[:, 2:] - others[:, :2], axis=1) - shared)


def suppressed(boxes: np.ndarray, scores: np.ndarray) -> list[int]:
    """Return which boxes of one class stay, the best first."""
    left = list(np.argsort(-scores, kind="stable"))
    kept: list[int] = []
    while left:
        best, *rest = left
        kept.append(int(best))
        left = [
            other for other, overlap in zip(rest, overlaps(boxes[best], boxes[rest]), strict=True) if overlap < SUPPRESSED_FROM
        ]
    return kept


def average_precision(raw: np.ndarray, truth: list[np.ndarray], *, size: int) -> float:
    """Return the mean over the classes that `truth` has of the area below the precision-recall curve.

    Parameters
    ----------
    raw
        [images, anchors, 5 + classes] as the network gives it.
    truth
        For each image rows of class, left, top, right and bottom, in pixels.
    """
    decoded = [decode(image.astype(np.float64), size=size) for image in raw]
    classes = sorted({int(label) for rows in truth for label in rows[:, 0]})
    return float(np.mean([_of_class(label, decoded, truth) for label in classes]))


def _of_class(label: int, decoded: list[tuple[np.ndarray, np.ndarray]], truth: list[np.ndarray]) -> float:
    wanted = [rows[rows[:, 0] == label, 1:] for rows in truth]
    hits: list[tuple[float, bool]] = []
    for (boxes, scores), objects in zip(decoded, wanted, strict=True):
        candidates = np.flatnonzero(scores[:, label] > LEAST_SCORE)
        boxes, scores = boxes[candidates], scores[candidates, label]
        free = np.ones(len(objects), bool)
        for index in suppressed(boxes, scores):
            matches = np.where(free, overlaps(boxes[index], objects), 0.0) if len(objects) else np.zeros(1)
            is_hit = bool(matches.max() >= MATCHED_FROM)
            if is_hit:
                free[matches.argmax()] = False
            hits.append((float(scores[index]), is_hit))
    found = np.cumsum([hit for _, hit in sorted(hits, key=lambda each: -each[0])])
    if not len(found):
        return 0.0
    precision = np.maximum.accumulate((found / np.arange(1, len(found) + 1))[::-1])[::-1]
    recall_gained = np.diff(found, prepend=0) / sum(len(objects) for objects in wanted)
    return float(np.sum(precision * recall_gained))
