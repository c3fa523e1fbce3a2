"""Whether the samples were enough: how the range of each tensor came about over them, and which channels never fired.

It reads a profile and nothing else, and judges no quantization.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..errors import ProfileError, check_type
from ..ir.identity import TensorId, TensorKind
from ..numerics.statistics.convergence import Convergence, convergence_of
from .model_profile import Profile
from .statistics import TensorStatistics


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorAdequacy:
    """What the samples tell of one tensor, an input or an activation.

    Parameters
    ----------
    id, source_name, kind, op, minimum, maximum
        As in the profile.
    convergence
        How the range came about; None where too few buckets of samples hold a value.
    silent_channels
        Channels that held nothing but zeros, or no finite value, in any sample.
    """

    id: TensorId
    source_name: str
    kind: TensorKind
    op: str
    minimum: float
    maximum: float
    convergence: Convergence | None
    silent_channels: tuple[int, ...]

    @property
    def growing(self) -> bool:
        """Whether the range still grows with the samples."""
        return self.convergence is not None and self.convergence.growing

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        found = asdict(self)
        found["silent_channels"] = list(self.silent_channels)
        if self.convergence is not None:
            found["convergence"] |= {
                "curve": [list(point) for point in self.convergence.curve],
                "minimum_interval": list(self.convergence.minimum_interval),
                "maximum_interval": list(self.convergence.maximum_interval),
            }
        return {**found, "growing": self.growing}


@dataclass(frozen=True, kw_only=True, slots=True)
class Adequacy:
    """What the samples tell of every input and activation, in the order of the graph."""

    samples: int
    tensors: tuple[TensorAdequacy, ...]

    @property
    def growing(self) -> tuple[TensorAdequacy, ...]:
        """Tensors whose range still grows, the fastest first."""
        found = [(-tensor.convergence.growth, tensor) for tensor in self.tensors if tensor.convergence and tensor.growing]
        return tuple(tensor for _, tensor in sorted(found, key=lambda pair: pair[0]))

    @property
    def silent(self) -> tuple[TensorAdequacy, ...]:
        """Tensors with channels that never fired."""
        return tuple(tensor for tensor in self.tensors if tensor.silent_channels)

    @property
    def unknown(self) -> tuple[TensorAdequacy, ...]:
        """Tensors of whose convergence nothing can be said."""
        return tuple(tensor for tensor in self.tensors if tensor.convergence is None)


def adequacy(profile: Profile) -> Adequacy:
    """Say of each tensor whether the samples were enough for its range; ProfileError for what is no Profile."""
    check_type(profile, Profile, ProfileError, "a Profile to judge")
    tensors = tuple(adequacy_of(value) for value in profile.values() if value.kind != "constant")
    return Adequacy(samples=profile.samples, tensors=tensors)


def adequacy_of(statistics: TensorStatistics) -> TensorAdequacy:
    """Say it of one tensor."""
    seen = np.isfinite(statistics.bucket_minimum)
    return TensorAdequacy(
        id=statistics.id,
        source_name=statistics.source_name,
        kind=statistics.kind,
        op=statistics.op,
        minimum=statistics.minimum,
        maximum=statistics.maximum,
        convergence=convergence_of(statistics.bucket_minimum[seen], statistics.bucket_maximum[seen]),
        silent_channels=silent_channels(statistics),
    )


def silent_channels(statistics: TensorStatistics) -> tuple[int, ...]:
    """Return the channels that held nothing but zeros, or no finite value."""
    low, high = statistics.channel_minimum, statistics.channel_maximum
    silent = ~np.isfinite(low) | ((low == 0) & (high == 0))
    return tuple(int(channel) for channel in np.flatnonzero(silent))
