"""Rule of the choice of boxes, of float32 boxes and scores.

Before::

    y = R.octavo.suppression((boxes, scores), R.str("most=100 overlap=0.5 score=0.25 reached=False sigma=0.0"))

After: one composite "octavo.float_suppression" from boxes and scores to y.
"""

from __future__ import annotations

from typing import Any

from tvm.relax import Var

from ....runtime.size import is_open
from ...composites.base import CompositeOp
from ...composites.float_ops import FloatSuppressionOp
from ...graph.dataflow import DataflowView, dtype_of, static_shape
from ...graph.rules import Region, Rejection
from ...graph.suppression import read_suppression


def match_suppression(view: DataflowView, core: Var) -> Region[CompositeOp] | Rejection:
    """Claim the choice of boxes of known sizes."""
    call: Any = view.definition(core)
    what, boxes, scores = read_suppression(call)
    operands = [each for each in (boxes, scores) if isinstance(each, Var) and dtype_of(each) == "float32"]
    shape = static_shape(scores) if len(operands) == 2 else None
    if shape is None or any(is_open(dim) for dim in shape):
        return Rejection(reason=f"{core.name} chooses no boxes of float32 activations of known sizes")
    op = FloatSuppressionOp(
        op="non_max_suppression",
        boxes=operands[0].name,
        scores=operands[1].name,
        most=what.most,
        overlap=what.overlap,
        score=what.score,
        reached=what.reached,
        sigma=what.sigma,
        scores_shape=(shape[0], shape[1], shape[2]),
    )
    return Region(core=core, output=core, members=(core,), inputs=tuple(dict.fromkeys(operands)), op=op)
