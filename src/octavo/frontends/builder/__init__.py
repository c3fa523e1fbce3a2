"""Builder: a quantized Model made op by op, without a framework or a file."""

from .model_builder import ModelBuilder
from .steps import BuilderTensor

__all__ = ["BuilderTensor", "ModelBuilder"]
