"""A quantized model simulated in float, each rounding on or off: which of them the outputs feel. No kernel is integer here."""

from .functions import fused_functions
from .search import costliest, remedies
from .simulation import Effects, Simulation
from .widths import wide_weights

__all__ = ["Effects", "Simulation", "costliest", "fused_functions", "remedies", "wide_weights"]
