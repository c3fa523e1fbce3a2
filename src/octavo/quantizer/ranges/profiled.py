"""What is read of a profile, or of statistics from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ...ir.identity import TensorId
from .estimator import TensorRange


class ProfiledTensor(TensorRange, Protocol):
    """What is read of one tensor's statistics."""

    @property
    def non_finite_note(self) -> str:
        """What is to be said of values that are NaN or infinite, "" where there are none."""
        ...


class Statistics(Protocol):
    """What is read of a profile."""

    @property
    def fingerprint(self) -> str:
        """Of the model that was profiled."""
        ...

    def __getitem__(self, key: TensorId, /) -> ProfiledTensor:
        """Return the statistics of one tensor."""
        ...

    def __contains__(self, key: object, /) -> bool:
        """Return whether a tensor was observed."""
        ...

    def __iter__(self) -> Iterator[TensorId]:
        """Iterate over the observed tensors."""
        ...
