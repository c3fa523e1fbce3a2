"""Target: what hardware can do, as data."""

from .cpu import CPU
from .description import ELEMENTWISE, ELEMENTWISE_PAIR, OpSupport, TargetDescription

__all__ = ["CPU", "ELEMENTWISE", "ELEMENTWISE_PAIR", "OpSupport", "TargetDescription"]
