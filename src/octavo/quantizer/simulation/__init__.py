"""A quantized model simulated in float, each rounding on or off: which of them the outputs feel. No kernel is integer here."""

from .functions import fused_functions
from .search import less_rounding, ranked_by_effect
from .simulation import Effects, Simulation

__all__ = ["Effects", "Simulation", "fused_functions", "less_rounding", "ranked_by_effect"]
