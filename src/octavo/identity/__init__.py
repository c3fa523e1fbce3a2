"""Identity: one id per source tensor, and what the source says of it. Imports no TVM."""

from .naming import NameSupply, assign_ids
from .tensor_table import TensorEntry, TensorId, TensorKind, TensorTable

__all__ = ["NameSupply", "TensorEntry", "TensorId", "TensorKind", "TensorTable", "assign_ids"]
