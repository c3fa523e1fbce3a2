"""Plans: what `quantize` decides, as data and as a file that can be edited and applied again."""

from .entries import Adjustment, Corrections, FloatOp, IntegerLayer
from .plan import QuantizationPlan, QuantizedModel

__all__ = ["Adjustment", "Corrections", "FloatOp", "IntegerLayer", "QuantizationPlan", "QuantizedModel"]
