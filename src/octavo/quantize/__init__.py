"""Quantize: where Q and DQ go, with which parameters, and the way back to the source's own format."""

from .quantize import quantize
from .recipe import Recipe

__all__ = ["Recipe", "quantize"]
