"""What became of a source tensor in a module, and the story of how. Plain data: no compiler, no quantization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...errors import printable
from .relation import SAME, Relation
from .tensor_table import TensorId

StateKind = Literal["kept", "laid out anew", "rescaled", "inside", "merged", "folded", "gone"]
Evidence = Literal["structure", "value", "announced", "none"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TensorState:
    """Where one source tensor is in a module.

    Parameters
    ----------
    kind
        "kept": a variable holds its value. "laid out anew": a variable holds it permuted or reshaped. "rescaled": a variable
        holds it times a factor for each channel. "inside": computed within `composite` and not seen outside. "merged": one
        variable holds it and `merged_with`. "folded": a constant. "gone": nothing in the module holds it.
    relation
        From the source's value to the one that is there.
    composite
        The function or kernel it is computed in; "" where a variable of the entry function holds it.
    holder
        Name of the variable, "" if there is none.
    expression
        What that variable is bound to, in one line.
    position
        Which variable that is, counted in the order of execution (parameters first, called functions where they are called);
        None if there is none.
    merged_with
        The other ids that the same variable holds.
    dtype
        Element type now, "" where nothing holds it.
    evidence
        How the link is known: "structure" (the same computation on the same inputs), "value" (both computed on a probe),
        "announced" (by the pass itself); "none" where no link is claimed.
    reason
        Why it is gone, "" otherwise.
    """

    kind: StateKind
    relation: Relation = SAME
    composite: str = ""
    holder: str = ""
    expression: str = ""
    position: int | None = None
    merged_with: tuple[TensorId, ...] = ()
    dtype: str = ""
    evidence: Evidence = "none"
    reason: str = ""

    @property
    def is_alive(self) -> bool:
        """Whether a variable of the module, in the entry function or within another, holds the value."""
        return bool(self.holder)

    def is_like(self, other: TensorState) -> bool:
        """Return whether nothing worth telling happened from one to the other."""
        return (
            (self.kind, self.composite, self.merged_with, self.dtype)
            == (other.kind, other.composite, other.merged_with, other.dtype)
            and self.holder == other.holder
            and str(self.relation) == str(other.relation)
            and (self.evidence == "announced") == (other.evidence == "announced")
        )

    def __str__(self) -> str:
        """Say it in one line."""
        parts: list[str] = []
        if self.kind == "merged":
            parts.append(f"merged with {', '.join(self.merged_with)}")
        elif self.kind == "inside":
            parts.append(f"inside {self.composite}")
        elif self.kind == "gone":
            parts.append(f"gone: {self.reason}" if self.reason else "gone")
        elif self.kind == "folded":
            parts.append("folded to a constant")
        else:
            parts.append(self.kind)
        if not self.relation.is_identity:
            parts.append(str(self.relation))
        if self.holder:
            parts.append(f"held by {self.holder}" + (f": {self.dtype}" if self.dtype else ""))
        return printable("; ".join(parts))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Change:
    """One line of a tensor's story: the pass (its place in the pipeline and its name) and the state after it."""

    step: int
    pass_name: str
    state: TensorState
