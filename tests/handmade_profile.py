"""Profiles made by hand: ranges without running a model."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from octavo.ir.graph import Model
from octavo.ir.identity import TensorId
from octavo.profiling import Profile, TensorStatistics
from octavo.profiling.statistics import constant_statistics


def ranged(model: Model, ranges: dict[str, tuple[float, float]] | None = None, *, without: Iterable[str] = ()) -> Profile:
    """Return a profile that gives every tensor of a model the range [-1; 1], or the one named for it."""
    tensors: dict[TensorId, TensorStatistics] = {}
    for key, entry in model.tensors.items():
        if entry.kind != "constant" and key not in without:
            values = np.array((ranges or {}).get(str(key), (-1.0, 1.0)), np.float32)
            tensors[key] = constant_statistics(entry, values)
    return Profile(fingerprint=model.fingerprint, samples=1, tensors=tensors)
