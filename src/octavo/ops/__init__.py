"""What Relax ops do, as one table: which move data, work element by element, clamp, reduce, have weights. Reads no graph."""

from .facts import (
    CLAMPS,
    ELEMENTWISE,
    FACTS,
    MOVERS,
    REDUCTIONS,
    SHARES_PARAMETERS,
    WEIGHTED,
    Movement,
    OpFacts,
    movers,
    weight_axis,
)

__all__ = [
    "CLAMPS",
    "ELEMENTWISE",
    "FACTS",
    "MOVERS",
    "REDUCTIONS",
    "SHARES_PARAMETERS",
    "WEIGHTED",
    "Movement",
    "OpFacts",
    "movers",
    "weight_axis",
]
