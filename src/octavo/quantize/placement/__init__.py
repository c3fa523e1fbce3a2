"""Placement: which ops run in integers on a target, and why the others do not."""

from .agreement import rejected_layers, split_enclosed
from .exclusion import Exclusion
from .layer import Layer, Placement
from .placement import Placer

__all__ = ["Exclusion", "Layer", "Placement", "Placer", "rejected_layers", "split_enclosed"]
