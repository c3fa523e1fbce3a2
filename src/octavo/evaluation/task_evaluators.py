"""Metrics of outputs by task: classes, boxes, masks, images. Each evaluator adds sample by sample and keeps no arrays.

An evaluator compares the candidate with the reference, and both with labels where there are some. It runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ..errors import DataError
from ..numerics.arrays import Array
from ..numerics.statistics.detection import Detections, average_precision
from ..numerics.statistics.error_sums import ErrorSums
from .boxes import FORMS, Size

_TOP = 5
_SHARES_OFF = 0.01
"""By how much scores that are shares of one may miss one in sum."""
SURE_SCORE = 0.3
"""Boxes of the reference that score at least this stand for objects where there are no labels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """What both models are worth by labels: `drop` is what the candidate loses. A share in [0; 1], or what `unit` says."""

    name: str
    reference: float
    candidate: float
    unit: str = ""
    lower_is_better: bool = False

    @property
    def drop(self) -> float:
        """By how much the candidate is worse."""
        return (self.candidate - self.reference) if self.lower_is_better else (self.reference - self.candidate)


@dataclass(frozen=True, kw_only=True, slots=True)
class Decisions:
    """How often both decide the same, in [0; 1]; None where that cannot be said.

    Parameters
    ----------
    agreement
        Classification: the share of samples of the same class. Detection: average precision of the candidate's boxes where the
        reference's are the objects. Masks: mean intersection over union. Sequences: the share of steps of the same class.
        Language: the share of steps of the same next token.
    top5_agreement
        Share of samples whose class is among the candidate's first five.
    what
        What `agreement` is of: "class", "steps", "next token", "boxes", "mask".
    kl_divergence
        Language: of the candidate's shares of the next token from the reference's, in nats a token.
    """

    agreement: float | None = None
    top5_agreement: float | None = None
    what: str = ""
    kl_divergence: float | None = None


class TaskEvaluator(Protocol):
    """Reads outputs sample by sample."""

    def add(self, reference: Sequence[Array], candidate: Sequence[Array]) -> None:
        """Take the outputs that it reads, of one run."""
        ...

    def decisions(self) -> Decisions:
        """Return how often both decide the same."""
        ...

    def metric(self) -> Metric | None:
        """Return what labels say; None without them."""
        ...


@dataclass(slots=True)
class ClassificationEvaluator:
    """Scores of classes along the last axis that has several; one score per sample in [0; 1] decides at a half.

    Parameters
    ----------
    labels
        Class of each sample; None where unknown.
    first_class
        Added to labels: 1 of a network whose class 0 is the background, of labels from 0.
    """

    labels: Array | None = None
    first_class: int = 0
    classes: list[tuple[Array, Array]] = field(default_factory=list[tuple[Array, Array]])
    """Of each run the first classes of both, [samples, 5 or fewer]."""
    _low: float = 0.0
    _high: float = 0.0

    def add(self, reference: Sequence[Array], candidate: Sequence[Array]) -> None:
        """See TaskEvaluator."""
        rows = [_score_rows(value) for value in (reference[0], candidate[0])]
        if rows[0].shape[1] == 1:
            self._low, self._high = min(self._low, float(rows[0].min())), max(self._high, float(rows[0].max()))
            rows = [np.concatenate([1 - each.astype(np.float64), each], axis=1) for each in rows]
        first, second = (np.argsort(-each.astype(np.float64), axis=1, kind="stable")[:, :_TOP] for each in rows)
        self.classes.append((first, second))

    def decisions(self) -> Decisions:
        """See TaskEvaluator."""
        if not self.classes or self._low < 0 or self._high > 1:
            return Decisions()
        first, second = self._joined()
        top5 = float((second == first[:, :1]).any(axis=1).mean()) if first.shape[1] == _TOP else None
        return Decisions(agreement=float((first[:, 0] == second[:, 0]).mean()), top5_agreement=top5, what="class")

    def metric(self) -> Metric | None:
        """See TaskEvaluator."""
        if self.labels is None:
            return None
        first, second = self._joined()
        if self.labels.shape != (len(first),) or self.labels.dtype.kind not in "iu":
            raise DataError(
                f"labels must be whole numbers, one for each of the {len(first)} samples, got {self.labels.dtype} of shape "
                f"{list(self.labels.shape)}"
            )
        wanted = self.labels.astype(np.int64) + self.first_class
        return Metric(
            name="top-1", reference=float((first[:, 0] == wanted).mean()), candidate=float((second[:, 0] == wanted).mean())
        )

    def top5(self) -> tuple[float, float] | None:
        """Return how often each model has the label among its first five; None without labels, and of five classes or fewer."""
        if self.labels is None:
            return None
        first, second = self._joined()
        wanted = (self.labels.astype(np.int64) + self.first_class)[:, None]
        return None if first.shape[1] < _TOP else (_share(first, wanted), _share(second, wanted))

    def shifted(self) -> int:
        """Return the `first_class` among this one and its neighbours with which the reference is most often right."""
        assert self.labels is not None
        first, wanted = self._joined()[0][:, 0], self.labels.astype(np.int64)
        return max((0, 1, -1), key=lambda more: float((first == wanted + self.first_class + more).mean())) + self.first_class

    def _joined(self) -> tuple[Array, Array]:
        return np.concatenate([each[0] for each in self.classes]), np.concatenate([each[1] for each in self.classes])


