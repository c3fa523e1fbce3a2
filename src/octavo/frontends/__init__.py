"""Frontends: a model file or object becomes a Model; every tensor of the source keeps its identity."""

from .builder import BuilderTensor, ModelBuilder
from .load import load

__all__ = ["BuilderTensor", "ModelBuilder", "load"]
