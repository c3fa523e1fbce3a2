"""Why a quantized model's outputs are off: the share of each rounding, what makes it so large, and what would help."""

from .experiments import Cause, RootCause
from .fix import FixResult, fix
from .table import root_causes, table

__all__ = ["Cause", "FixResult", "RootCause", "fix", "root_causes", "table"]
