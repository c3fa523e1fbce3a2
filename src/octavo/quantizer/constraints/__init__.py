"""Constraints: what ops ask of the tensors that they share, and whether one set of parameters can be all of it."""

from .demand import Demand, width_of
from .request import Request, Requests, unlike_blocks, unlike_weight
from .tensors import TensorConstraints

__all__ = ["Demand", "Request", "Requests", "TensorConstraints", "unlike_blocks", "unlike_weight", "width_of"]
