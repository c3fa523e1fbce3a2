"""Steps of float dense layers, part by part: all tiles of a block take one part of a panel's weights before any takes the next.

So weights stay in the first-level cache, however many steps there are. Between parts the sums lie in the result, to the last bit:
each output remains one sum in the order of the steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm.script.ir_builder import tirx as T

from ..language.partial import load_partial
from ..language.vectors import Buffer, Expr, load, store, store_partial
from ..language.x86.vector import LANES
from .loops.gemm_loops import Panel
from .loops.tiles import VECTOR_BYTES, Core


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Of all steps of a panel, those from `first` on."""

    first: Expr
    steps: Expr
    all_steps: int

    @property
    def is_last(self) -> Expr:
        """Whether no step is left behind it."""
        return self.first + self.steps == self.all_steps

    def resume(self, acc: Expr, out: Buffer, places: list[Expr], panel: Panel) -> None:
        """Emit the loads of a tile's sums from where the part before left them; `places` are those of its pixels' results."""
        with T.If(self.first > 0), T.Then():
            for index, place, valid in _vectors(places, panel):
                store(acc, index, load_partial(out, place, LANES, valid), LANES)

    def leave(self, acc: Expr, out: Buffer, places: list[Expr], panel: Panel) -> None:
        """Emit the stores of a tile's sums."""
        for index, place, valid in _vectors(places, panel):
            store_partial(out, place, load(acc, index, LANES), LANES, valid, "float32")


def steps_of_part(core: Core, steps: int, vectors: int) -> int:
    """Return how many of the steps of panels of so many vectors make a part: all, where their weights lie near enough."""
    panel = steps * vectors * VECTOR_BYTES
    return steps if panel <= core.unsplit_bytes else -(-steps // math.ceil(panel / core.near_bytes))


def _vectors(places: list[Expr], panel: Panel) -> list[tuple[int, Expr, int]]:
    """Return (place among the sums, place in the result, valid lanes) of each vector of a tile."""
    return [
        ((i * panel.vectors + j) * LANES, place + j * LANES, min(LANES, panel.channels - j * LANES))
        for i, place in enumerate(places)
        for j in range(panel.vectors)
    ]
