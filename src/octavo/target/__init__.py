"""Target: what hardware can do, as data."""

from .cpu import CPU
from .description import ELEMENTWISE, OpSupport, TargetDescription

__all__ = ["CPU", "ELEMENTWISE", "OpSupport", "TargetDescription"]
