"""Target: what hardware can do, as data."""

from .cpu import CPU
from .description import BATCH_MATMUL, ELEMENTWISE, ELEMENTWISE_PAIR, SELECT, TRUTH, OpSupport, TargetDescription

__all__ = ["BATCH_MATMUL", "CPU", "ELEMENTWISE", "ELEMENTWISE_PAIR", "SELECT", "TRUTH", "OpSupport", "TargetDescription"]
