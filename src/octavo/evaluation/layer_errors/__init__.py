"""The error of quantization layer by layer, on the source model's own names: where it comes from, inside fused blocks, too."""

from .table import LayerError, layer_errors

__all__ = ["LayerError", "layer_errors"]
