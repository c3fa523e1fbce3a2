"""The table of op facts, and the lists of ops that passes take from it. It holds what is true of an op wherever it stands.

What one pass, rule or target supports is its own business: it takes the ops of a fact, and states what it adds or leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ..numerics import ELEMENTWISE as _FUNCTIONS

Movement = Literal["view", "transpose", "reverse", "repeat", "select", "pad", "join", "split"]
"""How an op moves the elements of its data operand, without computing any.

"view"       the same elements in the same row-major order, under another shape: the same bytes.
"transpose"  each element once, with the axes in another order.
"reverse"    each element once, in the opposite order along an axis.
"repeat"     each element once or more.
"select"     some of the elements, maybe several times.
"pad"        each element once, and others around them.
"join"       all elements of several operands, in one result.
"split"      each element once, in one of several results.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpFacts:
    """What is true of one Relax op.

    Parameters
    ----------
    movement
        How it moves data; None for an op that computes.
    elementwise
        Whether each element of its result depends on the elements at the same place of its operands alone (broadcast).
    clamps
        Whether it bounds each element by constants from below and above, and does nothing else.
    reduces
        Whether it combines the elements along axes to one.
    keeps_parameters
        Whether over integers, its result (its first, if it has several) has the scale and the zero point of its first operand,
        although it does more than move data.
    weight
        Position of its weight among its operands, where it sums products of data and a weight; else None.
    """

    movement: Movement | None = None
    elementwise: bool = False
    clamps: bool = False
    reduces: bool = False
    keeps_parameters: bool = False
    weight: int | None = None

    @property
    def shares_parameters(self) -> bool:
        """Whether over integers, what it gives has the scale and the zero point of the first tensor that it reads."""
        return self.keeps_parameters or (self.movement is not None and self.movement != "join")


FACTS: dict[str, OpFacts] = {
    **{name: OpFacts(elementwise=True) for name in _FUNCTIONS},
    "nn.relu": OpFacts(elementwise=True, clamps=True),
    # Of integers, with integer bounds; a relu of integers would clamp at the integer 0, not at the zero point.
    "clip": OpFacts(elementwise=True, clamps=True, keeps_parameters=True),
    "reshape": OpFacts(movement="view"),
    "nn.batch_flatten": OpFacts(movement="view"),
    "flatten": OpFacts(movement="view"),
    "squeeze": OpFacts(movement="view"),
    "expand_dims": OpFacts(movement="view"),
    "permute_dims": OpFacts(movement="transpose"),
    "strided_slice": OpFacts(movement="select"),
    "take": OpFacts(movement="select"),
    "gather_elements": OpFacts(movement="select"),
    "flip": OpFacts(movement="reverse"),
    "tile": OpFacts(movement="repeat"),
    "repeat": OpFacts(movement="repeat"),
    "broadcast_to": OpFacts(movement="repeat"),
    "nn.pad": OpFacts(movement="pad"),
    "concat": OpFacts(movement="join"),
    "stack": OpFacts(movement="join"),
    "split": OpFacts(movement="split"),
    "image.resize2d": OpFacts(keeps_parameters=True),
    "nn.max_pool2d": OpFacts(keeps_parameters=True),
    "topk": OpFacts(keeps_parameters=True),
    "mean": OpFacts(reduces=True),
    "sum": OpFacts(reduces=True),
    "max": OpFacts(reduces=True),
    "min": OpFacts(reduces=True),
    "nn.conv1d": OpFacts(weight=1),
    "nn.conv2d": OpFacts(weight=1),
    "nn.conv3d": OpFacts(weight=1),
    "nn.conv2d_transpose": OpFacts(weight=1),
    "matmul": OpFacts(weight=1),
}
"""By the Relax op's name without "relax."; an op that isn't here has none of these facts. Elementwise ops are those that
`numerics` defines a function of."""

CLAMPS = tuple(name for name, facts in FACTS.items() if facts.clamps)
ELEMENTWISE = tuple(name for name, facts in FACTS.items() if facts.elementwise)
MOVERS = tuple(name for name, facts in FACTS.items() if facts.movement is not None)
NORMS = ("nn.layer_norm", "nn.group_norm")
"""Normalizations over axes of one sample, that quantization knows."""
PLACES = ("argmax", "argmin")
"""Ops whose results are integers, whatever they read: where in it something is."""
REDUCTIONS = tuple(name for name, facts in FACTS.items() if facts.reduces)
SHARES_PARAMETERS = tuple(name for name, facts in FACTS.items() if facts.shares_parameters)
WEIGHTED = tuple(name for name, facts in FACTS.items() if facts.weight is not None)


def movers(*movements: Movement) -> tuple[str, ...]:
    """Return the ops that move data in one of these ways, in the order of the table."""
    return tuple(name for name, facts in FACTS.items() if facts.movement in movements)


def weight_axis(attrs: Any, rank: int) -> int | None:
    """Return the axis of the output channels in the weight, of `rank` dimensions, of one of the `WEIGHTED` ops; None without one.

    A transposed convolution of several groups has the channels of one group there.
    """
    layout = getattr(attrs, "kernel_layout", None)
    if layout is not None:
        return str(layout).index("O") if "O" in str(layout) else None
    return rank - 1 if rank > 1 else None
