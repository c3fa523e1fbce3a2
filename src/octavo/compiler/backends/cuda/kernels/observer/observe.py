"""The observer: reads a float32 tensor once and adds to its statistics (`numerics.statistics.observer_state`)."""

from __future__ import annotations

from dataclasses import dataclass

from ......numerics.statistics.histogram import MANTISSA_BITS, SHIFT
from ......numerics.statistics.observer_state import table
from ...isa import Isa
from ...kernel import Argument, Kernel

_THREADS = 256
_ELEMENTS_OF_BLOCK = 32 * _THREADS
"""At least: what a block found is some thousand numbers, which it adds one by one."""
_BLOCKS_OF_MULTIPROCESSOR = 4
_EXPONENTS = range(105, 135)
"""Biased exponents of the magnitudes that have counters in shared memory: from 2^-22 to 2^8. With ranges of 4096 channels they
fill what a block may have of it on every architecture."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ObserveSpec:
    """Observation of a float32 tensor that lies in memory, and in the source, as [outer][channels][inner]."""

    outer: int
    channels: int
    inner: int

    @property
    def size(self) -> int:
        """Elements, fewer than 2^31."""
        return self.outer * self.channels * self.inner


def observe(spec: ObserveSpec, isa: Isa) -> Kernel:
    """Return the kernel (x float32, ranges float32 (2 C), counts int32), which adds to ranges and to the counts' first table."""
    window = len(_EXPONENTS) << MANTISSA_BITS
    per_thread = 4 if spec.size % 4 == 0 else 1
    unit = per_thread * _THREADS
    share = -(-spec.size // (isa.multiprocessors * _BLOCKS_OF_MULTIPROCESSOR))
    elements = max(_ELEMENTS_OF_BLOCK, -(-share // unit) * unit)
    return Kernel(
        name="observe",
        header="observe.cuh",
        function="observe",
        parameters={
            "items": spec.size,
            "channels": spec.channels,
            "inner": spec.inner,
            "threads": _THREADS,
            "elements_of_thread": per_thread,
            "elements_of_block": elements,
            "shift": SHIFT,
            "first_code": _EXPONENTS[0] << MANTISSA_BITS,
            "window": window,
            "first_table": table(0),
        },
        arguments=(
            Argument(name="x", dtype="float32"),
            Argument(name="ranges", dtype="float32", writes=True),
            Argument(name="counts", dtype="int32", writes=True),
        ),
        grid=(-(-spec.size // elements), 1, 1),
        block=(_THREADS, 1, 1),
        shared_bytes=4 * (2 * window + 2 + 2 * spec.channels),
        isa=isa.name,
    )
