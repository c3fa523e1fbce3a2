"""The error of quantization layer by layer, on the source model's own names: where it comes from, inside fused blocks, too."""

from .table import LayerError, errors_on, layer_errors

__all__ = ["LayerError", "errors_on", "layer_errors"]
