"""Target: what hardware can do, as data."""

from ..runtime.llvm_host import host_target
from .cpu import CPU
from .description import OpSupport, TargetDescription
from .vocabulary import BATCH_MATMUL, COMPARE, ELEMENTWISE, ELEMENTWISE_PAIR, GATHERED_MATMUL, RECURRENCE, SELECT, STACKED_MATMUL

__all__ = [
    "BATCH_MATMUL",
    "COMPARE",
    "CPU",
    "ELEMENTWISE",
    "ELEMENTWISE_PAIR",
    "GATHERED_MATMUL",
    "RECURRENCE",
    "SELECT",
    "STACKED_MATMUL",
    "OpSupport",
    "TargetDescription",
    "host_target",
]
