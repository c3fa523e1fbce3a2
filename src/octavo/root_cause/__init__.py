"""Why a quantized model's outputs are off: the share of each rounding, what makes it so large, and what would help."""

from .causes import Cause
from .table import RootCause, root_causes

__all__ = ["Cause", "RootCause", "root_causes"]
