"""A copy of bytes, for a result that no kernel writes."""

from __future__ import annotations

from ...isa import Isa
from ...kernel import Argument, Kernel

_THREADS = 256


def copy(size: int, isa: Isa) -> Kernel:
    """Return the kernel that copies so many bytes."""
    return Kernel(
        name="copy",
        header="copy_bytes.cuh",
        function="copy",
        parameters={"items": size, "threads": _THREADS},
        arguments=(Argument(name="x", dtype="uint8"), Argument(name="y", dtype="uint8", writes=True)),
        grid=(max(-(-size // _THREADS), 1), 1, 1),
        block=(_THREADS, 1, 1),
        isa=isa.name,
    )
