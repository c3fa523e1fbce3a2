"""What a model costs to run, modelled: the same number on every machine, so that a search finds the same everywhere."""

from __future__ import annotations

from dataclasses import dataclass

from ...compiler.explanation import FLOAT_BYTES, ExplainedOp, Explanation, memory_cycles


@dataclass(frozen=True, kw_only=True, slots=True)
class Cycles:
    """Cycles of one inference on a core with 512-bit vectors and VNNI, of products and results alone: only ratios mean much."""

    ops: tuple[ExplainedOp, ...]

    @property
    def total(self) -> float:
        """Of all ops."""
        return sum(op.cycles(is_integer=op.integer) for op in self.ops)

    def more_in_float(self, tensor: str) -> float:
        """Return how many more the op takes that makes a tensor, if it is float; 0 for one that is."""
        made = [op for op in self.ops if tensor in (op.tensor, op.core) and op.integer]
        return sum(op.cycles(is_integer=False) - op.cycles(is_integer=True) for op in made[:1])

    @staticmethod
    def extra_float_traffic(values: int) -> float:
        """Return how many more it takes to write and read values as float."""
        return memory_cycles(values * (FLOAT_BYTES - 1))


def cycles_of(explanation: Explanation) -> Cycles:
    """Return what the ops of a model cost."""
    return Cycles(ops=explanation.ops)
