"""What tiles ask the caches for before they read their own rows: the rows of the next block.

To sum short ones takes less time than to wait for them. It changes no value.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...language.vectors import Expr, prefetch
from ..loops.geometry import Geometry
from .weights_ahead import LINE_BYTES
from .window_sum import DenseRuns, walk_of


@dataclass(frozen=True, kw_only=True, slots=True)
class RowsAhead:
    """Rows of `row` bytes, the same ones of the next block `distance` bytes behind them."""

    row: int
    distance: int

    @staticmethod
    def of(geometry: Geometry, block: int) -> RowsAhead | None:
        """Return those of blocks of so many rows; None where a row is no single pixel whose bytes all lie side by side."""
        reduction, row = geometry.reduction, geometry.row_stride
        if geometry.columns != 1 or not isinstance(walk_of(reduction.run, row, reduction.taps), DenseRuns):
            return None
        return RowsAhead(row=row, distance=block * row)

    def ask(self, source: Expr, at: Expr, rows: int) -> None:
        """Emit the request for the next block's rows that lie where a tile's `rows` lie in this one, from `at` on."""
        for line in range(0, rows * self.row, LINE_BYTES):
            prefetch(source, at + (self.distance + line), to_write=False)