def _share(classes: Array, wanted: Array) -> float:
    return float((classes == wanted).any(axis=1).mean())


@dataclass(slots=True)
class SequenceEvaluator:
    """Scores of classes at each step of a sequence, [samples, steps, classes]: characters of a line, tokens, notes.

    Agreement on a class that the reference names in most steps (CTC's blank, the background) would say little: where both models
    name that one the step doesn't count.

    Parameters
    ----------
    labels
        Class of each step, [samples, steps of the longest]; below 0 where there is none. None where unknown.
    is_asked
        Whether the task is named: else only scores that are shares of one (of a softmax, or its logarithm) are taken for classes.
    """

    labels: Array | None = None
    first_class: int = 0
    is_asked: bool = False
    classes: list[tuple[Array, Array]] = field(default_factory=list[tuple[Array, Array]])
    """Of each run the first classes of both, [samples, steps, 5 or fewer]."""
    _are_shares: bool = True

    def add(self, reference: Sequence[Array], candidate: Sequence[Array]) -> None:
        """See TaskEvaluator."""
        rows = [value[0].astype(np.float64) for value in (reference, candidate)]
        self._are_shares = self._are_shares and _are_shares(rows[0])
        first, second = (np.argsort(-each, axis=-1, kind="stable")[..., :_TOP] for each in rows)
        self.classes.append((first, second))

    def decisions(self) -> Decisions:
        """See TaskEvaluator."""
        if not self.classes or not (self.is_asked or self._are_shares):
            return Decisions()
        first, second = (
            np.concatenate([each.reshape(-1, each.shape[-1]) for each in of]) for of in zip(*self.classes, strict=True)
        )
        usual, count = max(zip(*np.unique(first[:, 0], return_counts=True), strict=True), key=lambda pair: int(pair[1]))
        if 2 * int(count) > len(first):
            counted = (first[:, 0] != usual) | (second[:, 0] != usual)
            first, second = first[counted], second[counted]
        if not len(first):
            return Decisions(agreement=1.0, what="steps")
        top5 = float((second == first[:, :1]).any(axis=1).mean()) if first.shape[1] == _TOP else None
        return Decisions(agreement=float((first[:, 0] == second[:, 0]).mean()), top5_agreement=top5, what="steps")

    def metric(self) -> Metric | None:
        """See TaskEvaluator."""
        if self.labels is None:
            return None
        longest = max(each.shape[1] for each, _ in self.classes)
        first, second = (_padded([each[..., 0] for each in of], longest) for of in zip(*self.classes, strict=True))
        if self.labels.shape != first.shape or self.labels.dtype.kind not in "iu":
            raise DataError(
                f"labels must be whole numbers, one for each step, {list(first.shape)}, got {self.labels.dtype} of shape "
                f"{list(self.labels.shape)}"
            )
        wanted = self.labels.astype(np.int64)
        known, wanted = (wanted >= 0) & (first >= 0), wanted + self.first_class
        if not known.any():
            raise DataError("no step has a label: all are below 0")
        return Metric(
            name="top-1 of steps",
            reference=float((first == wanted)[known].mean()),
            candidate=float((second == wanted)[known].mean()),
        )


