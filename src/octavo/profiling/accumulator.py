"""Running a model's observers over samples; memory does not grow with the samples.

The statistics live in memory that the observers write to. Here it is allotted, and read out once at the end, or before a count
could overflow. Nothing is compiled here: `Accumulator` is given a function that binds the instrumented model to memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from ..ir.graph import Model
from ..ir.graph.inputs import input_specs
from ..ir.identity import TensorId
from ..numerics.arrays import Array
from ..numerics.statistics.histogram import CODES, LAST_BIN, Histogram
from ..numerics.statistics.observer_state import COUNTS_SIZE, empty_ranges, first_non_finite, table, total_counts
from ..runtime.shapes import dimension_places, read_sizes
from ..runtime.size import names_in
from .buckets import BUCKETS, SampleBuckets
from .instrument import Instrumented, Observation
from .kept_samples import KeptSamples, key_of
from .model_profile import Profile, tool_versions
from .statistics import NonFinite, TensorStatistics, described


class Attached(Protocol):
    """The instrumented "main", bound to arrays."""

    def run(self) -> None:
        """Run it once; ranges, and where a value is not finite, are in the arrays then."""
        ...

    def fetch(self) -> None:
        """Bring the counts of all runs into the arrays."""
        ...

    def results(self) -> Sequence[Array]:
        """Return what the last run gave, the model's results first, as views of memory that the next overwrites."""
        ...


Attach = Callable[[list[Array]], Attached]
"""Binds the instrumented "main" to arrays, one for each of its parameters (aligned to 64 bytes)."""

_ALIGNMENT = 64
_PER_LINE = _ALIGNMENT // 4
_MAX_COUNT = 2**32 - 1
_SIGN = CODES >> 1
_BOUND = 4
"""Shapes of the inputs whose memory is kept for more samples of them."""
_BESIDE_BYTES = 64 * 1024
"""Samples smaller than this are hashed sooner than a thread takes them."""


