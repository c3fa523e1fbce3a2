"""A quantized model simulated in float, each rounding on or off: which of them the outputs feel. No kernel is integer here."""

from .search import costliest, remedies
from .simulation import Effects, Simulation
from .widths import wide_weights

__all__ = ["Effects", "Simulation", "costliest", "remedies", "wide_weights"]
