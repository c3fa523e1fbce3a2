"""Constraints: what ops ask of the tensors that they share, and whether one set of parameters can be all of it."""

from .demand import Demand, width_of
from .tensors import TensorConstraints
from .wish import Wish, Wishes, unlike_weight

__all__ = ["Demand", "TensorConstraints", "Wish", "Wishes", "unlike_weight", "width_of"]
