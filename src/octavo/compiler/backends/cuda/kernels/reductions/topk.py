"""The greatest or least elements of rows, or their places, in order: `numerics.top_k_indices`.

Few are found one after the other, each by all threads of a row. Of many, each one's place follows from how often each byte occurs
before it: a warp counts a row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...isa import Isa
from ...kernel import Argument, BoundKernel, Kernel, Number
from ..norms.softmax import Rows

_LANES = 32
_BYTES = 256

_TURN = 40
"""Clocks of one halving of a row's threads, with its barrier."""
_LOOK = 10
"""Clocks of an element that is compared."""
_COUNT = 100
"""Clocks of an element that is counted, twice: its load, and its counter's, wait for each other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TopkSpec:
    """Rows of `extent` bytes; the `count` greatest (or least) are wanted, or their places, in `to`."""

    rows: int
    extent: int
    count: int
    largest: bool
    gives_places: bool
    dtype: str
    to: str


def counts(spec: TopkSpec) -> bool:
    """Return whether elements are counted, by the clocks that a row takes either way."""
    threads = Rows.of(spec.rows, spec.extent).threads
    turns = spec.count * (math.log2(threads) * _TURN + -(-spec.extent // threads) * _LOOK)
    counted = 3 * _BYTES * _LOOK + 2 * -(-spec.extent // _LANES) * _COUNT
    return counted < turns


def topk(spec: TopkSpec, isa: Isa, *, counted: bool | None = None) -> BoundKernel:
    """Return the kernel; the way is chosen where it is not given."""
    rows = Rows.of(spec.rows, spec.extent)
    counted = counts(spec) if counted is None else counted
    sizes: dict[str, Number] = {"count": spec.count, "largest": spec.largest, "gives_places": spec.gives_places}
    own = {"rows": spec.rows, "columns": spec.extent} if counted else rows.parameters
    kernel = Kernel(
        name="topk_indices" if spec.gives_places else "topk_values",
        header="topk.cuh",
        function="topk_counted" if counted else "topk",
        parameters={**own, **sizes},
        types={"X": spec.dtype, "Y": spec.to},
        arguments=(Argument(name="x", dtype=spec.dtype), Argument(name="y", dtype=spec.to, writes=True)),
        grid=(spec.rows, 1, 1) if counted else rows.grid,
        block=(_LANES, 1, 1) if counted else rows.block,
        shared_bytes=4 * _BYTES * (_LANES + 1) if counted else 8 * rows.block[0],
        isa=isa.name,
    )
    return kernel, ()
