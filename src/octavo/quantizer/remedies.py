"""What is changed where plain quantization costs a model too much, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from ..ir.identity import TensorId
from .plan import QuantizationPlan

MadeT = TypeVar("MadeT")


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

    @property
    def changes_layers(self) -> bool:
        """Whether other ops may be integer with them than without."""
        return bool(self.float_tensors or self.wide_activations)

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


def float_without_loss(
    chosen: Mapping[TensorId, str],
    remedies: Remedies,
    plan: QuantizationPlan,
    make: Callable[[Remedies], MadeT],
    plan_of: Callable[[MadeT], QuantizationPlan],
) -> tuple[Remedies, MadeT] | None:
    """Return remedies with as many of the chosen activations float as cost no op its integers, and what they make; None of none.

    Parameters
    ----------
    chosen
        With the reasons.
    plan
        With `remedies` alone.
    """
    while chosen:
        found = Remedies(float_tensors=chosen).with_more(remedies)
        made = make(found)
        kept = {layer.output for layer in plan_of(made).layers}
        gone = {name for layer in plan.layers if layer.output not in kept for name in (*layer.inputs, layer.output)}
        if not gone:
            return found, made
        left = {name: reason for name, reason in chosen.items() if name not in gone}
        chosen = left if len(left) < len(chosen) else {}
    return None
