"""Which judge reads which output: what a task says, or what the shapes of outputs say where none is named. It judges nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..errors import DataError
from ..numerics.arrays import Array
from .boxes import FORMS, Size
from .judges import BoxJudge, ClassJudge, ImageJudge, Judge, MaskJudge, StepJudge, channel_axis_of, has_scores, has_steps
from .runnable import Port

_DETECTIONS = tuple(f"detection:{form}" for form in FORMS)
TASKS = ("auto", "classification", "keywords", "sequence", *_DETECTIONS, "segmentation", "image", "tensor")
"""Keywords are classes; of a sequence each step has one; a detector's form is how its outputs are to be read; of a "tensor"
errors alone are said."""
_MIN_SIDE = 8
"""Of what is taken for a picture or a mask without being asked."""


def judges_of(
    task: str,
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    labels: Array | None,
    first_class: int,
    carried: Collection[str] = (),
) -> dict[tuple[int, ...], Judge]:
    """Return who judges, by the places of the outputs that they read. DataError for an unknown task, and labels for nobody.

    `carried` are outputs that the next run reads: nobody decides by those unless a task says so.
    """
    if task not in TASKS:
        raise DataError(f"unknown task {task!r}: choose from {', '.join(TASKS)}")
    if task.startswith("detection:"):
        judge = BoxJudge(form=task.partition(":")[2], size=_picture_size(inputs), labels=labels)
        return {tuple(range(len(outputs))): judge}
    if task in ("auto", "tensor"):
        found = (
            {}
            if task == "tensor"
            else {(place,): None if port.name in carried else _guessed(port, inputs) for place, port in enumerate(outputs)}
        )
        judged: dict[tuple[int, ...], Judge] = {places: judge for places, judge in found.items() if judge is not None}
        first = next(iter(judged.values()), None)
        if labels is not None:
            if not isinstance(first, ClassJudge | StepJudge | MaskJudge | ImageJudge):
                raise DataError(
                    f"labels are given and no output is known to be what they are of: name a task of {', '.join(TASKS[1:])}"
                )
            first.labels = labels
            if isinstance(first, ClassJudge | StepJudge):
                first.first_class = first_class
        return judged
    if task == "segmentation":
        return {(0,): MaskJudge(labels=labels)}
    if task == "sequence":
        return {(_place_of_steps(outputs),): StepJudge(labels=labels, first_class=first_class, is_asked=True)}
    if task == "image":
        return {(0,): ImageJudge(labels=labels)}
    return {(0,): ClassJudge(labels=labels, first_class=first_class)}


def _place_of_steps(outputs: Sequence[Port]) -> int:
    place = next((place for place, port in enumerate(outputs) if has_steps(port.shape)), None)
    if place is None:
        shapes = ", ".join(f"{port.name} {list(port.shape)}" for port in outputs)
        raise DataError(f"a sequence has outputs of [samples, steps, classes]; this model has {shapes}: choose another task")
    return place


def _guessed(port: Port, inputs: Sequence[Port]) -> ClassJudge | StepJudge | MaskJudge | ImageJudge | None:
    if port.dtype.startswith(("float", "bfloat")) or port.params is not None:
        if has_scores(port.shape):
            return ClassJudge()
        if has_steps(port.shape):
            return StepJudge()
        size = _spatial(port.shape)
        if size is not None and min(size) >= _MIN_SIDE:
            pictures = [each for each in inputs if len(each.shape) == 4]
            channels = port.shape[channel_axis_of(port.shape)]
            if pictures and channels == pictures[0].shape[channel_axis_of(pictures[0].shape)]:
                return ImageJudge()
            if pictures and channels > 1 and size == _spatial(pictures[0].shape):
                return MaskJudge()
    return None


def _spatial(shape: tuple[int, ...]) -> Size | None:
    if len(shape) != 4:
        return None
    height, width = (size for axis, size in enumerate(shape) if axis not in (0, channel_axis_of(shape)))
    return height, width


def _picture_size(inputs: Sequence[Port]) -> Size:
    sizes = [size for port in inputs if (size := _spatial(port.shape)) is not None]
    if not sizes:
        raise DataError("a detector takes a picture, [n,c,h,w] or [n,h,w,c]; this model takes none: choose another task")
    return sizes[0]
