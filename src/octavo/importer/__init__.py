"""Importer: a model file or object becomes a Model; every tensor of the source keeps its identity."""

from .load import load

__all__ = ["load"]