def _padded(runs: Sequence[Array], steps: int) -> Array:
    """Return the classes of all runs, [samples, steps]; -1 behind the end of those that have fewer."""
    return np.concatenate([np.pad(each, ((0, 0), (0, steps - each.shape[1])), constant_values=-1) for each in runs])


def _are_shares(rows: Array) -> bool:
    """Return whether scores are shares of one, or the logarithms of such."""
    shares = rows if (rows >= 0).all() else np.exp(np.minimum(rows, 0))
    return bool((rows.min(initial=0) >= 0 or rows.max(initial=0) <= 0) and (np.abs(shares.sum(axis=-1) - 1) <= _SHARES_OFF).all())


def has_steps(shape: tuple[int, ...]) -> bool:
    """Return whether an output of this shape may be scores at each step of a sequence."""
    return len(shape) == 3 and min(shape[1:]) > 1


def _score_rows(value: Array) -> Array:
    """Return scores as [samples, classes]."""
    wide = [axis for axis in range(1, value.ndim) if value.shape[axis] > 1]
    last = wide[-1] if wide else value.ndim - 1
    return np.moveaxis(value, last, -1).reshape(-1, value.shape[last]) if value.ndim else value.reshape(1, 1)


def has_scores(shape: tuple[int, ...]) -> bool:
    """Return whether an output of this shape may be a row of scores for each sample."""
    return len(shape) >= 2 and sum(size > 1 for size in shape[1:]) <= 1


@dataclass(slots=True)
class DetectionEvaluator:
    """Boxes of a detector.

    Parameters
    ----------
    form
        One of `boxes.FORMS`.
    size
        What the network takes, in pixels.
    labels
        Rows of sample, class, left, top, right and bottom, in pixels; None where unknown.
    """

    form: str
    size: Size
    labels: Array | None = None
    _found: tuple[list[Detections], list[Detections]] = field(default_factory=lambda: ([], []))

    def add(self, reference: Sequence[Array], candidate: Sequence[Array]) -> None:
        """See TaskEvaluator."""
        for kept, outputs in zip(self._found, (reference, candidate), strict=True):
            kept.append(FORMS[self.form](outputs, self.size))

    def decisions(self) -> Decisions:
        """See TaskEvaluator."""
        objects = [_objects(found) for found in self._found[0]]
        if not any(map(len, objects)):
            return Decisions()
        return Decisions(agreement=average_precision(self._found[1], objects), what="boxes")

    def metric(self) -> Metric | None:
        """See TaskEvaluator."""
        if self.labels is None:
            return None
        if self.labels.ndim != 2 or self.labels.shape[1] != 6:
            raise DataError(
                "labels of a detector must be rows of sample, class, left, top, right and bottom, in pixels, got shape "
                f"{list(self.labels.shape)}"
            )
        count = len(self._found[0])
        objects = [self.labels[self.labels[:, 0] == number, 1:] for number in range(count)]
        first, second = (average_precision(found, objects) for found in self._found)
        return Metric(name="AP50", reference=first, candidate=second)


def _objects(found: Detections) -> Array:
    sure = found.scores >= SURE_SCORE
    return np.concatenate([found.classes[sure, None], found.boxes[sure]], axis=1).astype(np.float64)


