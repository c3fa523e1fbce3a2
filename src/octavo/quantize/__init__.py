"""Quantize: where Q and DQ go, with which parameters, and the way back to the source's own format."""

from .choice import TensorChoice
from .corrections import Corrections
from .equalization import Equalization
from .equalized_float import equalized_float
from .export import export_onnx
from .nearness import Nearness
from .override import Override
from .plan import Adjustment, FloatOp, Fold, IntegerLayer, QuantizationPlan, QuantizedModel
from .quantize import quantize
from .recipe import Recipe
from .recipe_file import read_recipe
from .remedies import Remedies

__all__ = [
    "Adjustment",
    "Corrections",
    "Equalization",
    "FloatOp",
    "Fold",
    "IntegerLayer",
    "Nearness",
    "Override",
    "QuantizationPlan",
    "QuantizedModel",
    "Recipe",
    "Remedies",
    "TensorChoice",
    "equalized_float",
    "export_onnx",
    "quantize",
    "read_recipe",
]
