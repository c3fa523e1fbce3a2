"""Plans: what `quantize` decides, as data and as a file that can be edited and applied again."""

from .entries import Adjustment, FloatOp, Fold, IntegerLayer
from .plan import QuantizationPlan, QuantizedModel

__all__ = ["Adjustment", "FloatOp", "Fold", "IntegerLayer", "QuantizationPlan", "QuantizedModel"]
