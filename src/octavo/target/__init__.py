"""Target: what hardware can do, as data."""

from .cpu import CPU
from .description import OpSupport, TargetDescription

__all__ = ["CPU", "OpSupport", "TargetDescription"]
