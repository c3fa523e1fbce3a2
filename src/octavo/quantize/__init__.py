"""Quantize: where Q and DQ go, with which parameters, and the way back to the source's own format."""

from .choice import TensorChoice
from .corrections import Corrections
from .export import export_onnx
from .plan import Adjustment, FloatOp, Fold, IntegerLayer, QuantizationPlan, QuantizedModel
from .quantize import quantize
from .recipe import Recipe

__all__ = [
    "Adjustment",
    "Corrections",
    "FloatOp",
    "Fold",
    "IntegerLayer",
    "QuantizationPlan",
    "QuantizedModel",
    "Recipe",
    "TensorChoice",
    "export_onnx",
    "quantize",
]
