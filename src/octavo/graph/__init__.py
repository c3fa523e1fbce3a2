"""Graph: the model and the mechanisms that rewrite it; knows no stage."""

from .model import Adjustment, FloatOp, Fold, IntegerLayer, Model, QuantizationPlan

__all__ = ["Adjustment", "FloatOp", "Fold", "IntegerLayer", "Model", "QuantizationPlan"]
