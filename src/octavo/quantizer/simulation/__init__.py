"""A quantized model simulated in float, each rounding on or off: which of them the outputs feel. No kernel is integer here."""

from .functions import fused_functions
from .search import ranked_by_effect, remedies
from .simulation import Effects, Simulation
from .widths import plain_recipe, wide_weights

__all__ = ["Effects", "Simulation", "fused_functions", "plain_recipe", "ranked_by_effect", "remedies", "wide_weights"]
