"""Which evaluator reads which output: what a task says, or the shapes of outputs where none is named. It evaluates nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from ..errors import DataError
from ..numerics.arrays import Array
from ..runtime.shapes import typical
from ..runtime.size import names_in
from .boxes import FORMS, Size
from .inference_model import Port
from .language import LOGITS, LanguageEvaluator, TokenWindows
from .task_evaluators import (
    ClassificationEvaluator,
    DetectionEvaluator,
    ImageEvaluator,
    SegmentationEvaluator,
    SequenceEvaluator,
    TaskEvaluator,
    channel_axis_of,
    has_scores,
    has_steps,
)

_DETECTIONS = tuple(f"detection:{form}" for form in FORMS)
TASKS = ("auto", "classification", "keywords", "sequence", "language", *_DETECTIONS, "segmentation", "image", "tensor")
"""Keywords are classes; of a sequence each step has one; language has a next token at each step; a detector's form is how its
outputs are to be read; of a "tensor" errors alone are said."""
_MIN_SIDE = 8
"""Of what is taken for a picture or a mask without being asked."""


def evaluators_of(
    task: str,
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    labels: Array | None,
    first_class: int,
    carried: Collection[str] = (),
) -> dict[tuple[int, ...], TaskEvaluator]:
    """Return the evaluators, by the places of the outputs that they read. DataError for an unknown task, and labels of no output.

    `carried` are outputs that the next run reads: they are not evaluated unless a task says so.
    """
    if task not in TASKS:
        raise DataError(f"unknown task {task!r}: choose from {', '.join(TASKS)}")
    if task == "language":
        if labels is not None:
            raise DataError("of a language model the tokens themselves are the labels: leave labels out")
        place = _place_of_logits(outputs)
        windows = TokenWindows(specs=[port.spec for port in inputs])
        return {(place,): LanguageEvaluator(windows=windows, vocabulary=outputs[place].shape[2])}
    if task.startswith("detection:"):
        evaluator = DetectionEvaluator(form=task.partition(":")[2], size=_picture_size(inputs), labels=labels)
        return {tuple(range(len(outputs))): evaluator}
    inputs, outputs = _typical(inputs), _typical(outputs)
    if task in ("auto", "tensor"):
        found = (
            {}
            if task == "tensor"
            else {(place,): None if port.name in carried else _guessed(port, inputs) for place, port in enumerate(outputs)}
        )
        evaluators: dict[tuple[int, ...], TaskEvaluator] = {
            places: evaluator for places, evaluator in found.items() if evaluator is not None
        }
        first = next(iter(evaluators.values()), None)
        if labels is not None:
            if not isinstance(first, ClassificationEvaluator | SequenceEvaluator | SegmentationEvaluator | ImageEvaluator):
                raise DataError(
                    f"labels are given and no output is known to be what they are of: name a task of {', '.join(TASKS[1:])}"
                )
            first.labels = labels
            if isinstance(first, ClassificationEvaluator | SequenceEvaluator):
                first.first_class = first_class
        return evaluators
    if task == "segmentation":
        return {(0,): SegmentationEvaluator(labels=labels)}
    if task == "sequence":
        return {(_place_of_steps(outputs),): SequenceEvaluator(labels=labels, first_class=first_class, is_asked=True)}
    if task == "image":
        return {(0,): ImageEvaluator(labels=labels)}
    return {(0,): ClassificationEvaluator(labels=labels, first_class=first_class)}


def _place_of_logits(outputs: Sequence[Port]) -> int:
    """Return the place of the scores of tokens: the output of that name, or the only one of three dimensions."""
    fit = [place for place, port in enumerate(outputs) if len(port.shape) == 3 and not names_in(port.shape[2:])]
    place = next((place for place in fit if outputs[place].name == LOGITS), fit[0] if len(fit) == 1 else None)
    if place is None:
        shapes = ", ".join(f"{port.name} {list(port.shape)}" for port in outputs)
        raise DataError(f"a language model has an output {LOGITS} of [samples, steps, tokens]; this model has {shapes}")
    return place


def _place_of_steps(outputs: Sequence[Port]) -> int:
    place = next((place for place, port in enumerate(outputs) if has_steps(port.shape)), None)
    if place is None:
        shapes = ", ".join(f"{port.name} {list(port.shape)}" for port in outputs)
        raise DataError(f"a sequence has outputs of [samples, steps, classes]; this model has {shapes}: choose another task")
    return place


def _guessed(
    port: Port, inputs: Sequence[Port]
) -> ClassificationEvaluator | SequenceEvaluator | SegmentationEvaluator | ImageEvaluator | None:
    if port.dtype.startswith(("float", "bfloat")) or port.params is not None:
        if has_scores(port.shape):
            return ClassificationEvaluator()
        if has_steps(port.shape):
            return SequenceEvaluator()
        size = _spatial(port.shape)
        if size is not None and min(size) >= _MIN_SIDE:
            pictures = [each for each in inputs if len(each.shape) == 4]
            channels = port.shape[channel_axis_of(port.shape)]
            if pictures and channels == pictures[0].shape[channel_axis_of(pictures[0].shape)]:
                return ImageEvaluator()
            if pictures and channels > 1 and size == _spatial(pictures[0].shape):
                return SegmentationEvaluator()
    return None


def _spatial(shape: tuple[int, ...]) -> Size | None:
    if len(shape) != 4:
        return None
    height, width = (size for axis, size in enumerate(shape) if axis not in (0, channel_axis_of(shape)))
    return height, width


def _typical(ports: Sequence[Port]) -> list[Port]:
    """Return ports with numbers in place of open dimensions, which is what is guessed by."""
    return [replace(port, shape=tuple(map(typical, port.shape))) for port in ports]


def _picture_size(inputs: Sequence[Port]) -> Size:
    sizes = [size for port in inputs if (size := _spatial(port.shape)) is not None]
    if not sizes:
        raise DataError("a detector takes a picture, [n,c,h,w] or [n,h,w,c]; this model takes none: choose another task")
    if names_in(sizes[0]):
        raise DataError(f"boxes are in pixels of a picture of one size, and the model takes {list(sizes[0])}: fix it by --size")
    return sizes[0]
