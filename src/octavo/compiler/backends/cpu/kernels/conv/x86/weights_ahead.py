"""What tiles of one panel of weights ask the caches for while they sum: the panel behind it, a part in each tile.

Weights of large layers come from far, and each panel's first tile would wait for them. It changes no value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from tvm.script.ir_builder import tirx as T

from ...language.vectors import Expr, prefetch
from ..loops.gemm_loops import FAR_BYTES

LINE_BYTES = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightsAhead:
    """A tile's part of the next panel begins at `ahead`; a step at element n of the panel asks for element n >> `shift` of it."""

    weights: Expr
    start: Expr
    ahead: Expr
    shift: int

    @staticmethod
    def of(
        weights: Expr, packed: npt.NDArray[Any], *, start: Expr, panel: int, tile: Expr, tiles: int, step: int
    ) -> WeightsAhead | None:
        """Return that of tile number `tile` of `tiles`, whose panel of so many elements begins at `start`, `step` of them a step.

        None where weights are near, or where tiles are so few that a step would have to ask for more than a line.
        """
        shift = max(tiles, 1).bit_length() - 1
        if packed.nbytes < FAR_BYTES or (step * packed.itemsize) >> shift > LINE_BYTES:
            return None
        part = panel >> shift
        ahead = T.Bind(T.min(start + panel + tile * part, T.int32(packed.size - part)))
        return WeightsAhead(weights=weights, start=start, ahead=ahead, shift=shift)

    def ask(self, weights: Expr) -> None:
        """Emit the request of the step whose weights begin at `weights`."""
        prefetch(self.weights, self.ahead + T.shift_right(weights - self.start, T.int32(self.shift)), to_write=False)
