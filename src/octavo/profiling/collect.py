"""Driving a stream of batches through an accumulator: checks, cuts and numbers the samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from ..errors import DataError
from ..ir.graph.inputs import input_specs
from ..ir.graph.model import Model
from ..runtime.inputs import InputSpec, split_batch
from .accumulator import Accumulator, Attach
from .checkpoint import Checkpoint, check_resumable
from .instrument import Instrumented
from .kept_samples import smallest
from .model_profile import Profile


def collect(
    model: Model,
    instrumented: Instrumented,
    attach: Attach,
    batches: Any,
    *,
    numbers: Iterable[int] | None = None,
    preprocessing: str = "",
    keep_samples: int = 0,
    checkpoint: Checkpoint | None = None,
    resume: Profile | None = None,
    progress: Callable[[int], None] | None = None,
) -> Profile:
    """Drive batches through an instrumented model and return its profile.

    Parameters
    ----------
    batches
        An iterable of arrays or {input name: array}; a single array or dict is one batch. A batch whose first dimension is a
        multiple of the model's is cut into several runs.
    numbers
        The samples' numbers in the whole data set, where `batches` are a part of it; 0, 1, 2 ... by default. They say in which
        sample a tensor first held NaN or infinity.
    preprocessing
        What was done to the samples, for the profile to say.
    keep_samples
        How many of the samples the profile keeps at most.
    checkpoint
        Where to keep the profile of the samples so far.
    resume
        What a run over the same samples, from the first on, kept: the samples in it are skipped.
    progress
        Called after each run with the number of samples so far.

    Raises
    ------
    DataError
        Naming the batch: wrong shape or dtype, missing or unknown input, no batches at all, more samples than numbers, fewer
        samples than `resume` holds.
    ProfileError
        `resume` belongs to another model, or observes other tensors; `checkpoint` can't be written.
    """
    stream = checked_batches(batches)
    accumulator = Accumulator(model, instrumented, attach, keep_samples)
    rows = accumulator.rows_per_run
    empty = next((spec for spec in input_specs(model) if 0 in spec.shape), None)
    if empty is not None:
        raise DataError(f"input {empty.source_name} of shape {list(empty.shape)} has no elements: there is nothing to profile")
    supply = _Numbers(count() if numbers is None else numbers, rows)
    if resume is not None:
        check_resumable(resume, model, accumulator.observed(), preprocessing, rows)
        # Now: where no sample is left to run, it is the result as it is.
        keep = min(keep_samples, resume.keep_samples)
        kept = smallest(keep, resume.kept)
        resume = replace(resume, keep_samples=keep, kept_samples=kept.samples, kept_results=kept.results)
    known = 0 if resume is None else resume.samples
    taken = kept = 0
    for where, arrays in _runs(input_specs(model), stream):
        number = supply.next(where)
        if taken >= known:
            accumulator.fold(arrays, number=number)
        taken += rows
        if progress is not None:
            progress(taken)
        if checkpoint is not None and taken > known and checkpoint.is_due(taken - max(kept, known), rows):
            checkpoint.write(_merged(accumulator, preprocessing, resume))
            kept = taken
    if taken < known:
        raise DataError(f"cannot resume: the checkpoint holds {known} samples, these are {taken}; give the same samples again")
    return _merged(accumulator, preprocessing, resume)


def checked_batches(batches: Any) -> Iterable[Any]:
    """Return `batches` as an iterable, of one batch where it is a single one; DataError for what holds none."""
    if isinstance(batches, (np.ndarray, Mapping)):
        return [batches]
    if not isinstance(batches, Iterable) or isinstance(batches, (str, bytes)):
        raise DataError(f"batches must be an iterable of arrays or {{name: array}}, got {type(batches).__name__}")
    return batches


def preprocessing_of(batches: Any) -> str:
    """Return what batches say was done to their samples, "" where they say nothing."""
    text = getattr(batches, "preprocessing", "")
    return text if isinstance(text, str) else ""


def _merged(accumulator: Accumulator, preprocessing: str, resume: Profile | None) -> Profile:
    """Return the profile of what `resume` holds and of the samples since."""
    if resume is not None and not accumulator.runs:
        return resume
    part = replace(accumulator.profile(), preprocessing=preprocessing)
    return part if resume is None else resume.merge(part)


def _runs(specs: tuple[InputSpec, ...], batches: Iterable[Any]) -> Iterator[tuple[str, list[Any]]]:
    for index, batch in enumerate(batches):
        where = f"batch {index}"
        for arrays in split_batch(specs, batch, where=where, finite=False):
            yield where, arrays


class _Numbers:
    """The samples' numbers, `rows` at a time; a run is known by its first."""

    def __init__(self, numbers: Iterable[Any], rows: int) -> None:
        self._numbers = iter(numbers)
        self._rows = rows

    def next(self, where: str) -> int:
        try:
            taken = [next(self._numbers) for _ in range(self._rows)]
        except StopIteration:
            raise DataError(f"{where}: there are more samples than numbers; give one number for each sample") from None
        first = taken[0]
        if isinstance(first, bool) or not isinstance(first, (int, np.integer)) or first < 0:
            raise DataError(f"{where}: numbers of samples must be integers from 0 on, got {first!r}")
        return int(first)
