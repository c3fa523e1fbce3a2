"""Quantize: where Q and DQ go, with which parameters, and the way back to the source's own format."""

from .onnx_export import export_onnx
from .quantize import quantize
from .recipe import Recipe

__all__ = ["Recipe", "export_onnx", "quantize"]
