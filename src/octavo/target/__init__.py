"""Target: what hardware can do, as data."""

from .cpu import CPU
from .description import BATCH_MATMUL, COMPARE, ELEMENTWISE, ELEMENTWISE_PAIR, SELECT, OpSupport, TargetDescription

__all__ = ["BATCH_MATMUL", "COMPARE", "CPU", "ELEMENTWISE", "ELEMENTWISE_PAIR", "SELECT", "OpSupport", "TargetDescription"]
