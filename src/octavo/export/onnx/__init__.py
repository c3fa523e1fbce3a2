"""Export: the way back from a quantized model to the source's own format."""

from .onnx_export import OPS, export_onnx

__all__ = ["OPS", "export_onnx"]
