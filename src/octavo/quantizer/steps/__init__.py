"""Steps: each proposes other choices for a model, by what runs on samples tell. None knows another, or compares models."""

from . import correct, equalize, fuse_functions, keep_float, narrow_ranges, widen, widen_weights
from .evidence import Evidence

__all__ = ["Evidence", "correct", "equalize", "fuse_functions", "keep_float", "narrow_ranges", "widen", "widen_weights"]
