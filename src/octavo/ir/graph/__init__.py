"""Graph: the model and the mechanisms that rewrite it; knows no stage and no quantization."""

from .model import Model

__all__ = ["Model"]