@dataclass(slots=True)
class SegmentationEvaluator:
    """A class for each pixel: scores of classes along the channels, one score of a single class, or the classes as integers.

    Parameters
    ----------
    labels
        Class of each pixel, [samples, height, width]; None where unknown.
    """

    labels: Array | None = None
    _runs: int = 0
    _pair: _Overlap = field(default_factory=lambda: _Overlap())
    _true: tuple[_Overlap, _Overlap] = field(default_factory=lambda: (_Overlap(), _Overlap()))

    def add(self, reference: Sequence[Array], candidate: Sequence[Array]) -> None:
        """See TaskEvaluator."""
        real, found = reference[0], candidate[0]
        is_probability = real.dtype.kind == "f" and float(real.min()) >= 0 and float(real.max()) <= 1
        first, second = (_pixel_classes(value, 0.5 if is_probability else 0.0) for value in (real, found))
        self._pair.add(first, second)
        if self.labels is not None:
            wanted = self.labels[self._runs : self._runs + len(first)]
            if wanted.shape != first.shape:
                raise DataError(f"labels of masks must have shape [samples,{','.join(map(str, first.shape[1:]))}]")
            for overlap, classes in zip(self._true, (first, second), strict=True):
                overlap.add(wanted, classes)
        self._runs += len(first)

    def decisions(self) -> Decisions:
        """See TaskEvaluator."""
        return Decisions(agreement=self._pair.mean, what="mask")

    def metric(self) -> Metric | None:
        """See TaskEvaluator."""
        if self.labels is None:
            return None
        return Metric(name="mean IoU", reference=self._true[0].mean, candidate=self._true[1].mean)


@dataclass(slots=True)
class _Overlap:
    """Pixels of each class in both of two masks, and in either."""

    shared: dict[int, int] = field(default_factory=dict[int, int])
    united: dict[int, int] = field(default_factory=dict[int, int])

    def add(self, wanted: Array, found: Array) -> None:
        for label in np.union1d(wanted, found):
            key = int(label)
            first, second = wanted == label, found == label
            self.shared[key] = self.shared.get(key, 0) + int((first & second).sum())
            self.united[key] = self.united.get(key, 0) + int((first | second).sum())

    @property
    def mean(self) -> float:
        return float(np.mean([self.shared[key] / self.united[key] for key in self.united])) if self.united else 0.0


def _pixel_classes(value: Array, threshold: float) -> Array:
    """Return the class of each pixel, [samples, height, width]."""
    if value.dtype.kind in "iu" or value.ndim == 3:
        classes = value if value.dtype.kind in "iu" else value > threshold
        return classes.reshape(value.shape[0], *[size for size in value.shape[1:] if size > 1])
    axis = channel_axis_of(value.shape)
    return (np.take(value, 0, axis) > threshold).astype(np.int64) if value.shape[axis] == 1 else value.argmax(axis=axis)


def channel_axis_of(shape: tuple[int, ...]) -> int:
    """Return where the channels of [n, c, h, w] or [n, h, w, c] lie: the smaller of both places."""
    return 1 if shape[1] <= shape[3] else 3


@dataclass(slots=True)
class ImageEvaluator:
    """Pictures; labels are the pictures that they should be."""

    labels: Array | None = None
    _runs: int = 0
    _true: tuple[ErrorSums, ErrorSums] = field(default_factory=lambda: (ErrorSums(), ErrorSums()))

    def add(self, reference: Sequence[Array], candidate: Sequence[Array]) -> None:
        """See TaskEvaluator."""
        if self.labels is not None:
            count = reference[0].shape[0]
            wanted = self.labels[self._runs : self._runs + count]
            if wanted.shape != reference[0].shape:
                raise DataError(f"labels of pictures must have shape [samples,{','.join(map(str, reference[0].shape[1:]))}]")
            for sums, made in zip(self._true, (reference[0], candidate[0]), strict=True):
                sums.add(wanted, made)
            self._runs += count

    def decisions(self) -> Decisions:
        """See TaskEvaluator."""
        return Decisions()

    def metric(self) -> Metric | None:
        """See TaskEvaluator."""
        if self.labels is None:
            return None
        return Metric(name="PSNR", reference=self._true[0].psnr_db, candidate=self._true[1].psnr_db, unit=" dB")
