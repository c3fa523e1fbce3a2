"""Folding what the observers of each run bring back into running statistics; memory does not grow with the samples.

Nothing is compiled here: `collect` is given a function that runs the instrumented model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from ..graph import Model
from ..graph.inputs import input_specs, split_batch
from ..identity import TensorId
from .instrument import Instrumented, Observation
from .observer import Observed, decode
from .profile import Profile
from .statistics import TensorStatistics, constant_statistics

Run = Callable[[list[npt.NDArray[Any]]], Sequence[npt.NDArray[Any]]]
"""Runs the instrumented model on one array per input, returns everything that its "main" returns."""


class Accumulator:
    """Running statistics of a model's observers.

    Parameters
    ----------
    model
        The model as it was instrumented.
    instrumented
        What `instrument` made of it.
    """

    def __init__(self, model: Model, instrumented: Instrumented) -> None:
        self._model = model
        self._observations = instrumented.observations
        self._output_count = instrumented.output_count
        self._running: list[Observed | None] = [None] * len(self._observations)
        self.runs = 0
        shapes = [spec.shape for spec in input_specs(model)]
        rows = {shape[0] if shape else 1 for shape in shapes}
        self._rows_per_run = rows.pop() if len(rows) == 1 else 1

    @property
    def samples(self) -> int:
        """Samples folded so far: rows of the inputs (runs, where the inputs disagree on their first dimension)."""
        return self.runs * self._rows_per_run

    def fold(self, outputs: Sequence[npt.NDArray[Any]], *, where: str = "") -> None:
        """Add one run's outputs; `where` opens error messages ("batch 3, sample 0").

        Raises
        ------
        DataError
            If a tensor holds NaN or infinity; nothing of this run is added then.
        """
        vectors = outputs[self._output_count :]
        assert len(vectors) == len(self._observations), "the outputs are not those of the instrumented model"
        run = [decode(vector, item.channels) for vector, item in zip(vectors, self._observations, strict=True)]
        for observed, item in zip(run, self._observations, strict=True):
            if observed.non_finite:
                entry = self._model.tensors[item.tensor]
                made_by = f"{entry.op} output " if entry.op else ""
                raise DataError(
                    f"{where or f'run {self.runs}'}: {made_by}{entry.source_name} holds {observed.non_finite} values that are "
                    "NaN or infinite, the first such tensor of the graph; check the preprocessing of this sample"
                )
        self._running = [new if old is None else _add(old, new) for old, new in zip(self._running, run, strict=True)]
        self.runs += 1

    def profile(self) -> Profile:
        """Return the profile of everything folded; DataError if nothing was."""
        if not self.runs:
            raise DataError("no samples: the data set is empty; give at least one batch")
        tensors: dict[TensorId, TensorStatistics] = {}
        for item, observed in zip(self._observations, self._running, strict=True):
            assert observed is not None, "there was a run"
            tensors[item.tensor] = self._statistics(item, observed)
        for name, value in self._model.params.items():
            entry = self._model.tensors.get(name)
            if entry is not None and value.dtype.kind == "f":
                tensors[entry.id] = constant_statistics(entry, value)
        return Profile(fingerprint=self._model.fingerprint, samples=self.samples, tensors=tensors)

    def _statistics(self, item: Observation, observed: Observed) -> TensorStatistics:
        entry = self._model.tensors[item.tensor]
        has_axis = item.channel_axis is not None
        none = np.zeros(0, np.float32)
        return TensorStatistics(
            id=entry.id,
            source_name=entry.source_name,
            kind=entry.kind,
            op=entry.op,
            shape=entry.shape,
            dtype=entry.dtype,
            count=item.size * self.runs,
            zeros=observed.zeros,
            non_finite=0,
            minimum=float(observed.minimum.min()),
            maximum=float(observed.maximum.max()),
            channel_axis=item.channel_axis,
            channel_minimum=observed.minimum if has_axis else none,
            channel_maximum=observed.maximum if has_axis else none,
            histogram=observed.histogram,
        )


def _add(old: Observed, new: Observed) -> Observed:
    return Observed(
        zeros=old.zeros + new.zeros,
        non_finite=old.non_finite + new.non_finite,
        minimum=np.minimum(old.minimum, new.minimum),
        maximum=np.maximum(old.maximum, new.maximum),
        histogram=old.histogram.merge(new.histogram),
    )


def collect(
    model: Model,
    instrumented: Instrumented,
    run: Run,
    batches: Any,
    *,
    progress: Callable[[int], None] | None = None,
) -> Profile:
    """Drive batches through an instrumented model and return its profile.

    Parameters
    ----------
    batches
        An iterable of arrays or {input name: array}; a single array or dict is one batch. A batch whose first dimension is a
        multiple of the model's is cut into several runs.
    progress
        Called after each run with the number of samples so far.

    Raises
    ------
    DataError
        Naming the batch: wrong shape or dtype, missing or unknown input, NaN or infinity, no batches at all.
    """
    if isinstance(batches, (np.ndarray, Mapping)):
        batches = [batches]
    if not isinstance(batches, Iterable) or isinstance(batches, (str, bytes)):
        raise DataError(f"batches must be an iterable of arrays or {{name: array}}, got {type(batches).__name__}")
    specs = input_specs(model)
    accumulator = Accumulator(model, instrumented)
    for batch_index, batch in enumerate(batches):
        for run_index, arrays in enumerate(split_batch(specs, batch, where=f"batch {batch_index}")):
            accumulator.fold(run(arrays), where=f"batch {batch_index}, sample {run_index}")
            if progress is not None:
                progress(accumulator.samples)
    return accumulator.profile()
