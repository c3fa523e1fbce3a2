"""Lower: QDQ regions to composites carrying quantize_info, composites to kernels. Builds nothing, runs nothing."""

from .context import PlacedKernel
from .link import link
from .lowering import FLOAT_MODEL, Lowered, OpRecord, lower, partition_module
from .precision import Precision

__all__ = ["FLOAT_MODEL", "Lowered", "OpRecord", "PlacedKernel", "Precision", "link", "lower", "partition_module"]
