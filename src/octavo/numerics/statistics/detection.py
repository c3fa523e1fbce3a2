"""Boxes that a detector found against those that are there: suppression, and average precision. NumPy only.

It knows no detector: what a network's outputs mean is for others to decode. Boxes are rows of left, top, right, bottom in pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays import Array

MIN_SCORE = 0.01
"""From where on a score makes a detection: the low end of the precision-recall curve."""
MAX_OVERLAP = 0.65
"""Overlap from where on the lower of two scores of a class goes."""
MATCHED_FROM = 0.5
"""Overlap from where on a detection is an object."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Detections:
    """What was found in one image: boxes [n, 4], the class of each and its score, [n]."""

    boxes: Array
    classes: Array
    scores: Array


def overlaps(box: Array, others: Array) -> Array:
    """Return intersection over union of one box with each of the others."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    shared = np.prod(np.maximum(sides, 0), axis=1)
    united = np.prod(box[2:] - box[:2]) + np.prod(others[:, 2:] - others[:, :2], axis=1) - shared
    return np.divide(shared, united, out=np.zeros_like(shared, np.float64), where=united > 0)


def suppressed(boxes: Array, scores: Array) -> list[int]:
    """Return which boxes of one class stay, the best first."""
    left = np.argsort(-scores, kind="stable")
    kept: list[int] = []
    while len(left):
        best, left = left[0], left[1:]
        kept.append(int(best))
        left = left[overlaps(boxes[best], boxes[left]) < MAX_OVERLAP]
    return kept


def detections(boxes: Array, scores: Array) -> Detections:
    """Return what boxes [n, 4] with scores [n, classes] detect: per class those that `suppressed` leaves."""
    found: list[tuple[Array, Array, Array]] = []
    for label in np.flatnonzero((scores > MIN_SCORE).any(axis=0)):
        candidates = np.flatnonzero(scores[:, label] > MIN_SCORE)
        kept = candidates[suppressed(boxes[candidates], scores[candidates, label])]
        found.append((boxes[kept], np.full(len(kept), label), scores[kept, label]))
    if not found:
        return Detections(boxes=np.zeros((0, 4)), classes=np.zeros(0, np.int64), scores=np.zeros(0))
    parts = [np.concatenate(each) for each in zip(*found, strict=True)]
    return Detections(boxes=parts[0], classes=parts[1], scores=parts[2])


def average_precision(found: Sequence[Detections], objects: Sequence[Array]) -> float:
    """Return the mean over the classes that `objects` has of the area below the precision-recall curve.

    Parameters
    ----------
    found
        Of each image.
    objects
        What is in each image: rows of class, left, top, right and bottom.
    """
    classes = sorted({int(label) for rows in objects for label in rows[:, 0]})
    return float(np.mean([_of_class(label, found, objects) for label in classes])) if classes else 0.0


def _of_class(label: int, found: Sequence[Detections], objects: Sequence[Array]) -> float:
    wanted = [rows[rows[:, 0] == label, 1:] for rows in objects]
    hits: list[tuple[float, bool]] = []
    for image, there in zip(found, wanted, strict=True):
        chosen = image.classes == label
        free = np.ones(len(there), bool)
        for box, score in zip(image.boxes[chosen], image.scores[chosen], strict=True):
            matches = np.where(free, overlaps(box, there), 0.0) if len(there) else np.zeros(1)
            is_hit = bool(matches.max() >= MATCHED_FROM)
            if is_hit:
                free[matches.argmax()] = False
            hits.append((float(score), is_hit))
    ranked = np.cumsum([hit for _, hit in sorted(hits, key=lambda each: -each[0])])
    if not len(ranked):
        return 0.0
    precision = np.maximum.accumulate((ranked / np.arange(1, len(ranked) + 1))[::-1])[::-1]
    recall_gained = np.diff(ranked, prepend=0) / sum(len(rows) for rows in wanted)
    return float(np.sum(precision * recall_gained))
