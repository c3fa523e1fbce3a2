"""What running a model on samples can tell while it is quantized, as callables that others give. It runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..graph.model import Model
from ..identity import TensorId
from .corrections import Corrections
from .equalize import Equalization
from .nearness import Nearness
from .plan import QuantizationPlan, QuantizedModel
from .remedies import Remedies


class Corrector(Protocol):
    """Runs quantized models of one float model."""

    def corrections(self, quantized: QuantizedModel, kept: Collection[str], /) -> Corrections:
        """Say how to correct a model; the parameters of what is `kept` stay."""
        ...

    def nearness(self, quantized: QuantizedModel, /) -> Nearness:
        """Return how near a model's outputs are to the float model's."""
        ...


Replan = Callable[[Remedies], QuantizationPlan]
"""Returns the plan with remedies."""


class FindRemedies(Protocol):
    """Says what to change for the outputs to have a signal to noise ratio in dB."""

    def __call__(
        self, model: Model, quantized: QuantizedModel, goal_db: float, replan: Replan, /, *, only_ranges: bool
    ) -> Remedies:
        """Return ranges, and activations that stay float where not ranges alone are wanted."""
        ...


FindCostliest = Callable[[Model, QuantizedModel], Sequence[TensorId]]
"""Says of a quantized model which activations' rounding costs its outputs most, the worst first."""

FindFunctions = Callable[[Model, QuantizedModel, Collection[TensorId]], Mapping[TensorId, str]]
"""Says of a quantized model which of these products' results are best not rounded before a function of them, with the reasons."""


class Equalize(Protocol):
    """Says how a simplified model is to be equalized."""

    def __call__(self, model: Model, kept: Collection[str], weight_bits: int, attempt: int = 0, /) -> Equalization:
        """Return factors, for weights of so many bits; tensors of these names stay. What was returned before did not hold."""
        ...

    def holds(self) -> bool:
        """Return whether what was returned last leaves the float model's results as they are; wait until that is known."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiments:
    """What running the model on samples can tell; None is left out.

    Parameters
    ----------
    equalize
        Says how channels are evened out before anything is quantized.
    find_costliest
        Says which activations the recipe's `wide_activations` are.
    corrector_of
        Given the float model that was simplified, returns what runs quantized models of it.
    find_functions
        Says which functions the kernels of products compute of their own float sums.
    find_remedies
        Says what to change where a corrected model misses the recipe's `min_sqnr`.
    """

    equalize: Equalize | None = None
    find_costliest: FindCostliest | None = None
    corrector_of: Callable[[Model], Corrector] | None = None
    find_functions: FindFunctions | None = None
    find_remedies: FindRemedies | None = None
