"""The choice of boxes by their scores and overlaps (non-maximum suppression) as one op. Computes nothing.

    y = R.octavo.suppression((boxes, scores), R.str("most=100 overlap=0.5 score=0.25 reached=False sigma=0.0"))

`boxes` (batch, boxes, 4) are two opposite corners each, `scores` (batch, classes, boxes). y is int64 (batch * classes * most, 3):
the numbers of batch, class and box of what is chosen, class by class from the best on, and -1 in all rows behind. How many rows
are chosen depends on the data; an executable gives those, and no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call, StringImm
from tvm.relax import Expr

from .nodes import elements
from .script_names import register

NAME = "suppression"
_OP = f"relax.octavo.{NAME}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Suppression:
    """How boxes are chosen.

    Parameters
    ----------
    most
        Boxes of a class, at most.
    overlap
        From what share of two boxes' union on their intersection rules out the one of the lower score: more than that.
    score
        What a score must be above; None: any is good.
    reached
        Whether a share of just `overlap` rules out as well.
    sigma
        Where it is above 0, each choice multiplies the scores of the boxes that it shares with by exp(-share^2 / (2 * sigma)).
    """

    most: int
    overlap: float
    score: float | None
    reached: bool = False
    sigma: float = 0.0

    def text(self) -> str:
        """Return it as the op has it."""
        words = f"most={self.most} overlap={self.overlap!r} score={self.score!r}"
        return f"{words} reached={self.reached} sigma={self.sigma!r}"

    @staticmethod
    def parse(text: str) -> Suppression:
        """Read what `text` wrote; ValueError for anything else."""
        given: dict[str, str] = {name: value for name, _, value in (word.partition("=") for word in text.split(" "))}
        if given.keys() != {"most", "overlap", "score", "reached", "sigma"}:
            raise ValueError(f"{text!r} is no choice of boxes")
        score = None if given["score"] == "None" else float(given["score"])
        numbers: dict[str, float] = {name: float(given[name]) for name in ("overlap", "sigma")}
        return Suppression(most=int(given["most"]), score=score, reached=given["reached"] == "True", **numbers)


def suppression(boxes: Expr, scores: Expr, what: Suppression) -> Any:
    """Return the call."""
    return _construct(relax.Tuple([boxes, scores]), what.text())


def read_suppression(call: Any) -> tuple[Suppression, Expr, Expr]:
    """Return what a call of the op computes, and its operands."""
    boxes, scores = elements(call.args[0].fields)
    return Suppression.parse(str(call.args[1].value)), boxes, scores


def _construct(operands: Any, text: Any) -> Any:
    operands = operands if isinstance(operands, relax.Tuple) else relax.Tuple(list(operands))  # a text has Python's own
    return Call(tvm.ir.Op.get(_OP), [operands, text if isinstance(text, StringImm) else StringImm(str(text))])


def _infer(call: Any, builder: Any) -> Any:
    del builder
    what = Suppression.parse(str(call.args[1].value))
    scores: Any = elements(call.args[0].ty.fields)[1]
    batch, classes, _ = elements(scores.shape.values)
    shape: Any = [batch * classes * what.most, 3]
    return relax.TensorType(shape, "int64")


register(NAME, "The choice of boxes by scores and overlaps.", _infer, _construct)