class Accumulator:
    """Running statistics of a model's observers.

    Parameters
    ----------
    model
        The model as it was instrumented.
    instrumented
        What `instrument` made of it.
    attach
        Binds the built module to memory.
    keep_samples
        How many of the samples to keep at most.
    """

    def __init__(self, model: Model, instrumented: Instrumented, attach: Attach, keep_samples: int = 0) -> None:
        self._model = model
        self._keep_samples = keep_samples
        self._kept = KeptSamples(keep_samples)
        self._beside: Executor | None = None
        self._instrumented = instrumented
        specs = input_specs(model)
        self._attach, self._dtypes = attach, [spec.dtype for spec in specs]
        self._dimensions = dimension_places([spec.shape for spec in specs])
        has_open = bool(names_in(dim for spec in specs for dim in spec.shape))
        observations = instrumented.observations
        self._ranges = _Ranges([item.channels for item in observations])
        # Pages of it that no count touches take no memory: they stay what the system gave.
        self._counts = _aligned((len(observations), COUNTS_SIZE), "int32")
        self._states = [state for pair in zip(self._ranges.states, self._counts, strict=True) for state in pair]
        self._bound: dict[tuple[tuple[int, ...], ...], _Bound] = {}
        self._runs_of: Counter[tuple[int, ...]] = Counter()
        self._firsts: list[NonFinite | None] = [None] * len(observations)
        self._drained: list[npt.NDArray[np.int64]] | None = None
        self._counted_since_drain = 0
        rows = {spec.shape[0] if spec.shape else 1 for spec in specs}
        # Of open sizes a run takes one sample, as large as it is.
        self._rows_per_run = rows.pop() if len(rows) == 1 and not has_open else 1
        # Rows of one run share its ranges, and which rows share a run is the caller's choice: they are counted as one.
        self._buckets = SampleBuckets() if self._rows_per_run == 1 else None
        self._in_bucket = [0] * BUCKETS
        self.runs = 0

    @property
    def samples(self) -> int:
        """Samples folded so far: rows of the inputs (runs, where the inputs disagree on their first dimension)."""
        return self.runs * self._rows_per_run

    @property
    def rows_per_run(self) -> int:
        """Samples of one run."""
        return self._rows_per_run

    def observed(self) -> set[TensorId]:
        """Return the tensors that the profile will hold."""
        parts = self._instrumented
        made = {item.tensor for item in parts.observations} | {clamp.tensor for clamp in parts.clamped}
        return made | parts.constants.keys()

    def fold(self, arrays: Sequence[Array], *, number: int) -> None:
        """Run once on arrays that fit the inputs, and add what the observers saw; `number` is that of the run's first sample."""
        bound = self._bind(tuple(array.shape for array in arrays))
        if self._counted_since_drain + bound.largest > _MAX_COUNT:
            self._drain()
        for memory, array in zip(bound.inputs, arrays, strict=True):
            memory[...] = array
        bucket = None if self._buckets is None else self._buckets.of(bound.inputs)
        key = self._key(bound.inputs)
        bound.run.run()
        self._kept.offer(bound.inputs, lambda: bound.run.results()[: self._instrumented.results], key)
        self._ranges.fold(bucket)
        self.runs += 1
        self._runs_of[tuple(bound.sizes.values())] += 1
        if bucket is not None:
            self._in_bucket[bucket] += 1
        self._counted_since_drain += bound.largest
        for index in np.flatnonzero(self._counts[:, 0]):
            self._note_non_finite(int(index), number, bound.sizes)

    def _bind(self, shapes: tuple[tuple[int, ...], ...]) -> _Bound:
        """Return memory for inputs of these shapes, and the call on it; that of the shapes met last is kept."""
        bound = self._bound.pop(shapes, None)
        if bound is None:
            inputs = [_aligned(shape, dtype) for shape, dtype in zip(shapes, self._dtypes, strict=True)]
            sizes = read_sizes(self._dimensions, shapes)
            elements = (math.prod(item.sized(sizes)) for item in self._instrumented.observations)
            run = self._attach([*inputs, *self._states])
            bound = _Bound(inputs=inputs, run=run, sizes=sizes, largest=max(elements, default=1))
        self._bound[shapes] = bound
        while len(self._bound) > _BOUND:
            oldest = next(iter(self._bound))
            self._bound.pop(oldest).run.fetch()
        return bound

    def _fetch(self) -> None:
        for bound in self._bound.values():
            bound.run.fetch()

    def profile(self) -> Profile:
        """Return the profile of everything folded; DataError if nothing was."""
        if not self.runs:
            raise DataError("no samples: the data set is empty; give at least one batch")
        self._fetch()
        tensors: dict[TensorId, TensorStatistics] = {}
        for index, item in enumerate(self._instrumented.observations):
            tensors[item.tensor] = self._statistics(index, item)
        for clamp in self._instrumented.clamped:
            source = tensors[clamp.source]
            tensors[clamp.tensor] = source.clamped(self._model.tensors[clamp.tensor], clamp.low, clamp.high)
        tensors |= self._instrumented.constants
        in_order = {key: tensors[key] for key in self._model.tensors if key in tensors}
        return Profile(
            fingerprint=self._model.fingerprint,
            samples=self.samples,
            tensors=in_order,
            bucket_samples=() if self._buckets is None else tuple(self._in_bucket),
            tools=tool_versions(),
            keep_samples=self._keep_samples,
            kept_samples=self._kept.kept.samples,
            kept_results=self._kept.kept.results,
        )

    def _key(self, inputs: list[Array]) -> Callable[[], bytes] | None:
        """Begin to hash a large sample, beside its run: a tenth of a small network's; return what waits for the end of it."""
        if not self._keep_samples or sum(array.nbytes for array in inputs) < _BESIDE_BYTES:
            return None
        if self._beside is None:
            self._beside = ThreadPoolExecutor(1)  # its thread ends with this accumulator
        return self._beside.submit(key_of, inputs).result

    def _note_non_finite(self, index: int, number: int, sizes: Mapping[str, int]) -> None:
        shape = self._instrumented.observations[index].sized(sizes)
        position = first_non_finite(self._counts[index], math.prod(shape))
        assert position is not None, "the observer saw one"
        place = tuple(int(at) for at in np.unravel_index(position, shape or (1,)))[: len(shape)]
        row = place[0] if self._rows_per_run > 1 and shape[:1] == (self._rows_per_run,) else 0
        found = NonFinite(sample=number + row, index=place)
        known = self._firsts[index]
        self._firsts[index] = found if known is None else min(known, found)
        self._counts[index, 0] = 0

    def _drain(self) -> None:
        """Move counts elsewhere before one could overflow."""
        self._fetch()
        totals = [total_counts(counts) for counts in self._counts]
        self._drained = totals if self._drained is None else [a + b for a, b in zip(self._drained, totals, strict=True)]
        self._counts[:, table(0) :] = 0
        self._counted_since_drain = 0

    def _codes(self, index: int) -> npt.NDArray[np.int64]:
        counts = total_counts(self._counts[index])
        return counts if self._drained is None else counts + self._drained[index]

    def _count(self, item: Observation) -> int:
        """Return the elements that a tensor had in all runs."""
        sizes = (dict(zip(self._dimensions, each, strict=True)) for each in self._runs_of)
        return sum(math.prod(item.sized(each)) * runs for each, runs in zip(sizes, self._runs_of.values(), strict=True))

    def _statistics(self, index: int, item: Observation) -> TensorStatistics:
        codes = self._codes(index)
        histogram = Histogram.of_codes(codes)
        entry = self._model.tensors[item.tensor]
        least, greatest = self._ranges.of_channels(index)
        has_axis, none = item.channel_axis is not None, np.zeros(0, np.float32)
        in_buckets = (none, none) if self._buckets is None else self._ranges.of_buckets(index)
        return TensorStatistics(
            **described(entry),
            count=self._count(item),
            zeros=histogram.count_between(0, 0),
            non_finite=int(codes[LAST_BIN + 1 : _SIGN].sum() + codes[_SIGN + LAST_BIN + 1 :].sum()),
            first_non_finite=self._firsts[index],
            minimum=float(least.min()) if histogram.total else 0.0,
            maximum=float(greatest.max()) if histogram.total else 0.0,
            channel_axis=item.channel_axis,
            channel_minimum=least if has_axis else none,
            channel_maximum=greatest if has_axis else none,
            bucket_minimum=in_buckets[0],
            bucket_maximum=in_buckets[1],
            histogram=histogram,
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Bound:
    """Memory for inputs of one shape each, and the call on it: `sizes` of open dimensions, elements of the `largest` tensor."""

    inputs: list[Array]
    run: Attached
    sizes: dict[str, int]
    largest: int


class _Ranges:
    """The ranges of every observation: of the run that goes on, which observers write, and of all runs before it.

    Parameters
    ----------
    channels
        Of each observation.
    """

    def __init__(self, channels: Sequence[int]) -> None:
        places = np.cumsum([0, *(-(-2 * count // _PER_LINE) * _PER_LINE for count in channels)])
        # Of each observation three parts, the least values, the greatest, and what fills up the last cache line.
        starts = [(place, place + count, place + 2 * count) for place, count in zip(places[:-1], channels, strict=True)]
        self._spans = [slice(place, place + 2 * count) for place, count in zip(places[:-1], channels, strict=True)]
        self._run = _aligned((int(places[-1]),), "float32")
        self.states = [self._run[span] for span in self._spans]
        """What observers write to, one array for each observation."""
        self._none = np.zeros_like(self._run)
        for span, count in zip(self._spans, channels, strict=True):
            self._none[span] = empty_ranges(count)
        self._run[:] = self._none
        self._least, self._greatest = self._none.copy(), self._none.copy()
        self._cuts = np.array(sorted({int(cut) for triple in starts for cut in triple if cut < places[-1]}), np.intp)
        self._kept = self._cuts.searchsorted([least for least, _, _ in starts])
        self._bucket_least = np.full((BUCKETS, len(channels)), np.inf, np.float32)
        self._bucket_greatest = np.full((BUCKETS, len(channels)), -np.inf, np.float32)

    def fold(self, bucket: int | None) -> None:
        """Add the run that ended to all runs, and to a bucket of them."""
        if not self._run.size:
            return
        # Both of all parts: what is taken of the wrong part is never read.
        np.minimum(self._least, self._run, out=self._least)
        np.maximum(self._greatest, self._run, out=self._greatest)
        if bucket is not None:
            least = np.minimum.reduceat(self._run, self._cuts)[self._kept]
            greatest = np.maximum.reduceat(self._run, self._cuts)[self._kept + 1]
            np.minimum(self._bucket_least[bucket], least, out=self._bucket_least[bucket])
            np.maximum(self._bucket_greatest[bucket], greatest, out=self._bucket_greatest[bucket])
        self._run[:] = self._none

    def of_channels(self, index: int) -> tuple[Array, Array]:
        """Return the least and the greatest value of each channel of an observation."""
        span = self._spans[index]
        count = (span.stop - span.start) // 2
        return _without_sign(self._least[span][:count]), _without_sign(self._greatest[span][count:])

    def of_buckets(self, index: int) -> tuple[Array, Array]:
        """Return the least and the greatest value of an observation in each bucket."""
        return _without_sign(self._bucket_least[:, index]), _without_sign(self._bucket_greatest[:, index])


def _without_sign(values: Array) -> Array:
    """Return a copy in which -0.0 is 0.0, so that equal minima are equal bytes."""
    return values + np.float32(0)


def _aligned(shape: tuple[int, ...], dtype: str) -> Array:
    """Return zeros whose memory starts at a multiple of 64 bytes, as the kernels take it."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)
