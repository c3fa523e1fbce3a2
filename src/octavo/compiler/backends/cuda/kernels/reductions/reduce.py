"""Reductions along axes that lie together."""

from __future__ import annotations

from dataclasses import dataclass

from ...isa import Isa
from ...kernel import Argument, BoundKernel, Kernel, Number
from ..quantization.change import Change

_REDUCTIONS = {"sum": 0, "max": 1, "min": 2, "argmax": 3, "argmin": 4}
"""The enumeration `Reduction` of the header."""

_THREADS = 256
_COLUMNS = 32
"""Results of a block, or groups of four, where results lie side by side: a warp reads neighbours."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ReduceSpec:
    """A reduction of [outer, extent, inner] along its middle.

    Parameters
    ----------
    kind
        "sum", "max" or "min"; "argmax" or "argmin" for the first place of such an extreme, of 2**23 elements at most.
    change
        Of an extreme to the result's parameters.
    to
        The result's dtype.
    parameters
        From `average_parameters`, of a sum.
    name
        Of the kernel.
    """

    kind: str
    outer: int
    extent: int
    inner: int
    change: Change
    to: str
    parameters: dict[str, Number]
    name: str = "mean"


def reduce(spec: ReduceSpec, isa: Isa) -> BoundKernel:
    """Return the kernel of a reduction."""
    per_thread = 4 if spec.inner % 4 == 0 else 1
    groups = spec.outer * spec.inner // per_thread
    columns, threads = (1, _THREADS) if spec.inner == 1 else (_COLUMNS, _THREADS)
    while threads > 32 and threads // columns > 2 * spec.extent:
        threads //= 2
    kernel = Kernel(
        name=spec.name,
        header="reduce.cuh",
        function="reduce",
        parameters={
            "outer": spec.outer,
            "extent": spec.extent,
            "inner": spec.inner,
            "threads": threads,
            "columns": columns,
            "results_of_thread": per_thread,
            "reduction": _REDUCTIONS[spec.kind],
            **spec.change.parameters,
            **spec.parameters,
        },
        types={"X": spec.change.dtype, "Y": spec.to},
        arguments=(
            Argument(name="x", dtype=spec.change.dtype),
            Argument(name="table", dtype=spec.to),
            Argument(name="y", dtype=spec.to, writes=True),
        ),
        grid=(-(-groups // columns), 1, 1),
        block=(threads, 1, 1),
        shared_bytes=4 * per_thread * threads,
        isa=isa.name,
    )
    return kernel, (spec.change.table.astype(spec.to),)
