"""What is changed where plain quantization costs a model too much, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..identity import TensorId


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedies:
    """Changes to what recipe and profile alone would make.

    Parameters
    ----------
    ranges
        Of activations, in place of those that the range estimator finds.
    float_tensors
        Activations that stay float, each with the reason.
    wide_weights
        Weights that keep 8 bits where a recipe lets some, each with the reason; without any those of the smallest layers do.
    wide_activations
        Activations that have 16 bits, each with the reason; those whose ops no target takes in 16 bits keep 8.
    """

    ranges: Mapping[TensorId, tuple[float, float]] = field(default_factory=dict[TensorId, "tuple[float, float]"])
    float_tensors: Mapping[TensorId, str] = field(default_factory=dict[TensorId, str])
    wide_weights: Mapping[TensorId, str] = field(default_factory=dict[TensorId, str])
    wide_activations: Mapping[TensorId, str] = field(default_factory=dict[TensorId, str])

    def with_more(self, more: Remedies) -> Remedies:
        """Return these and others, which count where both speak of a tensor; a tensor that stays float has no range."""
        float_tensors = {**self.float_tensors, **more.float_tensors}
        ranges = {name: each for name, each in {**self.ranges, **more.ranges}.items() if name not in float_tensors}
        return Remedies(
            ranges=ranges,
            float_tensors=float_tensors,
            wide_weights={**self.wide_weights, **more.wide_weights},
            wide_activations={**self.wide_activations, **more.wide_activations},
        )
