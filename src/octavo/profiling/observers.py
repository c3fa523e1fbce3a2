"""What `octavo.observe` may put on a tensor: statistics, a line of text, files, a record, a comparison.

An observer is any callable that takes an ObservedValue. It gets copies: nothing that it does reaches the computation.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

import numpy as np

from ..errors import DataError, check_path
from ..numerics import QuantParams
from ..numerics.arrays import Array
from ..numerics.statistics.histogram import Histogram
from ..numerics.statistics.metrics import max_abs_error, sqnr_db

__all__ = ["Compare", "Comparison", "Dump", "ObservedStatistics", "ObservedValue", "Observer", "Print", "Record", "Statistics"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ObservedValue:
    """One value of a tensor, as it was computed.

    Parameters
    ----------
    tensor
        The tensor, as `observe` was asked for it.
    variable
        The variable that holds it.
    raw
        The value as it lies in memory.
    real
        The numbers it stands for in the source's layout: integers dequantized by quantize_info, other values as they are. None
        for integers of which nothing says what they stand for.
    params
        The parameters of quantized integers, as the source has them; None otherwise.
    """

    tensor: str
    variable: str
    raw: Array
    real: Array | None
    params: QuantParams | None = None


Observer = Callable[[ObservedValue], None]


def _reals(observed: ObservedValue) -> Array:
    return observed.raw if observed.real is None else observed.real


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ObservedStatistics:
    """Statistics of one tensor's values.

    Parameters
    ----------
    runs
        How often a value was seen.
    count, non_finite
        Numbers seen, and how many of them were NaN or infinite.
    minimum, maximum
        Of the finite numbers; +inf and -inf where there were none.
    histogram
        Of the finite numbers.
    at_qmin, at_qmax
        How many integers lay at either end of their range: what saturates or is clamped lies there. 0 without parameters.
    """

    runs: int = 0
    count: int = 0
    non_finite: int = 0
    minimum: float = float("inf")
    maximum: float = float("-inf")
    histogram: Histogram = field(default_factory=Histogram.empty)
    at_qmin: int = 0
    at_qmax: int = 0


class Statistics:
    """Keeps statistics of each tensor: ``statistics["conv1"].maximum``."""

    def __init__(self) -> None:
        self.tensors: dict[str, ObservedStatistics] = {}

    def __getitem__(self, tensor: str) -> ObservedStatistics:
        """Return what was seen of a tensor; KeyError where nothing was."""
        return self.tensors[tensor]

    def __call__(self, observed: ObservedValue) -> None:
        """Add one value."""
        old = self.tensors.get(observed.tensor, ObservedStatistics())
        values = _reals(observed).astype(np.float32)
        finite = values[np.isfinite(values)]
        params = observed.params
        ends = None if params is None or observed.real is None else _at_ends(observed.real, params)
        self.tensors[observed.tensor] = replace(
            old,
            runs=old.runs + 1,
            count=old.count + values.size,
            non_finite=old.non_finite + values.size - finite.size,
            minimum=min(old.minimum, float(finite.min(initial=np.inf))),
            maximum=max(old.maximum, float(finite.max(initial=-np.inf))),
            histogram=old.histogram.merge(Histogram.of(finite)),
            at_qmin=old.at_qmin + (ends[0] if ends else 0),
            at_qmax=old.at_qmax + (ends[1] if ends else 0),
        )


def _at_ends(real: Array, params: QuantParams) -> tuple[int, int]:
    """Count the values that stand at qmin and at qmax."""
    shape = [1] * real.ndim
    if params.scale.ndim:
        shape[getattr(params.granularity, "axis", 0)] = params.scale.size
    scale, zero_point = params.scale.reshape(shape), params.zero_point.reshape(shape)
    low, high = ((np.float32(end) - zero_point.astype(np.float32)) * scale for end in (params.qmin, params.qmax))
    return int(np.sum(real <= low)), int(np.sum(real >= high))


class Print:
    """Prints one line for each value: dtype, shape, the range of its integers and of what they stand for."""

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file

    def __call__(self, observed: ObservedValue) -> None:
        """Print one value."""
        raw = observed.raw
        text = f"{observed.tensor}: {raw.dtype}{list(raw.shape)} in {_range(raw)}"
        if observed.params is not None and observed.real is not None:
            text += f", that is {_range(observed.real)}, mean {float(np.mean(observed.real)):.6g}"
        elif raw.size and raw.dtype.kind == "f":
            text += f", mean {float(np.mean(raw)):.6g}"
        print(text, file=self._file or sys.stdout)


def _range(values: Array) -> str:
    return f"[{values.min():.6g}; {values.max():.6g}]" if values.size else "[]"


class Dump:
    """Writes each value to a file of its own, ``00000_conv1.npz``: `raw`, `real`, and of integers `scale` and `zero_point`.

    Raises
    ------
    DataError
        If the folder is none.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = check_path(folder, DataError, "an existing folder to dump tensors into")
        if not self._folder.is_dir():
            raise DataError(f"{folder} is no folder; make it before dumping tensors into it")
        self._count = 0

    def __call__(self, observed: ObservedValue) -> None:
        """Write one value."""
        arrays = {"raw": observed.raw}
        if observed.real is not None:
            arrays["real"] = observed.real
        if observed.params is not None:
            arrays |= {"scale": observed.params.scale, "zero_point": observed.params.zero_point}
        name = re.sub(r"\W+", "_", observed.tensor)
        with (self._folder / f"{self._count:05d}_{name}.npz").open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        self._count += 1


class Record:
    """Keeps the numbers of each tensor, run by run: ``record.tensors["conv1"][0]``. What Compare takes as its reference."""

    def __init__(self) -> None:
        self.tensors: dict[str, list[Array]] = {}

    def __call__(self, observed: ObservedValue) -> None:
        """Keep one value."""
        self.tensors.setdefault(observed.tensor, []).append(_reals(observed))


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One value against its reference: the run, signal to noise ratio in dB (inf for equal values), largest difference."""

    run: int
    sqnr_db: float
    max_abs_error: float


class Compare:
    """Compares the numbers of each tensor with a reference, run by run: ``compare.tensors["conv1"][0].sqnr_db``.

    Parameters
    ----------
    reference
        For each tensor its values, one for each run: `Record.tensors` of another module, say. One array stands for every run.

    Raises
    ------
    DataError
        At a value of a tensor or run that the reference lacks, or of another shape.
    """

    def __init__(self, reference: Mapping[str, Sequence[Array] | Array]) -> None:
        self._reference = reference
        self.tensors: dict[str, list[Comparison]] = {}

    def __call__(self, observed: ObservedValue) -> None:
        """Compare one value."""
        name = observed.tensor
        seen = self.tensors.setdefault(name, [])
        run = len(seen)
        if name not in self._reference:
            raise DataError(f"the reference has no tensor {name}; it has {', '.join(list(self._reference)[:8])}")
        given = self._reference[name]
        if not isinstance(given, np.ndarray) and run >= len(given):
            raise DataError(f"the reference has {len(given)} values of {name}, run {run} needs one more")
        expected = given if isinstance(given, np.ndarray) else given[run]
        value = _reals(observed)
        if expected.shape != value.shape:
            raise DataError(f"{name}: the reference has shape {list(expected.shape)}, the module gives {list(value.shape)}")
        error, ratio = max_abs_error(expected, value), sqnr_db(expected, value)
        seen.append(Comparison(run=run, sqnr_db=ratio, max_abs_error=error))
