"""Identity: one id per source tensor, and what the source says of it. Imports no TVM."""

from .naming import NameSupply, assign_ids, readable_name
from .relation import Relation
from .tensor_state import Change, TensorState
from .tensor_table import TensorEntry, TensorId, TensorKind, TensorTable

__all__ = [
    "Change",
    "NameSupply",
    "Relation",
    "TensorEntry",
    "TensorId",
    "TensorKind",
    "TensorState",
    "TensorTable",
    "assign_ids",
    "readable_name",
]
