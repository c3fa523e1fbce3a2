"""Choices: all that is decided of a model besides what recipe and profile alone make of it, as data. It decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ..ir.identity import TensorId
from .plan import Corrections, QuantizationPlan
from .plan.equalization import Equalization
from .request import Request, Requests


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    """What steps choose; nothing by default.

    Parameters
    ----------
    equalization
        By what channels are divided before anything is quantized.
    float_tensors
        Activations that stay float, each with the reason.
    float_results
        Results of ops that stay float, each with the reason. In contrast to `float_tensors` products that read them quantize
        copies.
    wide_weights
        Weights that keep 8 bits where a recipe lets some, each with the reason; without any those of the smallest layers do.
    per_row
        Results of layers whose activations are quantized per row when run, each with the reason; where the target takes it so.
    ranges
        Of activations, in place of those that the range estimator finds.
    range_estimator
        Of all activations, in place of what the recipe says; None for that.
    corrections
        What running the model told of weights and biases.
    requests
        What recipe, overrides, a callback or a plan ask of single tensors.
    """

    equalization: Equalization = field(default_factory=Equalization)
    float_tensors: Mapping[TensorId, str] = field(default_factory=dict[TensorId, str])
    float_results: Mapping[TensorId, str] = field(default_factory=dict[TensorId, str])
    wide_weights: Mapping[TensorId, str] = field(default_factory=dict[TensorId, str])
    per_row: Mapping[TensorId, str] = field(default_factory=dict[TensorId, str])
    ranges: Mapping[TensorId, tuple[float, float]] = field(default_factory=dict[TensorId, "tuple[float, float]"])
    range_estimator: str | None = None
    corrections: Corrections = field(default_factory=Corrections)
    requests: Requests = field(default_factory=dict[str, Request])

    def with_more(self, more: Choices) -> Choices:
        """Return these and others, which count where both speak of a tensor; a tensor that stays float has no range."""
        names = [each.name for each in fields(Choices)]
        found: dict[str, Any] = {name: _merged(getattr(self, name), getattr(more, name)) for name in names}
        found["ranges"] = {name: ends for name, ends in found["ranges"].items() if name not in found["float_tensors"]}
        return Choices(**found)

    def with_floats(self, floats: Mapping[TensorId, str], plan: QuantizationPlan) -> Choices:
        """Return these, of a plan, with more activations float, each with the reason; no layer quantizes one per row, either."""
        read = {layer.output: layer.inputs for layer in plan.layers}
        rows = {name: said for name, said in self.per_row.items() if floats.keys().isdisjoint(read.get(name, ()))}
        return replace(self, per_row=rows).with_more(Choices(float_tensors=floats))

    def said_beside(self, others: Choices) -> str:
        """Say in words what these choose that others don't."""
        corrected, known = self.corrections, others.corrections
        counts = {
            "%d tensors rotated": len(self.equalization.rotations.keys() - others.equalization.rotations.keys()),
            "factors of %d tensors": len(self.equalization.factors.keys() - others.equalization.factors.keys()),
            "%d activations float": len(self.float_tensors.keys() - others.float_tensors.keys()),
            "%d results float": len(self.float_results.keys() - others.float_results.keys()),
            "%d layers per row": len(self.per_row.keys() - others.per_row.keys()),
            "%d layers per row no more": len(others.per_row.keys() - self.per_row.keys()),
            "%d ranges": sum(ends != others.ranges.get(name) for name, ends in self.ranges.items()),
            "%d weights rounded by what their layers read": len(corrected.weight_values.keys() - known.weight_values.keys()),
            "%d biases": len(corrected.bias_shifts.keys() - known.bias_shifts.keys()),
        }
        said = [what % count for what, count in counts.items() if count]
        if self.range_estimator not in (None, others.range_estimator):
            said.insert(0, f"ranges by {self.range_estimator}")
        return ", ".join(said) or "the same, fitted anew"

    @property
    def uncorrected(self) -> Choices:
        """Those without what running the model told of weights and biases."""
        return replace(self, corrections=Corrections())


def _merged(first: Any, more: Any) -> Any:
    return {**first, **more} if more and isinstance(more, Mapping) else more or first
