"""Lower: QDQ regions to composites carrying quantize_info, composites to kernels. Builds nothing, runs nothing."""

from .link import link
from .lowering import FLOAT_MODEL, Lowered, OpRecord, lower, partition_module

__all__ = ["FLOAT_MODEL", "Lowered", "OpRecord", "link", "lower", "partition_module"]
