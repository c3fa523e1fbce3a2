"""What a file of encodings says of one tensor, in the terms that the formats share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """Parameters of one tensor, one number for each channel.

    An integer q of [0; 2^bits - 1] stands for (q + offset) * scale: `offset` is -zero_point of unsigned integers, and
    -zero_point - 2^(bits - 1) of signed ones.
    """

    scales: tuple[float, ...]
    offsets: tuple[int, ...]
    symmetric: bool
    per_channel: bool
    bits: int = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Encodings:
    """What a file says, by the names of tensors.

    Parameters
    ----------
    tensors
        Activations and weights.
    left_out
        Tensors that it keeps float, or describes as nothing here does, and how.
    """

    tensors: Mapping[str, Encoded]
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
