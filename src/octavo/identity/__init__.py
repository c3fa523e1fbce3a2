"""Identity: one id per source tensor, and what the source says of it. Imports no TVM."""

from .tensor_table import TensorEntry, TensorId, TensorKind, TensorTable

__all__ = ["TensorEntry", "TensorId", "TensorKind", "TensorTable"]
