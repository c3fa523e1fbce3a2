"""Graph: the model and the mechanisms that rewrite it; knows no stage."""

from .model import Model, QuantizationPlan

__all__ = ["Model", "QuantizationPlan"]
