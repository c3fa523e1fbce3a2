"""Export: the way back from a quantized model to the source's own format."""

from .onnx_export import export_onnx

__all__ = ["export_onnx"]
